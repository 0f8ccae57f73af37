"""Names of labels can be given and read as elsewhere in Transformers, and are kept beside the weights."""

import pytest
from tiny_encoders import ENCODER_CONFIGS
from transformers import AutoConfig, AutoModel, pipeline

from glocal_xml.modeling import GlocalXMLConfig, GlocalXMLForMultiLabel

NAMES = {0: "red", 1: "green", 2: "blue"}
DEFAULT = {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}


def make_config(**fields):
    return GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), **{"num_labels": 3, **fields})


def test_a_configuration_has_default_names_for_its_labels():
    config = make_config()
    assert config.id2label == DEFAULT and config.label2id == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    config.num_labels = 2
    assert list(config.id2label.values()) == ["LABEL_0", "LABEL_1"]
    assert not {"id2label", "label2id"} & config.to_dict().keys()
    # Where there are no logits to name there is no table either.
    assert make_config(num_labels=60_000).id2label is None


@pytest.mark.compatibility("Loading and saving", "`id2label`", "works; the names are in `labels.txt`", since="0.1")
def test_given_names_are_kept_with_the_weights(tokenizer, tmp_path):
    model = GlocalXMLForMultiLabel(make_config(id2label=NAMES, label2id={name: i for i, name in NAMES.items()})).eval()
    assert model.label_names == ["red", "green", "blue"]
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.label_names == model.label_names and loaded.config.id2label == NAMES
    for task in ("extreme-multi-label-classification", "text-classification"):
        (found,) = pipeline(task, model=loaded, tokenizer=tokenizer, top_k=3)(["apple"])
        assert {row["label"] for row in found} == set(NAMES.values())
    others = {0: "one", 1: "two", 2: "three"}
    assert AutoModel.from_pretrained(tmp_path, id2label=others).label_names == list(others.values())


def test_a_new_model_has_default_names(tokenizer, tmp_path):
    model = GlocalXMLForMultiLabel(make_config()).eval()
    (found,) = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=3)(["apple"])
    assert {row["label"] for row in found} == set(DEFAULT.values())
    # They are no names of somebody's, and are not written down.
    model.save_pretrained(tmp_path)
    assert model.label_names is None and not (tmp_path / "labels.txt").exists()


def test_a_configuration_alone_has_the_names_of_its_folder(tmp_path):
    GlocalXMLForMultiLabel(make_config(id2label=NAMES)).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).id2label == NAMES
    assert AutoConfig.from_pretrained(tmp_path, num_labels=2).id2label == {0: "LABEL_0", 1: "LABEL_1"}


def test_keys_of_names_may_be_strings_as_in_json():
    names = {i: f"name {i}" for i in range(12)}
    keys = {str(i): name for i, name in sorted(names.items(), key=lambda item: str(item[0]))}
    model = GlocalXMLForMultiLabel(make_config(num_labels=12))
    model.config.id2label = keys
    assert model.config.id2label == names
    assert GlocalXMLForMultiLabel(model.config).label_names == list(names.values())


def test_names_that_the_configuration_is_given_later_are_kept(tokenizer, tmp_path):
    model = GlocalXMLForMultiLabel(make_config()).eval()
    model.config.id2label = NAMES
    found = pipeline("extreme-multi-label-classification", model=model, tokenizer=tokenizer)("apple")
    assert {row["label"] for row in found} == set(NAMES.values())
    model.config.id2label = {0: "one", 1: "two", 2: "three"}
    model.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).label_names == ["one", "two", "three"]


@pytest.mark.parametrize("names", [["a", "a", "b"], ["a", "b", 3], "abc", {"a", "b", "c"}, ["a", "b\n", "c"]])
def test_names_that_are_no_list_of_different_strings_are_refused(names):
    with pytest.raises(ValueError, match=r"[Ll]abel name"):
        GlocalXMLForMultiLabel(make_config()).set_label_names(names)


def test_names_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`id2label` names 1 labels: pass `num_labels=1`"):
        make_config(id2label={0: "red"})
    with pytest.raises(ValueError, match="ids 0 to 2"):
        make_config(id2label={1: "red", 2: "green", 3: "blue"})
    GlocalXMLForMultiLabel(make_config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="`id2label` names 2 labels"):
        AutoModel.from_pretrained(tmp_path, id2label={0: "red", 1: "green"})
