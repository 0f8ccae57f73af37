"""Contributions add up to the logit of their branch, and every form shows their sign."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS
from tiny_model import LABEL_NAMES, save_tiny_model
from transformers import AutoModel, BertTokenizerFast

from glocal_xml import (
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    LightAttentionConfig,
    LightAttentionForMultiLabel,
    MEXMLConfig,
    MEXMLForMultiLabel,
    explain,
)
from glocal_xml.data import train_word_tokenizer
from glocal_xml.explain import Explanation, LabelExplanation, Word
from glocal_xml.explain.printable import signed
from glocal_xml.explain.words import ReadWords
from glocal_xml.modeling import WordLSTMConfig

TEXT = "apple banana, apple MOON unknown"
NAMES = ["v", "w", "x", "y", "z"]
EVIDENCE = {"attention_scoring": "evidence", "label_bias": True}
# A model adds up in single precision, an explanation in double: sums of ten tokens differ in the last digits of the
# former, and the way back from a probability, here of 0.01 to 0.99, costs two digits at most.
TOLERANCE = {"rel": 1e-4, "abs": 1e-5}


def build(family, config, **options):
    """A model whose labels and biases differ from each other."""
    torch.manual_seed(0)
    model = family(config(encoder=ENCODER_CONFIGS["bert"](), num_labels=len(NAMES), **options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "label_" in name or "level_" in name or "bias" in name:
                parameter.normal_(std=0.4)
    if options.get("tree_levels"):
        model.set_label_tree([torch.tensor([0, 2, 5])], torch.tensor([3, 0, 4, 1, 2]))
    model.set_label_names(NAMES)
    return model


FAMILIES = {
    "GlocalXML": (GlocalXMLForMultiLabel, GlocalXMLConfig, {}),
    "GlocalXML, tied": (GlocalXMLForMultiLabel, GlocalXMLConfig, {"tied_outputs": True, "temperature": 2.0}),
    "ME-XML": (MEXMLForMultiLabel, MEXMLConfig, {"experts": ["D-3", "A-1", "A-2"]}),
    "LightAttention": (LightAttentionForMultiLabel, LightAttentionConfig, {}),
}
TREES = [{}, {"tree_levels": [2]}]


@pytest.fixture(params=[(name, tree) for name in FAMILIES for tree in TREES], ids=lambda p: f"{p[0]} {bool(p[1])}")
def evidence_model(request):
    name, tree = request.param
    family, config, options = FAMILIES[name]
    return build(family, config, **EVIDENCE, **options, **tree)


def total(label):
    return sum(label.word_contributions) + sum(label.other_contributions.values()) + label.bias


def log_odds(probability):
    return math.log(probability / (1 - probability))


def test_they_sum_to_the_logit_of_the_branch(evidence_model, tokenizer):
    model, inputs = evidence_model, tokenizer(TEXT, return_tensors="pt")
    for branch in model.attention_branches():
        explanation = explain(model, tokenizer, TEXT, labels=NAMES, branch=branch)
        scores = model.score_labels(torch.arange(len(NAMES)), **inputs)[branch][0].tolist()
        assert explanation.measure == "contributions" and explanation.branch == branch
        for label, score in zip(explanation.labels, scores, strict=True):
            assert total(label) == pytest.approx(label.logit, rel=1e-12, abs=1e-12)
            if model.config.tree_levels:
                # The label given its cluster, times the way down to that.
                assert 0.0 < label.cluster_score < 1.0
                score = score / label.cluster_score
            else:
                assert label.cluster_score is None
            assert 0.01 < score < 0.99
            assert label.logit == pytest.approx(log_odds(score), **TOLERANCE)
            assert set(label.other_contributions) == {"[CLS]", "[SEP]"}
    biases = [label.bias for label in explanation.labels]
    assert biases == pytest.approx(
        model.branch_heads()[branch].label_embeddings.read().biases(torch.arange(len(NAMES))).tolist()
    )
    assert len(set(biases)) == len(NAMES)


def test_what_is_shown_sums_to_the_logit(evidence_model, tokenizer):
    for num_words in (0, 2, 20):
        explanation = explain(evidence_model, tokenizer, TEXT, num_words=num_words)
        for row, label in enumerate(explanation.labels):
            rest = explanation.rest(row)
            assert ("other words" in dict(rest)) == (num_words < 20)
            shown = [value for _, value in [*label.words, *rest]]
            assert sum(shown) == pytest.approx(label.logit, abs=1e-12)
            # The same for what people see, up to the half of a hundredth that rounding costs.
            words, rest = explanation.addends(row)
            numbers = [float(signed(value)) for _, value in [*words, *rest]]
            assert 0.0 not in numbers
            assert sum(numbers) == pytest.approx(label.logit, abs=0.005 * (len(TEXT.split()) + 6))


def test_words_have_both_signs_and_the_largest_come_first(tokenizer):
    model = build(*FAMILIES["GlocalXML"][:2], **EVIDENCE)
    explanation = explain(model, tokenizer, TEXT, labels=NAMES)
    inputs = tokenizer(TEXT, return_tensors="pt")
    tokens = model.word_contributions(torch.arange(len(NAMES)), **inputs)[0]
    attention = model.label_word_attention(torch.arange(len(NAMES)), **inputs)[0]
    for row, label in enumerate(explanation.labels):
        # [CLS] apple banana , apple moon [UNK] [SEP]
        assert label.word_contributions == pytest.approx(tokens[row, 1:-1].tolist(), **TOLERANCE)
        assert label.word_weights == pytest.approx(attention[row, 1:-1].tolist(), **TOLERANCE)
        assert label.word_values is label.word_contributions
        assert dict(label.words)["apple"] == pytest.approx((tokens[row, 1] + tokens[row, 4]).item(), **TOLERANCE)
        sizes = [abs(value) for _, value in label.words]
        assert sizes == sorted(sizes, reverse=True)
    signs = {value > 0 for label in explanation.labels for value in label.word_contributions}
    assert signs == {True, False}


def test_all_branches_sum_to_the_mean_of_their_logits(tokenizer):
    model = build(*FAMILIES["ME-XML"][:2], **EVIDENCE, **FAMILIES["ME-XML"][2])
    parts = {name: explain(model, tokenizer, TEXT, labels=NAMES, branch=name).labels for name in ("A-1", "A-2")}
    together = explain(model, tokenizer, TEXT, labels=NAMES, branch="all")
    assert "mean of their logits" in together.meaning()
    for row, label in enumerate(together.labels):
        shares = {name: label.branch_scores[name] for name in parts}
        mean = sum(shares[name] * parts[name][row].logit for name in parts) / sum(shares.values())
        assert label.logit == pytest.approx(mean, **TOLERANCE)
        assert total(label) == pytest.approx(label.logit, abs=1e-12)


def test_sub_words_are_summed_and_blanks_have_a_name(tmp_path):
    pieces = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "moon", "##light", "fox", "\u200d"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), model_max_length=64)
    model = build(*FAMILIES["GlocalXML"][:2], **EVIDENCE)
    label = explain(model, tokenizer, "moonlight fox", labels=["x"]).labels[0]
    tokens = model.word_contributions([2], **tokenizer("moonlight fox", return_tensors="pt"))[0, 0].tolist()
    assert label.word_contributions == pytest.approx([tokens[1] + tokens[2], tokens[3]], **TOLERANCE)
    assert list(label.other_contributions.values()) == pytest.approx([tokens[0], tokens[-1]], **TOLERANCE)


def test_words_of_an_lstm_add_up():
    """No special tokens there: words and bias are all."""
    tokenizer = train_word_tokenizer(["apple banana, fox", "Apple banana fox"])
    encoder = WordLSTMConfig(vocab_size=len(tokenizer), embedding_size=4, lstm_size=4)
    model = LightAttentionForMultiLabel(LightAttentionConfig(encoder=encoder, num_labels=2, **EVIDENCE))
    model.start_label_bias(torch.tensor([-1.0, 0.5]))
    model.set_label_names(["x", "y"])
    for label in explain(model, tokenizer, "APPLE, unknown: fox!").labels:
        assert label.other_contributions == {} and len(label.word_contributions) == 3
        assert total(label) == pytest.approx(log_odds(label.score), **TOLERANCE)


def test_tokens_between_words_are_not_lost():
    # Special, a word, a blank, a word with the blank before it.
    read = ReadWords("a  b", [(0, 0), (0, 1), (1, 2), (2, 4)])
    assert [word.text for word in read.words] == ["a", "b"] and read.wordless == [0, 2]


def test_a_model_without_biases(tokenizer):
    model = build(*FAMILIES["GlocalXML"][:2], attention_scoring="evidence", label_bias=False)
    explanation = explain(model, tokenizer, TEXT, labels=["x"])
    assert explanation.labels[0].bias == 0.0 and "bias" not in dict(explanation.rest(0))
    score = explanation.labels[0].branch_scores["local"]
    assert total(explanation.labels[0]) == pytest.approx(log_odds(score), **TOLERANCE)


@pytest.mark.parametrize("text", ["", "[SEP] apple [CLS]", "\u200f", "👩‍💻 apple"])
def test_odd_texts_add_up(text, tokenizer):
    model = build(*FAMILIES["GlocalXML"][:2], **EVIDENCE)
    for label in explain(model, tokenizer, text, labels=NAMES).labels:
        assert total(label) == pytest.approx(log_odds(label.branch_scores["local"]), **TOLERANCE)


@pytest.mark.parametrize("name", ["GlocalXML", "ME-XML", "LightAttention"])
@pytest.mark.parametrize("tree", TREES, ids=["flat", "tree"])
def test_scoring_by_an_mlp_has_attention_alone(name, tree, tokenizer):
    family, config, options = FAMILIES[name]
    model = build(family, config, attention_scoring="mlp", **options, **tree)
    explanation = explain(model, tokenizer, TEXT, labels=NAMES)
    assert explanation.measure == "attention" and "share of the label's attention" in explanation.meaning()
    weights = model.label_word_attention(torch.arange(len(NAMES)), **tokenizer(TEXT, return_tensors="pt"))[0]
    # As far as single precision goes.
    assert weights.sum(dim=1).tolist() == pytest.approx([1.0] * len(NAMES), abs=1e-6)
    for row, label in enumerate(explanation.labels):
        special = weights[row, 0] + weights[row, -1]
        assert sum(label.word_weights) + special.item() == pytest.approx(1.0, abs=1e-6)
        assert label.words[0][1] == max(value for _, value in label.words)
        fields = (label.word_contributions, label.other_contributions, label.bias, label.logit, label.cluster_score)
        assert fields == (None,) * 5 and explanation.rest(row) == []
    assert "read: " in explanation.to_text() and "adds: " not in explanation.to_text()


@pytest.fixture(scope="module")
def signed_explanation():
    """Made by hand, so that every number is known."""
    text = "good bad bias plain"
    words = [Word("good", 0, 4), Word("bad", 5, 8), Word("bias", 9, 13), Word("plain", 14, 19)]
    label = LabelExplanation(
        label="<b>label</b>",
        score=0.5,
        branch_scores={"global": 0.4, "local": 0.6},
        local_share=0.6,
        word_weights=[0.3, 0.4, 0.1, 0.1],
        words=[("good", 2.0), ("bad", -1.5), ("bias", 0.001)],
        word_contributions=[2.0, -1.5, 0.001, 0.25],
        other_contributions={"[CLS]": -0.25, "[SEP]": 0.0},
        bias=-1.0,
        logit=-0.499,
    )
    return Explanation(text, words, [label], "local", False, "contributions")


def test_text_has_signs(signed_explanation):
    lines = signed_explanation.to_text().splitlines()
    assert lines[1].endswith(
        "adds: good +2.00, bad -1.50, (other words) +0.25, ([CLS]) -0.25, (bias) -1.00 = logit -0.50"
    )
    assert "+ speaks for the label, - against it" in " ".join(line.strip() for line in lines[2:])
    assert len(signed_explanation.to_text(legend=False).splitlines()) == 2
    coloured = signed_explanation.to_text(color=True)
    assert "\x1b[1;32mgood +2.00\x1b[0m" in coloured and "\x1b[1;31mbad -1.50\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]+m", "", coloured) == signed_explanation.to_text()


def test_page_has_signs_and_a_legend(signed_explanation):
    page = signed_explanation.to_html()
    assert re.search(r'<li class="for"><b><bdi lang="">good</bdi></b> \+2.00</li>', page)
    assert re.search('<li class="against"><b><bdi lang="">bad</bdi></b> \N{MINUS SIGN}1.50</li>', page)
    assert '<li class="rest">bias \N{MINUS SIGN}1.00</li>' in page
    assert '<li class="sum">= logit \N{MINUS SIGN}0.50</li>' in page
    assert "for the label</mark>" in page and "against it</mark>" in page and "what it adds to the label" in page
    assert "<b>label</b>" not in page
    marks = re.findall(r'<mark style="background:rgba\(([\d,]+),([\d.]+)\)([^"]*)" title="([^"]*)">(\w+)</mark>', page)
    assert [(strength, title, word) for _, strength, _, title, word in marks] == [
        ("0.60", "+2.000, attention 0.300", "good"),
        ("0.45", "\N{MINUS SIGN}1.500, attention 0.400", "bad"),
        ("0.07", "+0.250, attention 0.100", "plain"),
    ]
    # Signs are told apart by colour and by a line.
    assert marks[0][0] == marks[2][0] != marks[1][0]
    assert ["dashed" in style for _, _, style, _, _ in marks] == [False, True, False]


def test_a_tree_is_said_to_be_there(signed_explanation):
    below = replace(signed_explanation, labels=[replace(signed_explanation.labels[0], cluster_score=0.9)])
    assert "given its cluster" in below.meaning() and "given its cluster" not in signed_explanation.meaning()
    assert "= logit -0.50, cluster 0.90" in below.to_text() and "its cluster: 0.90" in below.to_html()


def test_figure_has_signs_and_the_whole_sum(signed_explanation):
    axis = signed_explanation.figure().axes[0]
    image = axis.images[0]
    assert image.get_array().tolist() == [[2.0, -1.5, 0.001]] and image.get_clim() == (-2.0, 2.0)
    names = [tick.get_text() for tick in axis.get_xticklabels()]
    words, rest = ["good", "bad", "bias"], ["(other words)", "([CLS])", "([SEP])", "(bias)", "= logit, local"]
    assert names == [*words, *rest]
    written = {round(text.get_position()[0]): text.get_text() for text in axis.texts}
    assert [written[column] for column in range(len(names))] == [
        *("+2.00", "-1.50", "0.00"),
        *("+0.25", "-0.25", "0.00", "-1.00", "-0.50"),
    ]


def test_json_has_all_parts(signed_explanation):
    content = json.loads(json.dumps(signed_explanation.to_dict()))
    assert content["measure"] == "contributions"
    label = content["labels"][0]
    parts = [*label["word_contributions"], *label["other_contributions"].values(), label["bias"]]
    assert sum(parts) == pytest.approx(label["logit"]) and label["word_weights"] == [0.3, 0.4, 0.1, 0.1]


def test_hostile_names_stay_text_with_contributions(encoder_folder, tokenizer, tmp_path):
    model = AutoModel.from_pretrained(save_tiny_model(tmp_path, encoder_folder, tokenizer))
    explanation = explain(model, tokenizer, "apple <script>alert(2)</script> \x1b[31mfox\x00", labels=LABEL_NAMES)
    assert explanation.measure == "contributions"
    page = explanation.to_html()
    assert "<script" not in page and not re.search(r"[\x00\x1b]", page + explanation.to_text())
    assert explanation.figure().axes


def test_an_empty_text_with_contributions(tokenizer):
    explanation = explain(build(*FAMILIES["GlocalXML"][:2], **EVIDENCE), tokenizer, "", labels=["x"])
    assert explanation.words == [] and "(bias)" in explanation.to_text() and "no word" in explanation.to_html()
    with pytest.raises(ValueError, match="nothing to draw"):
        explanation.figure()
