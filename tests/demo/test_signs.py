"""The page shows what speaks for a label and what against it."""

from glocal_xml.demo.rendering import words_read
from glocal_xml.explain import Explanation, LabelExplanation, Word


def explanation(measure, **fields):
    words = [Word("good", 0, 4), Word("<i>", 5, 8)]
    label = LabelExplanation("x", 0.5, {"local": 0.5}, 1.0, [0.7, 0.2], [("good", 2.0), ("<i>", -1.5)], **fields)
    return Explanation("good <i>", words, [label], "local", False, measure)


def test_contributions_have_signs_and_sum_to_the_logit():
    fields = {"word_contributions": [2.0, -1.5], "other_contributions": {"[CLS]": 0.25}, "bias": -1.0, "logit": -0.25}
    page = words_read(explanation("contributions", **fields), 0)
    minus = "\N{MINUS SIGN}"
    assert '<span class="for"><bdi>good</bdi> +2.00</span>' in page
    assert f'<span class="against"><bdi>&lt;i&gt;</bdi> {minus}1.50</span>' in page
    assert f"([CLS]) +0.25, (bias) {minus}1.00 = logit {minus}0.25" in page
    assert "for the label</mark>" in page and "against it</mark>" in page and "what it adds to the label" in page
    assert "<i>" not in page


def test_attention_is_said_to_be_that():
    page = words_read(explanation("attention"), 0)
    assert "read most: " in page and "share of the label" in page and 'class="for"' not in page
