"""The page of a blended model: the whole sum, similar training texts, and long texts by their start."""

from dataclasses import replace

import pytest
import torch
from tiny_encoders import WORDS

from glocal_xml.demo.actions import MOST_SHOWN, readable_part
from glocal_xml.demo.rendering import words_read
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


def test_the_whole_sum_is_shown(tagger):
    assert tagger.why_no_words() is None
    page = words_read(tagger.explain("banana moon", ["banana"]), 0)
    assert '<span class="for"><bdi>banana</bdi> +' in page and "(similar texts) " in page and "= logit " in page
    assert "Similar training texts with this label" in page and "<li>Training text " in page
    assert "(similar texts) " in page and "sigmoid is the score" in page


def test_a_book_is_read_whole_and_shown_by_its_start(tagger):
    text = "moon night " * 5000 + "banana"
    explanation = tagger.explain(text, ["banana", "apple"])
    assert len(explanation.words) == 10_001 and not explanation.truncated
    assert explanation.labels[0].word_contributions[-1] > 0 > explanation.labels[1].word_contributions[-1]
    shown = readable_part(explanation)
    assert len(shown.text) == MOST_SHOWN + 1 and shown.words[-1].end <= MOST_SHOWN
    for row, label in enumerate(shown.labels):
        assert sum(value for part in shown.addends(row) for _, value in part) == pytest.approx(label.logit, abs=0.05)
    assert "(further words) +" in words_read(shown, 0)
    short = tagger.explain("banana moon", ["banana"])
    assert readable_part(short) is short


def test_how_much_the_encoder_read_is_said(tagger):
    explanation = replace(tagger.explain("banana moon", ["banana"]), encoder_characters=6)
    assert "Long: the encoder read 6 of 11 characters, the lexical expert all of them." in words_read(explanation, 0)
