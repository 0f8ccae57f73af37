import importlib
import pkgutil
from functools import partial

import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS

import glocal_xml
from glocal_xml import (
    APLCXLNet,
    APLCXLNetConfig,
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    LightAttentionForMultiLabel,
    MEXMLForMultiLabel,
    explain,
)
from glocal_xml.data.words import train_word_tokenizer
from glocal_xml.modeling import WordLSTMConfig

# Models compute in single precision, and round otherwise where other labels are scored beside the one in question.
close = partial(pytest.approx, rel=1e-4, abs=1e-6)


@pytest.fixture
def model(encoder_folder):
    torch.manual_seed(0)
    options = {"attention_scoring": "mlp", "mlp_size": 4}
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=["x", "y", "z"], **options)
    with torch.no_grad():
        model.local_head.label_embeddings.weight.normal_()
    return model.eval()


def test_the_name_is_the_function_whatever_is_imported():
    package = importlib.import_module("glocal_xml.explain")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"glocal_xml.explain.{module.name}")
    assert glocal_xml.explain is explain is package.explain


def test_words_and_scores(model, tokenizer):
    text = "apple banana, apple MOON"
    explanation = explain(model, tokenizer, text, top_k=2)
    best = explanation.labels[0]
    inputs = tokenizer(text, return_tensors="pt")
    output = model.predict_top_k(**inputs, top_k=2)
    assert best.label == model.label_names[output.top_k_ids[0, 0]]
    assert best.score == close(output.top_k_scores[0, 0].item())
    assert best.score == close(sum(best.branch_scores.values()) / 2)
    assert best.local_share == close(best.branch_scores["local"] / (2 * best.score))
    # [CLS] apple banana , apple moon [SEP]
    weights = model.label_word_attention(output.top_k_ids, **inputs)[0, 0].tolist()
    assert [word.text for word in explanation.words] == ["apple", "banana", ",", "apple", "MOON"]
    assert [text[word.start : word.end] for word in explanation.words] == [word.text for word in explanation.words]
    assert best.word_weights == close(weights[1:-1])
    # Repeated words add up, special tokens are left out.
    assert dict(best.words)["apple"] == close(weights[1] + weights[4])
    assert set(dict(best.words)) == {"apple", "banana", ",", "MOON"}
    assert [weight for _, weight in best.words] == sorted(dict(best.words).values(), reverse=True)
    assert not explanation.truncated and explanation.branch == "local"


def test_chosen_labels_and_mistakes(model, tokenizer):
    assert [item.label for item in explain(model, tokenizer, "fox", labels=["z", "x"]).labels] == ["z", "x"]
    # One name is no list of letters.
    assert [item.label for item in explain(model, tokenizer, "fox", labels="z").labels] == ["z"]
    with pytest.raises(ValueError, match="one string, got list"):
        explain(model, tokenizer, ["fox"])
    with pytest.raises(ValueError, match="no labels"):
        explain(model, tokenizer, "fox", labels=["unknown"])
    with pytest.raises(ValueError, match="num_words"):
        explain(model, tokenizer, "fox", num_words=-1)
    model.label_names = None
    with pytest.raises(ValueError, match="label names"):
        explain(model, tokenizer, "fox")


def test_a_model_without_attention_is_refused(tokenizer):
    encoder = ENCODER_CONFIGS["xlnet"]()
    model = APLCXLNet(APLCXLNetConfig(encoder=encoder, num_labels=4))
    model.set_label_names(["w", "x", "y", "z"])
    with pytest.raises(ValueError, match="no label-word attention"):
        explain(model, tokenizer, "fox")


def test_shares_through_a_label_tree(tokenizer):
    """The way down to a cluster is part of every branch, and cancels."""
    options = {"num_labels": 4, "tree_levels": [2], "mlp_size": 4}
    model = GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), **options)).eval()
    model.set_label_tree([torch.tensor([0, 2, 4])], torch.arange(4))
    model.set_label_names(["w", "x", "y", "z"])
    labels = []
    for _ in range(4):
        with torch.no_grad():
            model.level_classifiers[0].label_embeddings.weight.normal_()
        labels += explain(model, tokenizer, "fox moon", labels=["y"]).labels
    scores = [label.score for label in labels]
    assert max(scores) - min(scores) > 0.05
    assert scores == close([sum(label.branch_scores.values()) / 2 for label in labels])
    assert [label.local_share for label in labels] == close([labels[0].local_share] * 4)


def test_words_that_were_not_read(model, tokenizer):
    explanation = explain(model, tokenizer, "apple fox moon night", max_length=4)
    assert explanation.truncated and [word.text for word in explanation.words] == ["apple", "fox"]
    assert not explain(model, tokenizer, "apple fox", max_length=4).truncated


def test_words_of_chosen_experts(encoder_folder, tokenizer):
    torch.manual_seed(0)
    model = MEXMLForMultiLabel.from_encoder(encoder_folder, label_names=["x", "y"], experts=["A-1", "A-3", "D-3"])
    shown = {b: explain(model, tokenizer, "fox moon", labels=["x"], branch=b).labels[0] for b in (None, "A-1", "A-3")}
    assert shown[None].words == shown["A-1"].words != shown["A-3"].words
    scores = shown["A-3"].branch_scores
    assert set(scores) == {"A-1", "A-3", "D-3"}
    assert shown["A-3"].local_share == close((scores["A-1"] + scores["A-3"]) / sum(scores.values()))
    together = explain(model, tokenizer, "fox moon", labels=["x"], branch="all").labels[0]
    for i, weight in enumerate(together.word_weights):
        parts = scores["A-1"] * shown["A-1"].word_weights[i] + scores["A-3"] * shown["A-3"].word_weights[i]
        assert weight == close(parts / (scores["A-1"] + scores["A-3"]))
    with pytest.raises(ValueError, match="A-1, A-3"):
        explain(model, tokenizer, "fox", branch="D-3")


def test_words_of_a_word_tokenizer():
    tokenizer = train_word_tokenizer(["apple banana, fox", "Apple banana fox"])
    config = WordLSTMConfig(vocab_size=len(tokenizer), embedding_size=4, lstm_size=4)
    model = LightAttentionForMultiLabel(LightAttentionForMultiLabel.config_class(encoder=config, num_labels=2))
    model.set_label_names(["x", "y"])
    text = "APPLE, unknown: Cafe\u0301!"
    explanation = explain(model, tokenizer, text)
    assert [text[word.start : word.end] for word in explanation.words] == ["APPLE", "unknown", "Cafe\u0301"]
    assert explanation.labels[0].local_share == 1.0
    # Every token is a word here.
    assert sum(explanation.labels[0].word_weights) == close(1.0)
    assert explain(model, tokenizer, "").words == []


def test_empty_text(model, tokenizer):
    explanation = explain(model, tokenizer, "", top_k=1)
    assert explanation.words == explanation.labels[0].words == explanation.labels[0].word_weights == []


def test_half_a_character(model, tokenizer):
    explanation = explain(model, tokenizer, "apple \ud83d banana")
    words = [explanation.text[word.start : word.end] for word in explanation.words]
    assert (words[0], words[-1]) == ("apple", "banana")
