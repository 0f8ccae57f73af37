"""The page over HTTP, as programs see it, and what it shows of odd texts and hostile names."""

import csv
import json
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import gradio as gr
import httpx
import pytest
import torch
from close_rankings import assert_best
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from hostile_names import ATTACKS, LABELS
from transformers import AutoModel, AutoTokenizer, XLNetConfig, pipeline

from glocal_xml import APLCXLNet, APLCXLNetConfig, GlocalXMLForMultiLabel
from glocal_xml.demo import build_page
from glocal_xml.demo.actions import Actions, Mistake, beside_fields, text_digest
from glocal_xml.demo.tagger import Tagger

pytest_plugins = ["served_page"]

ODD_TEXTS = {
    "empty": "",
    "blank": " \n\t ",
    "emoji": "👩‍👩‍👧‍👦 apple 🏳️‍🌈",
    "control characters": "apple\x00\x07\x1b[31m\x7f dog",
    "half a character": "apple \ud83d dog",
    "right to left": "مرحبا \u202eapple\u202c שלום",
    "markup": "".join(ATTACKS),
    "one megabyte": "apple banana dog " * 62_000,
    "no space": "a" * 2**18,
}


@pytest.fixture(scope="module")
def client(page_url):
    return Client(page_url, verbose=False)


@pytest.fixture(scope="module")
def tag(page_model):
    return pipeline("extreme-multi-label-classification", model=page_model)


@pytest.fixture(scope="module")
def actions(page_model):
    return Actions(Tagger(page_model))


def answered(actions, text, top_k):
    """What is on the page in the end: the labels, and the reasons for the first."""
    (labels, _), (_, words) = actions.answer(text, top_k, 0.0, "")
    return labels, words


def test_predictions_are_those_of_the_pipeline(client, tag):
    found = client.predict("apple dog", top_k=3, api_name="/predict")
    assert len(found) == 3 and all("branch_scores" in entry for entry in found)
    assert_best(found, tag("apple dog", top_k=len(LABELS), branch_scores=True))
    found = client.predict("apple", candidate_labels=["animal", "fruit"], api_name="/predict")
    assert {entry["label"] for entry in found} == {"animal", "fruit"}
    between = (found[0]["score"] + found[1]["score"]) / 2
    kept = client.predict("apple", threshold=between, candidate_labels=["animal", "fruit"], api_name="/predict")
    assert len(kept) == 1 and kept[0]["label"] == found[0]["label"]
    assert kept[0]["score"] == pytest.approx(found[0]["score"], abs=1e-5)


def test_explanations(client):
    text = "apple dog, apple"
    found = client.predict(text, ["animal", "fruit"], api_name="/explain")
    assert [label["label"] for label in found["labels"]] == ["animal", "fruit"]
    assert [text[word["start"] : word["end"]] for word in found["words"]] == ["apple", "dog", ",", "apple"]
    assert len(found["labels"][0]["word_weights"]) == 4


def test_a_file(client, tag, tmp_path):
    texts = [f"apple {word}" for word in ("dog", "fox", "moon", "ice")] * 20 + [""]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(texts)), "utf-8")
    jsonl, table = client.predict(
        handle_file(file), "body", top_k=2, threshold=0, names="fruit\n=1+1", api_name="/tag_file"
    )
    assert jsonl.endswith("texts-tagged.jsonl") and table.endswith("texts-tagged.csv")
    with open(jsonl, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == list(range(81)) and [row["body"] for row in rows] == texts
    for row, expected in zip(rows[:4], tag(texts[:4], top_k=2, candidate_labels=["fruit", "=1+1"]), strict=True):
        assert len(row["predictions"]) == 2
        assert_best(row["predictions"], expected)
    with open(table, encoding="utf-8-sig", newline="") as lines:
        cells = list(csv.DictReader(lines))
    assert [cell["id"] for cell in cells] == [str(i) for i in range(81)]
    # What a spreadsheet would take for a formula is none any more.
    assert {cells[0]["label_1"], cells[0]["label_2"]} == {"fruit", "'=1+1"}


def test_mistakes_are_messages(client, tmp_path):
    with pytest.raises(AppError, match="no labels.*&lt;img src=x&gt;"):
        client.predict("apple", candidate_labels=["<img src=x>"], api_name="/predict")
    with pytest.raises(AppError, match="top_k"):
        client.predict("apple", top_k=0, api_name="/predict")
    with pytest.raises(AppError, match="string"):
        client.predict(["apple"], api_name="/predict")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "apple"}\n{"text": \n', "utf-8")
    options = {"text_column": "text", "top_k": 2, "threshold": 0, "names": ""}
    # The name of the file without the folder on the server.
    with pytest.raises(AppError, match="^broken.jsonl, line 2"):
        client.predict(handle_file(broken), **options, api_name="/tag_file")
    with pytest.raises(AppError, match="no file"):
        client.predict(None, **options, api_name="/tag_file")


def test_files_of_the_server_stay_there(client):
    options = {"text_column": "text", "top_k": 2, "threshold": 0, "names": ""}
    stolen = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    with pytest.raises(AppError) as error:
        client.predict(stolen, **options, api_name="/tag_file")
    assert "root" not in str(error.value)


@pytest.mark.parametrize("kind", ODD_TEXTS)
def test_odd_texts(kind, actions, page_url):
    text = ODD_TEXTS[kind]
    # As browsers send it, halves of characters included, which the client of Gradio cannot.
    body = json.dumps({"data": [text, 2, 0.0, None]})
    headers = {"Content-Type": "application/json"}
    call = httpx.post(f"{page_url}gradio_api/call/predict", content=body, headers=headers)
    event = httpx.get(f"{page_url}gradio_api/call/predict/{call.json()['event_id']}").text
    assert event.startswith("event: complete") and event.count('"branch_scores"') == (2 if text.strip() else 0)
    assert len(actions.explain(text, ["fruit"])["labels"]) == 1
    if text.strip():
        labels, words = answered(actions, text, 10)
        # What is shown stays small however long a text is, and can be sent.
        assert len(labels) < 20_000 and len(words.encode("utf-8")) < 20_000


def test_many_people_at_once(page_url, tag):
    texts = ["apple", "banana dog", "fox green house", "ice jungle kite lemon"] * 2
    clients = [Client(page_url, verbose=False) for _ in range(2)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: clients[i % 2].predict(texts[i], api_name="/predict"), range(len(texts))))
    for entries, text in zip(found, texts, strict=True):
        assert len(entries) == 10
        assert_best(entries, tag(text, top_k=len(LABELS), branch_scores=True))


