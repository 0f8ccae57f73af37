"""The page shows what speaks for a label and what against it."""

import pytest

from glocal_xml.demo.rendering import percent, reasons
from glocal_xml.explain import Explanation, LabelExplanation, Word


def explanation(measure, branch="local", share=0.5, **fields):
    words = [Word("good", 0, 4), Word("<i>", 5, 8)]
    scores = {"global": 0.5, "local": 0.5}
    label = LabelExplanation("x", 0.5, scores, share, [0.7, 0.2], [("good", 2.0), ("<i>", -1.5)], **fields)
    return Explanation("good <i>", words, [label], branch, False, measure)


@pytest.mark.parametrize("branch", ["local", "blend"])
def test_words_have_signs_and_colours(branch):
    fields = {"word_contributions": [2.0, -1.5], "other_contributions": {"[CLS]": 0.25}, "bias": -1.0, "logit": -0.25}
    page = reasons(explanation("contributions", branch, **fields))
    minus = "\N{MINUS SIGN}"
    assert '<li class="chip for"><bdi>good</bdi> +2.00</li>' in page
    assert f'<li class="chip against"><bdi>&lt;i&gt;</bdi> {minus}1.50</li>' in page
    assert "<i>" not in page
    if branch == "blend":
        assert "<span>starting point</span>" in page and f'<span class="number">{minus}1.00</span>' in page
        assert "<span>other signs in the text</span>" in page and "[CLS]" not in page
        assert f"Sum: {minus}0.25, which is a score of 50%" in page


def test_attention_is_said_to_be_that_and_shares_are_shown():
    page = reasons(explanation("attention", share=0.25))
    assert "looked most at" in page and "does not say whether" in page and 'class="chip for"' not in page
    assert '<span>single words</span><span class="track"><span class="fill read" style="width:25.0%' in page
    assert "meaning of the whole text" in page and "Share of the score" in page
    assert "Share of the score" not in reasons(explanation("attention", share=1.0))


@pytest.mark.parametrize(
    ("score", "shown"), [(0.0, "0%"), (0.001, "<1%"), (0.005, "<1%"), (0.128, "13%"), (0.999, ">99%"), (1.0, "100%")]
)
def test_percent(score, shown):
    assert percent(score) == shown
