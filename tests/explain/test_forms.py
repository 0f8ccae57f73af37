"""An explanation as text, JSON, HTML and figure."""

import json
import re
import sys
from html import unescape
from html.parser import HTMLParser

import pytest
from tiny_model import save_tiny_model
from transformers import AutoModel, AutoTokenizer

from glocal_xml import explain

TEXT = 'Apple <img src=x onerror="alert(1)"> & moon\n\x1b[31mfox\x00 </p><script>alert(2)</script> 👩‍💻'


class Tags(HTMLParser):
    """All tags and attributes that a browser would see."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.open = [], set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def explanations(encoder_folder, tokenizer, tmp_path_factory):
    options = {"attention_scoring": "mlp"}  # signed contributions are in test_contributions.py
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), encoder_folder, tokenizer, **options)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = {"whole": (TEXT, None), "cut": ("apple moon fox night", 4), "empty": ("", None)}
    return {
        name: explain(model, tokenizer, text, top_k=3, max_length=length) for name, (text, length) in texts.items()
    }


def visible(fragment):
    return unescape(re.sub(r"<[^<>]*>", "", fragment))


def test_html_shows_the_text_and_runs_nothing(explanations):
    page = explanations["whole"].to_html()
    seen = Tags(page)
    assert not seen.open and {"details", "summary", "mark"} <= set(seen.tags)
    assert not {"script", "img", "link", "iframe", "a"} & set(seen.tags)
    assert not {name for name in seen.attributes if name.startswith("on")} | ({"src", "href"} & seen.attributes)
    assert "default-src 'none'" in page and "url(" not in page and "://" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not re.search(r"[\x00\x1b]", page)


def test_highlighted_html_marks_words_in_place(explanations):
    explanation = explanations["whole"]
    for row, label in enumerate(explanation.labels):
        fragment = explanation.highlighted_html(row)
        # Nothing is lost of the text, and control characters are made visible.
        assert visible(fragment) == TEXT.replace("\x1b", "␛").replace("\x00", "␀")
        marks = re.findall(r'<mark style="background:rgba\(245,158,11,([\d.]+)\)[^>]*>(.*?)</mark>', fragment)
        strongest = max(label.word_weights)
        wanted = [
            (f"{0.6 * weight / strongest:.2f}", word.text)
            for word, weight in zip(explanation.words, label.word_weights, strict=True)
            if weight >= 0.05 * strongest
        ]
        assert [(strength, unescape(word)) for strength, word in marks] == wanted and wanted
    assert Tags(explanation.highlighted_html(0)).tags[0] == "p"


def test_what_was_not_read_is_said(explanations):
    cut = explanations["cut"]
    assert '<span style="opacity:.6"> fox night</span>' in cut.highlighted_html(0)
    assert "was not read" in cut.to_html() and "10 of 20 characters" in cut.to_text()
    whole = explanations["whole"]
    assert "opacity" not in whole.highlighted_html(0)
    assert "was not read" not in whole.to_html() and "characters" not in whole.to_text()


def test_an_empty_text_has_all_forms_but_a_figure(explanations):
    empty = explanations["empty"]
    assert "no word" in empty.to_html() and visible(empty.highlighted_html(2)) == ""
    assert "(empty text)" in empty.to_text() and "read: nothing" in empty.to_text()
    with pytest.raises(ValueError, match="nothing to draw"):
        empty.figure()


def test_json_holds_everything(explanations):
    content = json.loads(json.dumps(explanations["whole"].to_dict()))
    assert content["text"] == TEXT and content["branch"] == "local" and content["truncated"] is False
    for word in content["words"]:
        assert TEXT[word["start"] : word["end"]] == word["text"]
    for label in content["labels"]:
        assert len(label["word_weights"]) == len(content["words"])
        assert set(label["branch_scores"]) == {"global", "local"}


def test_text_cannot_steer_the_terminal(explanations):
    plain, coloured = explanations["whole"].to_text(), explanations["whole"].to_text(color=True)
    assert "\x1b" not in plain and "\x00" not in plain and "␛[31mred" in plain
    assert re.sub(r"\x1b\[[\d;]+m", "", coloured) == plain != coloured
    assert all(f"{label.score:.2f}" in plain for label in explanations["whole"].labels)


def test_figure_has_a_cell_for_each_label_and_word(explanations):
    explanation = explanations["whole"]
    axis = explanation.figure().axes[0]
    cells = axis.images[0].get_array()
    words = [tick.get_text() for tick in axis.get_xticklabels()]
    assert cells.shape == (3, len(words))
    assert set(words) == {word for label in explanation.labels for word, _ in label.words}
    for row, label in enumerate(explanation.labels):
        for word, weight in label.words:
            assert cells[row, words.index(word)] == pytest.approx(weight)
    assert not any(tick.get_parse_math() for tick in axis.get_yticklabels())


def test_no_figure_without_its_package(explanations, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"glocal-xml\[analysis\]"):
        explanations["whole"].figure()
