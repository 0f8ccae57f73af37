"""How a new model of a run starts: dropout of its encoder, and its branches."""

import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS, LAYERED_ENCODERS
from transformers import AutoModel, BertConfig, DistilBertConfig, GPT2Config, T5Config, XLNetConfig

from glocal_xml.cli.train import main
from glocal_xml.runs import model as model_of_run
from glocal_xml.runs.model import encoder_options, freeze_layers
from glocal_xml.training import ModelArguments


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (BertConfig(), {"hidden_dropout_prob", "attention_probs_dropout_prob"}),
        (DistilBertConfig(), {"dropout", "attention_dropout"}),
        (GPT2Config(), {"attn_pdrop", "embd_pdrop", "resid_pdrop"}),
        (T5Config(), {"dropout_rate"}),
        (XLNetConfig(), {"dropout"}),
    ],
)
def test_dropout_goes_by_many_names(config, fields, tmp_path):
    config.save_pretrained(tmp_path)
    off = encoder_options(ModelArguments(encoder=str(tmp_path)))
    assert fields <= set(off) and set(off.values()) == {0.0}


@pytest.fixture
def flags(encoder_folder, text_file, tmp_path):
    return [
        *("--encoder", encoder_folder, "--train_file", text_file("train.jsonl", 60), "--validation_size", "0"),
        *("--metrics_at", "1", "--use_cpu", "true", "--max_steps", "1", "--output_dir", str(tmp_path / "run")),
    ]


@pytest.mark.parametrize(("flag", "kept"), [([], False), (["--encoder_dropout", "true"], True)])
def test_the_encoder_is_trained_without_its_dropout(flags, flag, kept, tmp_path, encoder_folder):
    config = BertConfig.from_pretrained(encoder_folder)
    config.hidden_dropout_prob = 0.1
    folder = tmp_path / "encoder"
    AutoModel.from_pretrained(encoder_folder, config=config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tmp_path / encoder_folder / name).read_bytes())
    main([*flags, *flag, "--encoder", str(folder)])
    assert AutoModel.from_pretrained(tmp_path / "run").config.encoder.hidden_dropout_prob == (0.1 if kept else 0.0)


@pytest.mark.parametrize(
    ("flag", "branches"),
    [
        ([], "global"),
        (["--experts", "memory"], "both"),
        (["--model_config", '{"branches": "both"}'], "both"),
        (["--label_tree", '{"cluster_size": 2}'], "both"),
    ],
)
def test_many_labels_have_no_local_branch_unless_asked_for(flags, flag, branches, tmp_path, monkeypatch):
    monkeypatch.setattr(model_of_run, "_MOST_LOCAL", 3)
    main([*flags, *flag])
    assert AutoModel.from_pretrained(tmp_path / "run").config.branches == branches


def test_frozen_layers_stay_as_they_are(flags, tmp_path, encoder_folder):
    main([*flags, "--frozen_layers", "2", "--max_steps", "2"])
    before, after = AutoModel.from_pretrained(encoder_folder), AutoModel.from_pretrained(tmp_path / "run").encoder
    moved = {
        name.split(".")[0] if "layer." not in name else int(name.split("layer.")[1].split(".")[0])
        for name, values in after.named_parameters()
        if not torch.equal(values, before.get_parameter(name))
    }
    assert moved == {2}


@pytest.mark.parametrize("kind", sorted(LAYERED_ENCODERS))
def test_any_encoder_can_have_frozen_layers(kind):
    encoder = AutoModel.from_config(ENCODER_CONFIGS[kind]())
    layers = next(part for part in encoder.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == 3)
    freeze_layers(encoder, 1)
    assert not any(p.requires_grad for p in (*layers[0].parameters(), encoder.get_input_embeddings().weight))
    assert all(p.requires_grad for layer in layers[1:] for p in layer.parameters())
    with pytest.raises(ValueError, match="must be 0 to 3, its number of layers, got 4"):
        freeze_layers(encoder, 4)
