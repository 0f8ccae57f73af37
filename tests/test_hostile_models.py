"""Model folders that were damaged, or made to do harm: one line that names what is wrong, and no wrong prediction."""

import json
import pickle
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import ENCODER_CONFIGS
from transformers import AutoModel

from glocal_xml.cli import main as command
from glocal_xml.data import build_label_tree
from glocal_xml.experts import ExpertTexts, add_to_dense, fit_experts
from glocal_xml.modeling import APLCXLNet, APLCXLNetConfig, GlocalXMLConfig, GlocalXMLForMultiLabel
from glocal_xml.trained_model import open_pipeline

NAMES = [f"label {i}" for i in range(9)]


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    """Models with a tree, with experts and a blend, and with label clusters."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    rows = [np.array([5 + i % 20, 6 + i % 9, 7]) for i in range(60)]
    models = {
        "experts": GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=9)),
        "tree": GlocalXMLForMultiLabel(
            GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=9, tree_levels=[4])
        ),
        "clusters": APLCXLNet(APLCXLNetConfig(encoder=ENCODER_CONFIGS["xlnet"](), num_labels=9, summary_size=8)),
    }
    fit_experts(
        models["experts"],
        ExpertTexts(rows, [[i % 9] for i in range(60)]),
        tokenizer,
        ["lexical", "memory"],
        show_progress=False,
    )
    add_to_dense(models["experts"], ExpertTexts(rows, [[i % 9] for i in range(60)]), tokenizer)
    weights = dict.fromkeys(models["experts"].branch_names, 0.5)
    blend = {"weights": weights, "threshold": 0.3, "f": "micro", "beta": 1.0, "texts": 9}
    models["experts"].set_blend(blend, torch.zeros(9))
    tree = build_label_tree(np.random.default_rng(0).random((9, 5)), cluster_size=3, show_progress=False)
    models["tree"].set_label_tree(tree.child_starts, tree.label_order)
    models["clusters"].set_label_counts(range(1, 10))
    for name, model in models.items():
        model.set_label_names(NAMES)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture
def copy_of(saved, tmp_path):
    def make(name="experts"):
        folder = tmp_path / "model"
        folder.mkdir()
        for path in (saved / name).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    return make


def refused(folder, message, capsys):
    """By Python, and on the command line in one short line."""
    # Some settings show their harm only when a text is read.
    if message is not None:
        with pytest.raises(Exception, match=message):
            AutoModel.from_pretrained(folder)
    assert command(["predict", str(folder), "--text", "apple"]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("glocal-xml: error:")]
    assert out == "" and len(lines) == 1 and "Traceback" not in err
    assert str(folder) in lines[0] and len(lines[0]) < 800


@pytest.mark.parametrize("name", ["experts", "tree", "clusters"])
def test_whole_models_load_and_predict(name, saved, capsys):
    assert command(["predict", str(saved / name), "--text", "apple dog"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 5


def test_bad_names(copy_of, capsys):
    folder = copy_of()
    file = folder / "labels.txt"
    whole = file.read_bytes()
    for content, message in {
        whole[:-1]: "labels.txt ends within a name",
        whole[:-4]: "labels.txt",
        whole[: whole.index(b"\n") + 1]: "1 label names for a model of 9",
        whole + b"more\n": "10 label names",
        whole.replace(b"label 3", b"label 4"): "twice in labels.txt",
        whole.replace(b"\n", b"\r\n"): "line break",
        whole.replace(b"label 3", b"l\xe4bel 3"): "labels.txt is no UTF-8",
        b"": "0 label names",
    }.items():
        file.write_bytes(content)
        refused(folder, message, capsys)
    file.unlink()
    refused(folder, "labels.txt with the names of the labels is missing", capsys)


CHANGES = {
    "many labels": ({"num_labels": 50_000_000}, "do not belong together.*50000000"),
    "one more label": ({"num_labels": 10}, "do not belong together"),
    "many layers": ({"encoder": {"num_hidden_layers": 10**6}}, "far more than the weights"),
    "fewer layers": ({"encoder": {"num_hidden_layers": 2}}, "no place for 16 tensors"),
    "one more layer": ({"encoder": {"num_hidden_layers": 4}}, "weights lack 16 tensors"),
    "many tokens": ({"encoder": {"vocab_size": 10**10}}, "do not belong together"),
    "many positions": ({"encoder": {"max_position_embeddings": 10**12}}, "do not belong together"),
    "many texts": ({"memory": {"texts": 10**12}}, "do not belong together"),
    "many embeddings": ({"dense": {"texts": 10**12}}, "do not belong together"),
    "long embeddings": ({"dense": {"size": 7}}, "do not belong together"),
    "many entries": ({"lexical": {"entries": [10**13]}}, "do not belong together"),
    "NaN in a setting": ({"memory": {"power": float("nan")}}, "memory.power"),
    "NaN in the encoder": ({"encoder": {"layer_norm_eps": float("nan")}}, "layer_norm_eps"),
    "NaN in the blend": ({"blend": {"threshold": float("nan")}}, "blend"),
    "infinite weight": ({"blend": {"weights": {"global": float("inf")}}}, "blend"),
    "text for a number": ({"num_labels": "nine"}, "num_labels"),
    "unknown activation": ({"encoder": {"hidden_act": "none of these"}}, "none of these"),
    "negative layers": ({"encoder": {"num_hidden_layers": -1}}, ""),
    "unknown sizes": ({"lexical": {"tokens": "x"}}, ""),
    "scores that are no numbers": ({"temperature": 1e-300}, None),
    "code of others": ({"attn_implementation": "someone/kernel"}, "attn_implementation"),
    "code of others in the encoder": ({"encoder": {"_attn_implementation": "someone/kernel"}}, "_attn_implementation"),
    "packed weights": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        "quantization_config",
    ),
    "chunks that do not fit": ({"encoder": {"chunk_size_feed_forward": 7}}, None),
    "a long mistake": ({"attention_scoring": "x" * 5000}, "attention_scoring"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_bad_settings(case, copy_of, capsys):
    changes, message = CHANGES[case]
    folder = copy_of()
    config = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        config[name] = {**config.get(name, {}), **value} if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, message, capsys)


def test_settings_that_are_no_json(copy_of, capsys):
    folder = copy_of()
    for content in (b"", b"{", b"[" * 10**5, b"[]", b"\xff\xfe", b'{"model_type": "glocal_xml"', b"null"):
        (folder / "config.json").write_bytes(content)
        refused(folder, "", capsys)


def changed_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def fill(name, place, value):
    def change(tensors):
        tensors[name][place] = value

    return change


WEIGHTS = {
    "no head": (
        "experts",
        lambda tensors: tensors.pop("global_head.label_embeddings.weight"),
        "weights lack 1 tensors",
    ),
    "no encoder": (
        "experts",
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("encoder")],
        "weights lack",
    ),
    "no frequencies": ("experts", lambda tensors: tensors.pop("log_frequencies"), "log_frequencies"),
    "no lexical table": ("experts", lambda tensors: tensors.pop("lexical.tables.0.starts"), "lexical"),
    "NaN": ("experts", fill("global_head.label_embeddings.weight", (0, 0), float("nan")), "not finite"),
    "infinite": ("experts", fill("encoder.embeddings.word_embeddings.weight", 3, float("inf")), "not finite"),
    "NaN in an expert": ("experts", fill("lexical.biases_0", 0, float("nan")), "not finite"),
    "another shape": (
        "experts",
        lambda tensors: tensors.update({"lexical.biases_0": torch.zeros(7)}),
        "lexical.biases_0 has the shape",
    ),
    "rows beyond the labels": ("experts", fill("lexical.tables.0.rows", 0, 10**6), "tables of lexical.tables.0"),
    "negative rows": ("experts", fill("memory.texts.rows", 0, -7), "tables of memory.texts"),
    "starts beyond the end": ("experts", fill("lexical.tables.0.starts", 5, 10**9), "tables of lexical.tables.0"),
    "falling starts": ("experts", fill("memory.texts.starts", -1, 0), "tables of memory.texts"),
    "labels beyond the end": ("experts", fill("memory.label_ids", 0, 99), "tables of memory"),
    "labels of embeddings": ("experts", fill("dense.label_ids", 0, 99), "tables of dense"),
    "label starts": ("experts", fill("memory.label_starts", 2, -1), "tables of memory"),
    "a label twice in the tree": ("tree", lambda tensors: order(tensors, "label_order"), "tables of"),
    "children nowhere": ("tree", lambda tensors: order(tensors, "child_starts_0"), "tables of"),
    "another cluster": ("tree", lambda tensors: order(tensors, "label_clusters"), "tables of"),
    "a label twice in the clusters": ("clusters", lambda tensors: order(tensors, "label_order"), "tables of"),
    "places nowhere": ("clusters", lambda tensors: order(tensors, "label_places"), "tables of"),
}


def order(tensors, ending):
    """The last of the numbers is the first one once more."""
    (name,) = [name for name in tensors if name.endswith(ending)]
    tensors[name][-1] = tensors[name][0]


@pytest.mark.parametrize("case", WEIGHTS)
def test_bad_weights(case, copy_of, capsys):
    name, change, message = WEIGHTS[case]
    folder = copy_of(name)
    changed_weights(folder, change)
    refused(folder, message, capsys)


def test_files_of_weights_that_are_none(copy_of, capsys):
    folder = copy_of()
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for content in (
        b"",
        whole[:-1],
        whole[: len(whole) // 2],
        whole[:4],
        struct.pack("<Q", 2**62) + whole[8:],
        struct.pack("<Q", 10) + b"[" * 10,
        whole + b"more",
    ):
        file.write_bytes(content)
        refused(folder, "model.safetensors", capsys)
    file.unlink()
    index = {"metadata": {}, "weight_map": {"x": "../../../etc/passwd"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "which is no file beside it", capsys)


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_pickled_weights_are_not_loaded(copy_of, tmp_path, capsys):
    folder = copy_of()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
    refused(folder, "", capsys)
    assert not (tmp_path / "harm").exists()


def test_bad_tokenizers(copy_of, saved, capsys):
    folder = copy_of()
    whole = json.loads((folder / "tokenizer.json").read_text())
    for content in (b"", b"{", b"null", b"[]", b"[" * 10**5, b'{"model": 3}'):
        (folder / "tokenizer.json").write_bytes(content)
        assert command(["predict", str(folder), "--text", "apple"]) == 2
        assert capsys.readouterr().err.count("glocal-xml: error:") == 1
    whole["model"]["vocab"]["apple"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="ids up to 5000, the encoder has embeddings for 64"):
        open_pipeline(str(folder))


@pytest.mark.parametrize("length", [-1, 0, 2, 3.5, float("nan"), float("inf"), "x", []])
def test_bad_lengths_of_tokenizers(copy_of, length, capsys):
    folder = copy_of()
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": length}))
    assert command(["predict", str(folder), "--text", "apple"]) == 2
    error = capsys.readouterr().err
    assert error.count("glocal-xml: error:") == 1 and str(folder) in error


def test_a_tokenizer_without_its_settings_is_none(copy_of):
    folder = copy_of()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no tokenizer_config\.json"):
        open_pipeline(str(folder))
