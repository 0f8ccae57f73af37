"""
Every snippet of README and guides runs, in order, on a handful of real texts.

By default the encoder `minilm` is a tiny random one in the place of the real one, so that this takes seconds.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hub_server import HubServer
from run_guide import snippets
from scipy import sparse
from transformers import AutoModel, AutoTokenizer, BertConfig

from glocal_xml import minilm_path

ROOT = Path(__file__).parents[2]
DEBTAGS = "examples/data/debtags/train.jsonl.gz"
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUNNABLE = [guide for guide in GUIDES if snippets(guide)]
# Those that train several models or start several processes; like all guides they are also run with real weights.
LONG_GUIDES = ("bulk_tagging", "choose_a_family", "experts", "half_a_million_labels", "living_models", "migrate")


@pytest.fixture
def workplace(tmp_path):
    """A folder with the files that the guides speak of, small ones."""
    with gzip.open(ROOT / DEBTAGS, "rt", encoding="utf-8") as file:
        lines = [next(file) for _ in range(1600)]
    (tmp_path / DEBTAGS).parent.mkdir(parents=True)
    with gzip.open(tmp_path / DEBTAGS, "wt", encoding="utf-8") as file:
        file.writelines(lines)
    for script in (ROOT / "examples").glob("*.py"):
        (tmp_path / "examples" / script.name).symlink_to(script)
    rows = [json.loads(line) for line in lines[:140]]
    # With labels of their own words besides, there are enough for a label tree.
    for row in rows:
        row["text"] = row["text"][:200]
        row["labels"] += [f"word::{word}" for word in sorted(set(re.findall(r"[a-z]{4,}", row["text"])))[:8]]
    known = sorted({label for row in rows for label in row["labels"]})
    # A blend is fitted on no fewer than 50 texts.
    parts = {"train": rows[:56], "test": rows[56:128], "new": rows[128:]}
    for name, part in parts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    write_other_formats(tmp_path, parts, known)
    return tmp_path


def write_other_formats(folder, parts, names):
    """The same texts as LightXML, APLC_XLNet and PECOS keep them."""
    ids = {name: index for index, name in enumerate(names)}
    for system in ("lightxml", "aplc", "pecos"):
        (folder / system).mkdir()
    (folder / "pecos/output-items.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    for part, short in (("train", "trn"), ("test", "tst")):
        texts = [" ".join(row["text"].split()) for row in parts[part]]
        labels = [[ids[name] for name in row["labels"]] for row in parts[part]]
        write_lines(folder / f"lightxml/{part}_texts.txt", texts)
        write_lines(folder / f"lightxml/{part}_labels.txt", [" ".join(row["labels"]) for row in parts[part]])
        quoted = [
            f'{i},"{text.replace(chr(34), "")}","{",".join(map(str, labels[i]))}"' for i, text in enumerate(texts)
        ]
        write_lines(folder / f"aplc/{part}.csv", ["guid,text_a,classes", *quoted])
        write_lines(folder / f"pecos/X.{short}.txt", texts)
        rows = [row for row, ids_of_text in enumerate(labels) for _ in ids_of_text]
        columns = [label for ids_of_text in labels for label in ids_of_text]
        matrix = sparse.csr_matrix(([1.0] * len(rows), (rows, columns)), shape=(len(texts), len(names)))
        sparse.save_npz(folder / f"pecos/Y.{short}.npz", matrix)
        # What a system that is half sure of every true label would predict.
        sparse.save_npz(folder / f"pecos/P.{short}.npz", 0.5 * matrix)
        indexed = [",".join(map(str, labels[i])) + f"\t{text}" for i, text in enumerate(texts)]
        write_lines(folder / f"pecos/{part}.txt", indexed)


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def tiny_minilm(tmp_path_factory):
    """A folder with a package like that of the extra `minilm`, its weights few and random."""
    folder = tmp_path_factory.mktemp("packages")
    package = folder / Path(minilm_path()).parent.name
    tokenizer = AutoTokenizer.from_pretrained(minilm_path())
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
    )
    AutoModel.from_config(config).save_pretrained(package / "model")
    tokenizer.save_pretrained(package / "model")
    (package / "__init__.py").touch()
    return folder


@pytest.mark.parametrize(
    "guide",
    [pytest.param(guide, marks=pytest.mark.slow if guide.stem in LONG_GUIDES else ()) for guide in RUNNABLE],
    ids=lambda path: path.stem,
)
def test_every_snippet_runs(guide, workplace, tiny_runner):
    tiny_runner(guide, workplace)


@pytest.mark.slow
@pytest.mark.parametrize("guide", RUNNABLE, ids=lambda path: path.stem)
def test_every_snippet_runs_with_real_weights(guide, workplace, real_runner):
    real_runner(guide, workplace)


@pytest.fixture(scope="module")
def tiny_runner(tiny_minilm, tmp_path_factory):
    """Runs guides with the tiny encoder."""
    with runner(f"{tiny_minilm}{os.pathsep}{ROOT}", tmp_path_factory.mktemp("home")) as run:
        yield run


@pytest.fixture(scope="module")
def real_runner(tmp_path_factory):
    """Runs guides with the real one."""
    with runner(str(ROOT), tmp_path_factory.mktemp("home")) as run:
        yield run


@contextmanager
def runner(python_path, home):
    """A function that runs a guide in a folder; all guides share the imports of one process."""
    # One guide publishes: to a Hub on this machine.
    with HubServer({"hf_writer0": ("user", True)}) as hub, start_runner(python_path, home, hub.url) as process:

        def run(guide, folder):
            process.stdin.write(json.dumps([str(guide), str(folder)]) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n", (folder / "guide.log").read_text(errors="replace")[-6000:]

        yield run
        process.stdin.close()


def start_runner(python_path, home, endpoint):
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "hf_writer0",
        # A command in a shell is the one of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": python_path,
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
    }
    command = [sys.executable, str(Path(__file__).parent / "run_guide.py")]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_links_lead_somewhere(guide):
    for target in re.findall(r"\]\(([^)\s]+)\)", guide.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        page = (guide.parent / path) if path else guide
        assert page.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
            assert anchor in anchors, target
