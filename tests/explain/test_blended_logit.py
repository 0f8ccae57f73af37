"""All parts of a blended logit are shown, and sum to the logit of the final score."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from blended_models import FAMILIES, NAMES, blended_model, training_texts
from transformers import PreTrainedTokenizerFast, pipeline

from glocal_xml import explain
from glocal_xml.experts import remove_from_memory
from glocal_xml.explain import Explanation, LabelExplanation, SimilarText, Word
from glocal_xml.explain.blended_logit import lexical_contributions
from glocal_xml.modeling import GlocalXMLForMultiLabel

TEXT = "apple fox, moon: apple queen"
# Longer than the 8 tokens that the encoder is given of it.
LONG = "apple fox moon queen lemon paper dog night ocean kite banana house cherry dog"
# Without a tree above the labels of the lexical expert, and with one of clusters.
TREES = {"flat": {}, "clusters": {"cluster_size": 2}}


def total(label):
    parts = [*label.word_contributions, *label.other_contributions.values(), *label.parts.values()]
    return sum(parts) + label.bias


def log_odds(probability):
    return math.log(probability / (1 - probability))


def assert_sums(explanation, model, inputs, labels=NAMES):
    """Against the logits that the model itself gives for the text."""
    with torch.no_grad():
        logits = model(**inputs, output_logits=True).logits[0]
    assert [label.label for label in explanation.labels] == list(labels)
    for label in explanation.labels:
        assert total(label) == pytest.approx(label.logit, abs=1e-9)
        assert label.logit == pytest.approx(logits[NAMES.index(label.label)].item(), abs=1e-4)
        assert log_odds(label.score) == pytest.approx(label.logit, abs=1e-3)


def model_inputs(model, tokenizer, text, **options):
    inputs = dict(tokenizer(text, return_tensors="pt", truncation=True, **options))
    if model.text_experts():
        ids = tokenizer(text, add_special_tokens=False)["input_ids"] or [-100]
        inputs["text_ids"] = torch.tensor([ids])
    return inputs


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", FAMILIES)
def test_parts_sum_to_the_final_logit(name, tree, tokenizer):
    model = blended_model(name, tokenizer, encoder="xlnet" if "APLC" in name else "bert", **TREES[tree])
    assert len(model.config.lexical["levels"]) == (1 if tree == "clusters" else 0)
    for text in (TEXT, "unknown", ""):
        explanation = explain(model, tokenizer, text, labels=NAMES)
        assert explanation.branch == "blend" and explanation.measure == "contributions"
        assert_sums(explanation, model, model_inputs(model, tokenizer, text))
        assert not explanation.truncated and explanation.encoder_characters is None
    heads = {name for name, head in model.branch_heads().items() if name not in ("local", "attention", "A-1", "A-2")}
    if "mlp" in name:
        heads |= {"local"}
    below_tree = {"tree"} if "tree" in name else set()
    memories = model.text_experts().keys() - {"lexical"}
    assert set(explanation.labels[0].parts) == heads | below_tree | memories | {"frequency"}
    assert explanation.labels[0].local_share is None


@pytest.mark.parametrize("experts", [(), ("lexical",), ("memory",), ("dense",)], ids=str)
def test_a_blend_of_any_experts(experts, tokenizer):
    model = blended_model("GlocalXML", tokenizer, experts)
    explanation = explain(model, tokenizer, TEXT, labels=NAMES)
    assert_sums(explanation, model, model_inputs(model, tokenizer, TEXT))
    assert set(explanation.labels[0].parts) == {"global", "frequency", *({"memory", "dense"} & set(experts))}
    assert bool(explanation.similar_texts) == bool({"memory", "dense"} & set(experts))


def test_words_are_those_of_head_and_lexical_expert(tokenizer):
    """Weights of one branch after the other set to nothing: what is left is the other's."""
    model = blended_model("GlocalXML", tokenizer)
    together = explain(model, tokenizer, TEXT, labels=["fox"]).labels[0].word_contributions
    weights, found = model.config.blend["weights"], {}
    for branch in ("local", "lexical"):
        model.config.blend["weights"] = {**weights, branch: 0.0, f"{branch}_bend": 0.0}
        found[branch] = explain(model, tokenizer, TEXT, labels=["fox"]).labels[0].word_contributions
    assert together == pytest.approx([sum(values) for values in zip(*found.values(), strict=True)], abs=1e-6)
    model.config.blend["weights"] = weights
    ids = tokenizer(TEXT, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    lexical, start = lexical_contributions(model.lexical, torch.tensor([NAMES.index("fox")]), ids)
    first, last = start.item(), start.item() + lexical.sum().item()
    # From end to end all tokens share one slope, whichever they had to themselves.
    bent = weights["lexical_bend"] * (max(last + 2, 0) - max(first + 2, 0)) / (last - first)
    assert bent < -0.05
    assert found["local"] == pytest.approx(((weights["lexical"] + bent) * lexical[0]).tolist(), abs=1e-5)
    # The word that names the label speaks for it most.
    words = dict(explain(model, tokenizer, TEXT, labels=["fox"]).labels[0].words)
    assert words["fox"] == max(words.values()) > 0


@pytest.mark.parametrize("name", ["GlocalXML", "GlocalXML, mlp", "no encoder"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_longer_than_the_encoder_reads(name, side, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path, truncation_side=side, padding_side=side)
    model = blended_model(name, tokenizer)
    explanation = explain(model, tokenizer, LONG, labels=NAMES, max_length=8)
    assert_sums(explanation, model, model_inputs(model, tokenizer, LONG, max_length=8))
    assert [word.text for word in explanation.words] == LONG.split() and not explanation.truncated
    # The last words have what the lexical expert gives them alone, and no attention.
    label, unread = explanation.labels[NAMES.index("cherry")], slice(8, None) if side == "right" else slice(0, 6)
    assert any(label.word_contributions[unread])
    if name == "no encoder":
        assert label.word_weights is None and explanation.partly_read() == ""
    else:
        assert not any(label.word_weights[unread]) and sum(label.word_weights) > 0
        six = " ".join(LONG.split()[:6] if side == "right" else LONG.split()[-6:])
        assert explanation.encoder_characters == len(six)
        assert f"read {len(six)} of {len(LONG)} characters" in explanation.to_text()
        assert f"read {len(six)} of {len(LONG)} characters" in explanation.to_html()


def test_without_the_lexical_expert_a_long_text_is_cut(tokenizer):
    model = blended_model("GlocalXML", tokenizer, ("memory",))
    explanation = explain(model, tokenizer, LONG, labels=NAMES, max_length=8)
    assert_sums(explanation, model, model_inputs(model, tokenizer, LONG, max_length=8))
    assert explanation.truncated and [word.text for word in explanation.words] == LONG.split()[:6]


def test_scores_are_those_of_the_pipeline(tokenizer):
    tokenizer = type(tokenizer)(vocab=tokenizer.get_vocab(), model_max_length=8)
    for name in ("GlocalXML", "no encoder"):
        model = blended_model(name, tokenizer)
        tag = pipeline("extreme-multi-label-classification", model=model, tokenizer=tokenizer)
        found = tag(LONG, top_k=3)
        labels = explain(model, tokenizer, LONG, top_k=3).labels
        assert [label.label for label in labels] == [entry["label"] for entry in found]
        assert [label.score for label in labels] == pytest.approx([entry["score"] for entry in found], abs=1e-5)


def test_attention_where_no_branch_adds_up_over_words(tokenizer):
    model = blended_model("GlocalXML, mlp", tokenizer, ("memory",))
    explanation = explain(model, tokenizer, TEXT, labels=NAMES)
    assert explanation.measure == "attention"
    for label in explanation.labels:
        assert label.word_contributions is None and set(label.parts) == {"global", "local", "memory", "frequency"}
        assert sum(label.parts.values()) + label.bias == pytest.approx(label.logit, abs=1e-9)
        assert log_odds(label.score) == pytest.approx(label.logit, abs=1e-3)
    lines = explanation.to_text()
    assert "read: " in lines and "(whole text: local)" in lines and "= logit" in lines
    assert "attention. Attention tells what" in explanation.to_html() and "= logit" in explanation.to_html()
    assert explanation.figure().axes


def test_a_branch_of_a_blended_model(tokenizer):
    model = blended_model("GlocalXML", tokenizer)
    label = explain(model, tokenizer, TEXT, labels=["fox"], branch="local").labels[0]
    assert label.parts == {} and label.local_share is None
    assert label.logit == pytest.approx(log_odds(label.branch_scores["local"]), abs=1e-4)
    with pytest.raises(ValueError, match="one of blend, local, all"):
        explain(model, tokenizer, TEXT, branch="lexical")
    with pytest.raises(ValueError, match="one of blend, got"):
        explain(blended_model("no encoder", tokenizer), tokenizer, TEXT, branch="local")


@pytest.mark.parametrize("name", ["GlocalXML", "GlocalXML, tree", "no encoder"])
def test_experts_without_a_blend(name, tokenizer):
    """The mean of probabilities is no sum of logits: a branch is explained, if one reads words."""
    model = blended_model(name, tokenizer)
    model.set_blend(None, None)
    if name == "no encoder":
        with pytest.raises(ValueError, match="no label-word attention"):
            explain(model, tokenizer, TEXT)
        return
    label = explain(model, tokenizer, TEXT, labels=["fox"]).labels[0]
    assert set(label.branch_scores) == {"global", "local", "lexical", "memory", "dense"}
    score = label.branch_scores["local"] / (label.cluster_score or 1.0)
    assert label.logit == pytest.approx(log_odds(score), abs=1e-4)
    assert label.score == pytest.approx(sum(label.branch_scores.values()) / 5, abs=1e-5)
    assert label.local_share == pytest.approx(label.branch_scores["local"] / (5 * label.score), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "experts", "by"),
    [
        ("no encoder", ("memory",), "words"),
        ("GlocalXML", ("dense",), "meaning"),
        ("GlocalXML", ("memory", "dense"), "words and meaning"),
    ],
)
def test_similar_texts(name, experts, by, tokenizer):
    model, (texts, labels) = blended_model(name, tokenizer, experts), training_texts()
    explanation = explain(model, tokenizer, texts[7], labels=["fox", "apple"])
    first = explanation.similar_texts[0]
    assert first.number == 7 and first.similarity == pytest.approx(1.0, abs=1e-5) and first.by == by
    assert first.labels == [NAMES[label] for label in labels[7]]
    similarities = [text.similarity for text in explanation.similar_texts]
    assert similarities == sorted(similarities, reverse=True) and similarities[-1] > 0
    found = [text.number for text in explanation.similar_texts if text.number >= 0]
    assert len(found) == len(set(found))
    for text in explanation.similar_texts:
        if text.number >= 0:
            assert text.labels == [NAMES[label] for label in labels[text.number]]
        else:
            assert len(text.labels) == 1
    for row, label in enumerate(explanation.labels):
        assert all(label.label in text.labels for text in explanation.similar_with(row))
    remove_from_memory(model, [7])
    assert 7 not in [text.number for text in explain(model, tokenizer, texts[7]).similar_texts]


@pytest.fixture(scope="module")
def blend_explanation():
    """Made by hand, so that every number is known."""
    words = [Word("good", 0, 4), Word("bad", 5, 8), Word("plain", 9, 14)]
    label = LabelExplanation(
        label="<b>x</b>",
        score=0.82,
        branch_scores={"global": 0.4, "lexical": 0.6},
        local_share=None,
        word_weights=None,
        words=[("good", 2.0), ("bad", -1.0)],
        word_contributions=[2.0, -1.0, 0.25],
        other_contributions={"[CLS]": -0.25},
        parts={"global": 0.5, "memory": 0.25, "frequency": -0.75},
        bias=0.5,
        logit=1.5,
    )
    similar = [
        SimilarText(3, 0.75, ["y"]),
        SimilarText(9, 0.5, ["<b>x</b>", "y"], "meaning"),
        SimilarText(-1, 0.25, ["<b>x</b>"]),
    ]
    other = replace(label, label="z")
    return Explanation("good bad plain", words, [label, other], "blend", False, "contributions", similar)


def test_text_shows_the_sum(blend_explanation):
    lines = blend_explanation.to_text().splitlines()
    assert lines[1:5] == [
        " 0.82 <b>x</b>  (global 0.40, lexical 0.60)",
        "      adds: good +2.00, bad -1.00,",
        "            (other words) +0.25, (whole text: global) +0.50, (texts with similar words) +0.25, "
        "(label frequency) -0.75, ([CLS]) -0.25, (bias) +0.50 = logit +1.50",
        "      similar: training text 9 (meaning 0.50), the name of a label (words 0.25)",
    ]
    # No similar text has the other label.
    assert lines[5].startswith(" 0.82 z") and lines[8].startswith("  The number of a word")
    meaning = blend_explanation.meaning()
    assert (
        "whole text: global, texts with similar words, label frequency" in meaning
        and "sigmoid is the score" in meaning
    )


def test_page_shows_the_sum(blend_explanation):
    page = blend_explanation.to_html()
    chips = re.findall(r'<li class="(\w+)">(.*?)</li>', page.split("</details>")[0])
    shown = [(kind, re.sub("<[^<>]*>", "", text).replace("\N{MINUS SIGN}", "-")) for kind, text in chips]
    assert shown == [
        ("for", "good +2.00"),
        ("against", "bad -1.00"),
        ("rest", "other words +0.25"),
        ("rest", "whole text: global +0.50"),
        ("rest", "texts with similar words +0.25"),
        ("rest", "label frequency -0.75"),
        ("rest", "[CLS] -0.25"),
        ("rest", "bias +0.50"),
        ("sum", "= logit +1.50"),
    ]
    assert "Training text 9, similar meaning (0.50)" in page and "Training text 3" not in page
    assert "None of the training texts" in page and "<b>x</b>" not in page
    assert 'title="+2.000"' in page


def test_figure_and_json_show_the_sum(blend_explanation):
    names = [tick.get_text() for tick in blend_explanation.figure().axes[0].get_xticklabels()]
    parts = ["(whole text: global)", "(texts with similar words)", "(label frequency)"]
    assert names == ["good", "bad", "(other words)", *parts, "([CLS])", "(bias)", "= logit, blend"]
    content = json.loads(json.dumps(blend_explanation.to_dict()))
    assert content["similar_texts"][1] == {
        "number": 9,
        "similarity": 0.5,
        "labels": ["<b>x</b>", "y"],
        "by": "meaning",
    }
    assert content["labels"][0]["parts"] == {"global": 0.5, "memory": 0.25, "frequency": -0.75}


def test_the_start_of_an_explanation_has_the_same_sum(blend_explanation):
    start = blend_explanation.start(8)
    assert start.text == "good bad…" and [word.text for word in start.words] == ["good", "bad"]
    for row, label in enumerate(start.labels):
        assert label.other_contributions["further words"] == 0.25
        assert total(label) == pytest.approx(label.logit)
        assert sum(value for part in start.addends(row) for _, value in part) == pytest.approx(label.logit)
    assert blend_explanation.start(14) is blend_explanation


def test_a_blended_model_keeps_its_explanations_on_disk(tokenizer, tmp_path):
    model = blended_model("GlocalXML", tokenizer)
    model.save_pretrained(tmp_path)
    loaded = GlocalXMLForMultiLabel.from_pretrained(tmp_path)
    before, after = (explain(one, tokenizer, TEXT, labels=NAMES).to_dict() for one in (model, loaded))
    for old, new in zip(before["labels"], after["labels"], strict=True):
        assert new["parts"] == pytest.approx(old["parts"], abs=1e-5)
    assert [text["number"] for text in before["similar_texts"]] == [text["number"] for text in after["similar_texts"]]
