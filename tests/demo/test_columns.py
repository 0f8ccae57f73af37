"""What an uploaded file offers as its text, and the examples that a run offers."""

import gzip
import json

import pytest

from glocal_xml.demo import example_texts
from glocal_xml.demo.files import text_columns

FILES = {
    "called text": ("a.csv", "name,text,long\na,b,cccccc\n", ["text", "long", "name"]),
    "the longest": ("a.csv", "\ufeffid, body ,<b>title</b>\n1,a long text,short\n", ["body", "<b>title</b>", "id"]),
    "semicolons": ("a.csv", 'id;description;Preis\n1;"with; sign";3,5\n', ["description", "Preis", "id"]),
    "tabs": ("a.tsv", "id\tbody\n1\ta text, with commas\n", ["body", "id"]),
    "JSON": ("a.jsonl", '\n{"id": 1, "body": "a", "tags": ["x"]}\n', ["body"]),
    "JSON without a name": ("a.gz", '{"id": 1, "body": "a"}\n', ["body"]),
    "plain lines": ("a.txt", "id,text\n1,2\n", []),
}
BROKEN = {
    "no text": ("a.jsonl", '{"id": 1, "tags": []}\n', "holds a text"),
    "no row": ("a.csv", "id,text\n", "holds a text"),
    "an array": ("a.jsonl", '[\n{"text": "a"}]\n', "line 1: not a JSON object|line 1: broken JSON"),
    "a broken header": ("a.tsv", "id\rtext\n1\ta\n", "line 1: broken CSV"),
    "a blank line": ("a.csv", "\n", "holds a text"),
    "an open quote": ("a.csv", 'id,text\n1,a\n2,"b\n', "line 3: broken CSV"),
    "UTF-16": ("a.csv", "id,text\n".encode("utf-16"), "UTF-16"),
}


def written(folder, name, content):
    content = content if isinstance(content, bytes) else content.encode("utf-8")
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(folder / name)


@pytest.mark.parametrize("kind", FILES)
def test_the_likely_column_comes_first(kind, tmp_path):
    name, content, columns = FILES[kind]
    assert text_columns(written(tmp_path, name, content)) == columns


@pytest.mark.parametrize("kind", BROKEN)
def test_files_without_a_text_are_refused(kind, tmp_path):
    name, content, message = BROKEN[kind]
    with pytest.raises(ValueError, match=message):
        text_columns(written(tmp_path, name, content))


def test_examples_are_test_texts_of_the_run(tmp_path):
    assert example_texts(str(tmp_path)) == [] and example_texts("user/model") == []
    texts = ["", "long " * 1000, *(f"text {i}" for i in range(30)), "text 0"]
    rows = [json.dumps({"part": "test", "text": text, "predictions": []}) + "\n" for text in texts]
    written(tmp_path, "predictions.jsonl", "".join(rows))
    assert example_texts(str(tmp_path)) == ["text 0", "text 10", "text 20"]
    written(tmp_path, "predictions.jsonl", "".join(rows[:3]))
    assert example_texts(str(tmp_path)) == ["text 0"]
    written(tmp_path, "predictions.jsonl", "{")
    assert example_texts(str(tmp_path)) == []
