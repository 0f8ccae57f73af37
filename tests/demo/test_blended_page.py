"""The page of a blended model: what each part adds in plain words, similar training texts, and long texts."""

from dataclasses import replace

import pytest
import torch
from tiny_encoders import WORDS

from glocal_xml.demo.actions import MOST_SHOWN, Actions, readable_part
from glocal_xml.demo.rendering import parts_of, reasons
from glocal_xml.demo.tagger import Tagger
from glocal_xml.experts import ExpertTexts, fit_experts, fixed_blend
from glocal_xml.modeling import TextExpertsConfig, TextExpertsForMultiLabel


@pytest.fixture(scope="module")
def tagger(tokenizer, tmp_path_factory):
    """Of a model without an encoder, whose texts name their labels."""
    names, folder = WORDS[:4], tmp_path_factory.mktemp("experts")
    model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=len(names)))
    model.set_label_names(names)
    texts = [f"{names[i % 4]} {WORDS[4 + i % 13]}" for i in range(20)]
    fitted = ExpertTexts.from_texts(texts, [[i % 4] for i in range(20)], tokenizer)
    fit_experts(model, fitted, tokenizer, workers=1, show_progress=False)
    model.set_blend(fixed_blend(model.branch_names), torch.zeros(len(names)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Tagger(str(folder))


def test_all_parts_are_shown_in_plain_words(tagger):
    assert tagger.why_no_reasons() is None
    explanation = tagger.explain("banana moon", ["banana"])
    label, page = explanation.labels[0], reasons(explanation)
    assert sum(parts_of(label).values()) == pytest.approx(label.logit, abs=0.01)
    assert '<li class="chip for"><bdi>banana</bdi> +' in page
    for part in parts_of(label):
        assert f"<span>{part}</span>" in page and f"<b>{part}</b>: " in page
    assert {"single words", "similar texts"} <= parts_of(label).keys()
    assert "Similar training texts with this label" in page and "<li>Training text " in page
    for jargon in ("logit", "lexical", "memory", "bias", "encoder"):
        assert jargon not in page


def test_a_book_is_read_whole_and_shown_by_its_start(tagger):
    text = "moon night " * 5000 + "banana"
    explanation = tagger.explain(text, ["banana", "apple"])
    assert len(explanation.words) == 10_001 and not explanation.truncated
    assert explanation.labels[0].word_contributions[-1] > 0 > explanation.labels[1].word_contributions[-1]
    shown = readable_part(explanation)
    assert len(shown.text) == MOST_SHOWN + 1 and shown.words[-1].end <= MOST_SHOWN
    for whole, start in zip(explanation.labels, shown.labels, strict=True):
        # What further words add is part of the sum.
        assert parts_of(start) == pytest.approx(parts_of(whole), abs=1e-6)
    short = tagger.explain("banana moon", ["banana"])
    assert readable_part(short) is short


def test_how_much_the_encoder_read_is_said(tagger):
    explanation = replace(tagger.explain("banana moon", ["banana"]), encoder_characters=6)
    assert "its meaning as a whole is that of its first 6 characters" in reasons(explanation)


def test_likely_labels_are_shown_and_others_on_request(tagger):
    def shown(threshold, top_k=4):
        labels, _ = next(Actions(tagger).answer("banana moon", top_k, threshold, ""))
        return labels

    scores = [entry["score"] for entry in Actions(tagger).predict("banana moon")]
    likely, more = shown((scores[0] + scores[1]) / 2).split("<details>")
    assert likely.count("<button") == 1 and more.count("<button") == 3 and "3 less likely labels" in more
    assert "<details>" not in shown(0.0) and "1 less likely label<" in shown(0.0, 3)
    none = shown(1.0)
    assert "No label reaches 100%" in none and none.count("<button") == 4 and "<details>" not in none
