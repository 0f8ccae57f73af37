"""What people may ask of the page is bounded: texts, labels, files and memory."""

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from hostile_names import LABELS

from glocal_xml.data import text_files
from glocal_xml.demo import build_page
from glocal_xml.demo.actions import Actions
from glocal_xml.demo.tagger import LONGEST_TEXT, Tagger
from glocal_xml.explain import explain, label_reading
from glocal_xml.explain.label_reading import MOST_LABELS

pytest_plugins = ["served_page"]


@pytest.fixture(scope="module")
def actions(page_model):
    return Actions(Tagger(page_model))


def test_texts_and_numbers_of_labels_are_bounded(actions):
    for call in (actions.predict, lambda text: actions.explain(text, LABELS[:1])):
        with pytest.raises(ValueError, match="characters; up to"):
            call("x" * (LONGEST_TEXT + 1))
    with pytest.raises(ValueError, match="up to 1,000 labels"):
        actions.predict("apple", top_k=10**9)
    with pytest.raises(ValueError, match="up to 1,000 labels"):
        actions.tag_file("x.jsonl", "text", 10**9, 0.0, "")
    with pytest.raises(ValueError, match="1 to 1,000 labels"):
        actions.explain("apple", LABELS[:1] * (MOST_LABELS + 1))


@pytest.mark.parametrize("number", [0, -1, MOST_LABELS + 1])
def test_explanations_are_bounded(actions, number):
    pipe = actions.tagger._pipe
    with pytest.raises(ValueError, match="1 to 1,000 labels"):
        explain(pipe.model, pipe.tokenizer, "apple", top_k=number)


def test_many_labels_of_a_book_are_too_many(actions, monkeypatch):
    monkeypatch.setattr(label_reading, "_MOST_NUMBERS", 20)
    assert len(actions.explain("apple dog moon", LABELS[:2])["labels"]) == 2
    with pytest.raises(ValueError, match="The text has .* tokens, of which . labels"):
        actions.explain("apple dog moon " * 5, LABELS[:3])


def test_a_bomb_is_refused(actions, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_UNPACKED", 2**22)
    bomb = tmp_path / "bomb.txt.gz"
    bomb.write_bytes(16 * gzip.compress((b"apple " * 1000 + b"\n") * 100))
    with pytest.raises(ValueError, match=r"^bomb\.txt\.gz unpacks to"):
        actions.tag_file(str(bomb), "text", 2, 0.0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.txt.gz"]


def test_nothing_is_kept_of_a_text(page_model):
    assert not [block for block in build_page(page_model).blocks.values() if block.stateful]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_files_are_gone_when_the_page_is(page_model, tmp_path, kind):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "glocal_xml", "demo", page_model], stdout=subprocess.PIPE, text=True, env=environment
    )
    url = process.stdout.readline().split()[4]
    sent = httpx.post(f"{url}gradio_api/upload", files={"files": ("x.txt", b"apple\n")}, timeout=60).json()
    assert Path(sent[0]).is_file() and tmp_path in Path(sent[0]).parents
    process.send_signal(kind)
    process.wait(timeout=120)
    deadline = time.monotonic() + 10
    while list(tmp_path.glob("glocal-xml-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(tmp_path.glob("glocal-xml-*"))
