import importlib.util
import shutil
import socket
import urllib.request

import pytest

from glocal_xml.cli import main

pytest_plugins = ["served_page"]


@pytest.fixture(autouse=True)
def folder_of_uploads(monkeypatch):
    """The command sets it for its process, which is that of other tests, too."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", "unused")


def test_it_serves_the_page(page_model, capsys, monkeypatch):
    def visit(page):
        # In the place of waiting for Ctrl-C.
        with urllib.request.urlopen(page.local_url) as answer:
            visited.append((answer.status, page.local_url))
        page.close(verbose=False)

    visited = []
    monkeypatch.setattr("gradio.Blocks.block_thread", visit)
    assert main(["demo", page_model]) == 0
    ((status, url),) = visited
    assert status == 200 and capsys.readouterr().out == f"The page is at {url} (Ctrl-C ends it).\n"


def test_test_texts_are_shown_on_this_machine_only(page_model, tmp_path, monkeypatch):
    folder = shutil.copytree(page_model, tmp_path / "model")
    (folder / "predictions.jsonl").write_text('{"text": "apple dog", "predictions": []}\n', "utf-8")
    shown = []
    monkeypatch.setattr("glocal_xml.demo.build_page", lambda model, examples: shown.append(list(examples)))
    monkeypatch.setattr("glocal_xml.cli.demo._serve", lambda page, args: None)
    for options in ([], ["--host", "0.0.0.0"], ["--share"]):
        assert main(["demo", str(folder), *options]) == 0
    assert shown == [["apple dog"], [], []]


def test_a_port_that_is_taken(page_model, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["demo", page_model, "--port", str(port)]) == 2
    assert f"127.0.0.1:{port}; give another `--port`" in capsys.readouterr().err


def test_no_model(capsys, tmp_path):
    assert main(["demo", str(tmp_path / "nothing")]) == 2
    assert "no model folder" in capsys.readouterr().err


def test_without_gradio_the_extra_is_named(capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("glocal_xml.demo.find_spec", lambda name: None if name == "gradio" else found(name))
    assert main(["demo", "any"]) == 2
    assert "pip install glocal-xml[demo]" in capsys.readouterr().err


def test_help(capsys):
    assert main(["demo", "--help"]) == 0
    assert "--port" in capsys.readouterr().out