def test_names_and_texts_are_escaped(actions):
    labels, words = answered(actions, " ".join(ATTACKS), len(LABELS))
    allowed = {"ol", "ul", "li", "button", "bdi", "span", "p", "div", "h2", "mark"}
    assert set(re.findall(r"<\s*/?\s*([^\s>/]+)", labels + words)) <= allowed
    assert labels.count("<button") == len(LABELS)


def test_mistakes_name_their_field(actions, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("id,body\n1,apple\n", "utf-8")
    wrong = {
        "no text": (None, lambda: list(actions.answer(" ", 5, 0.0, ""))),
        "no labels called <img src=x>, b": ("names", lambda: list(actions.answer("apple", 5, 0.0, "<img src=x>\nb"))),
        "no file": (None, lambda: list(actions.show_tagged_file(None, "text", 5, 0.0, ""))),
        "in a column 'text'; choose one of body": (
            "column",
            lambda: list(actions.show_tagged_file(str(table), "text", 5, 0.0, "")),
        ),
        "text was changed": (
            None,
            lambda: list(actions.choose_label("apple", SimpleNamespace(label="fruit", digest=text_digest("dog")))),
        ),
    }
    for message, (field, action) in wrong.items():
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            action()
        assert getattr(error.value, "field", None) == field


def test_mistakes_are_shown_beside_their_field():
    def action(wrong):
        yield (1,)
        if wrong:
            raise Mistake("b", "<img>")

    with gr.Blocks():
        fields, result = {"a": gr.HTML(), "b": gr.HTML()}, gr.HTML()
        shown = beside_fields(action, fields, {result: "nothing"})
        good, bad = list(shown(False)), list(shown(True))
    assert [set(values) for values in good] == [set(fields.values()), {result}]
    # Earlier messages vanish; the result of something else does not stay.
    assert bad[-1][result] == "nothing" and "&lt;img&gt;" in bad[-1][fields["b"]].value


def test_the_threshold_of_a_blend_is_where_the_page_starts(page_model, tag, tmp_path):
    model = AutoModel.from_pretrained(page_model)
    weights = {**dict.fromkeys(model.branch_names, 0.25), "bias": -1.0}
    blend = {"weights": weights, "threshold": 0.456, "f": "micro", "beta": 1.0, "texts": 9}
    model.set_blend(blend, torch.zeros(len(LABELS)))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(page_model).save_pretrained(tmp_path)
    starts = [
        {getattr(block, "label", None): block for block in build_page(str(folder)).blocks.values()}["Lowest score"]
        for folder in (page_model, tmp_path)
    ]
    # Without a threshold the best five are shown.
    assert [start.value for start in starts] == [0.0, 0.45]
    assert starts[0].info is None and "four in five are right" in starts[1].info
    (found,) = Actions(Tagger(str(tmp_path))).predict("apple", 1, 0.0)
    (plain,) = tag("apple", candidate_labels=[found["label"]], branch_scores=True)
    assert found["branch_scores"] == pytest.approx(plain["branch_scores"], abs=1e-5)
    assert abs(found["score"] - plain["score"]) > 0.01


def test_without_attention_it_says_so(tokenizer, tmp_path):
    encoder = XLNetConfig(vocab_size=64, d_model=16, n_layer=2, n_head=2, d_inner=32)
    model = APLCXLNet(APLCXLNetConfig(encoder=encoder, num_labels=6, summary_size=8))
    model.set_label_counts([6, 5, 4, 3, 2, 1])
    model.set_label_names(list("abcdef"))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ((labels, words),) = Actions(Tagger(str(tmp_path))).answer("apple dog", 3, 0.0, "")
    assert "cannot show what led to a label" in words
    assert labels.count('class="label"') == 6 and "<button" not in labels


def test_without_names_it_says_so(encoder_folder, tokenizer, tmp_path):
    torch.manual_seed(0)
    GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=4, mlp_size=4).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ((labels, words),) = Actions(Tagger(str(tmp_path))).answer("apple dog", 3, 0.0, "LABEL_1")
    assert "LABEL_1" in labels and "LABEL_2" not in labels and "no names" in words
