"""A Space: what it holds, and that its page answers from that folder alone."""

import re
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from fresh_process import fresh_environment
from packaging.requirements import Requirement

from glocal_xml.hub import publish

pytest_plugins = ["local_hub"]


@pytest.fixture(scope="module")
def space(hub, trained, tmp_path_factory):
    """The files of a published Space, in a folder as the Hub would run them."""
    pytest.importorskip("gradio")
    published = publish(trained, "me/shown", space="me/page", token="hf_writer0")
    assert published.space_url == f"{hub.url}/spaces/me/page"
    folder = tmp_path_factory.mktemp("space")
    for name, file in hub.repos["spaces/me/page"].files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(file.content)
    return folder


def test_a_space_tells_how_it_runs(space):
    metadata = yaml.safe_load((space / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert (
        metadata["sdk"] == "gradio"
        and metadata["python_version"] >= "3.11"
        and metadata["app_file"] == "app.py"
        and metadata["models"] == ["me/shown"]
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", metadata["sdk_version"]) and metadata["title"] == "page"
    lines = (space / "requirements.txt").read_text(encoding="utf-8").splitlines()
    needed = {requirement.name: requirement for requirement in map(Requirement, lines)}
    assert {"torch", "transformers", "huggingface_hub", "datasets", "gradio"} <= set(needed)
    assert all(str(requirement.specifier).startswith(">=") for requirement in needed.values())
    assert "pytest" not in needed and (space / "glocal_xml" / "demo" / "page.py").is_file()
    assert not list(space.rglob("*.pyc")) and "hf_writer0" not in (space / "app.py").read_text(encoding="utf-8")


def test_outdated_sources_go(hub, space, trained):
    repo = hub.repos["spaces/me/page"]
    files = repo.files()
    repo.commit("main", {**files, "glocal_xml/old.py": files["app.py"], "notes.md": files["app.py"]})
    publish(trained, "me/shown", space="me/page", token="hf_writer0")
    assert repo.files().keys() == files.keys() | {"notes.md"}


def test_the_page_answers(hub, space):
    with open(space / "glocal_xml" / "__init__.py", "a", encoding="utf-8") as file:
        file.write("\nprint('the package of the Space', flush=True)\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = fresh_environment(hub) | {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
    with open(space / "log.txt", "w+", encoding="utf-8") as log:
        app = subprocess.Popen(
            [sys.executable, "app.py"], cwd=space, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            status = answer(f"http://127.0.0.1:{port}/", app)
        finally:
            app.terminate()
            app.wait()
        log.seek(0)
        shown = log.read()
    assert status == 200 and "the package of the Space" in shown, shown


def answer(url, process, seconds=180):
    """The status of a page once it is served."""
    for _ in range(5 * seconds):
        if process.poll() is not None:
            return None
        try:
            return urlopen(url).status
        except URLError:
            time.sleep(0.2)
    return None
