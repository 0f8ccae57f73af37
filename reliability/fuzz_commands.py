"""The command line with values and files that nobody meant: done, or refused in one short line with exit code 2."""

import contextlib
import io
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml
from fuzz_files import Broken, Target
from hypothesis import strategies as st
from tiny_runs import KINDS, Workshop

from glocal_xml.cli import main as command

_VALUES = st.sampled_from(
    [
        *(
            "0",
            "-1",
            "1",
            "2",
            "1.5",
            "0.5",
            "nan",
            "inf",
            "-inf",
            "1e999",
            "9" * 30,
            "-" + "9" * 30,
            "1_0",
            "٣",
            "0x10",
        ),
        *(
            "",
            " ",
            "x",
            "none",
            "null",
            "true",
            "[]",
            "{}",
            "[" * 5000,
            "é",
            "\udcff",
            "a,b",
            "-",
            "--",
            "cpu",
            "cuda:99",
        ),
        *(
            "MODEL",
            "ROWS",
            "GONE",
            "FOLDER",
            "OUTPUT",
            "/dev/null",
            "x" * 5000,
            ".",
            "..",
            "micro",
            "max",
            "csv",
            "json",
        ),
    ]
)
# Flags of each command that take a value; none that would wait, send or serve.
_FLAGS = {
    "predict": ["output", "format", "input_format", "text_column", "top_k", "threshold", "label_delimiter"]
    + ["labels_column", "candidate_labels", "windows", "batch_size", "device", "text"],
    "explain": [
        "output",
        "format",
        "input_format",
        "text_column",
        "labels",
        "top_k",
        "num_words",
        "max_length",
        "branch",
        "text",
    ],
    "calibrate": ["f", "beta", "candidates"],
    "evaluate": ["metrics_at", "output_dir", "batch_size"],
    "labels": ["add", "remove", "rename", "output"],
    "memory": ["add", "remove", "output", "text_column", "labels_column"],
    "ensemble": ["test_file", "predict_file", "output_dir", "top_k", "candidates", "label_names_file", "train_file"],
    "card": ["output"],
    "publish": ["license", "language", "message", "revision"],
}
# Fields of recipes that do not make a run long.
_FIELDS = [
    "encoder",
    "train_file",
    "num_train_epochs",
    "learning_rate",
    "metrics_at",
    "model_config",
    "label_tree",
    "experts",
]


def _run(argv: list[str]) -> str:
    """What a command did: "used" where it was done, "refused" where it said in one line why not."""
    # As Python opens them.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = command(argv)
        except SystemExit as end:
            code = end.code
    printed, said = (stream.buffer.getvalue().decode("utf-8") for stream in (out, errors))
    lines = [line for line in said.splitlines() if "error: " in line]
    if code == 0:
        if "NaN" in printed or "Infinity" in printed:
            raise Broken(f"numbers that are none: {printed[:500]}")
        return "used"
    if code != 2 or len(lines) != 1 or len(lines[0]) > 900 or "Traceback" in said:
        raise Broken(f"exit code {code}, {len(lines)} lines: {said[-900:]}")
    return "refused"


def _command_check(model: Path, rows: Path) -> Callable[[Path, bytes], str]:
    def check(path: Path, content: bytes) -> str:
        place = path.parent / "place"
        shutil.rmtree(place, ignore_errors=True)
        # What a command may change is a copy.
        shutil.copytree(model, place / "model", ignore=shutil.ignore_patterns("checkpoint-*"))
        (place / "folder").mkdir()
        names = {"MODEL": place / "model", "ROWS": rows, "GONE": place / "gone.jsonl", "FOLDER": place / "folder"}
        names["OUTPUT"] = place / "output"
        argv = [str(names.get(word, word)) for word in json.loads(content)]
        with contextlib.chdir(place):
            return _run(argv)

    return check


def _argv(name: str) -> st.SearchStrategy[bytes]:
    first = {"ensemble": ["MODEL", "MODEL"], "publish": ["MODEL", "user/name", "--dry-run"]}
    start = [name, *first.get(name, ["MODEL"])] + (
        ["ROWS"] if name in ("predict", "explain", "calibrate", "evaluate") else []
    )
    usual = {"labels": ["--output", "OUTPUT"], "ensemble": ["--test_file", "ROWS", "--output_dir", "OUTPUT"]}
    usual["evaluate"] = ["--output_dir", "OUTPUT", "--use_cpu", "true"]
    flag = st.tuples(st.sampled_from(_FLAGS[name]), _VALUES).map(lambda drawn: [f"--{drawn[0]}", drawn[1]])
    flags = st.lists(flag, min_size=1, max_size=2).map(lambda found: sum(found, []))
    return flags.map(lambda found: json.dumps([*start, *usual.get(name, []), *found]).encode())


def _recipes() -> st.SearchStrategy[bytes]:
    """Recipes without a file of texts that exists: all of them are refused, in one line."""
    value = st.recursive(
        _VALUES | st.integers() | st.floats(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    )
    whole = st.dictionaries(st.sampled_from(_FIELDS) | st.text(max_size=5), value, max_size=4).map(
        lambda found: yaml.safe_dump(found, allow_unicode=True).encode("utf-8", "surrogatepass")
    )
    pieces = st.sampled_from(
        [
            b"a: b\n",
            b"- 1\n",
            b"{",
            b"[" * 2000,
            b"&a ",
            b"*a",
            b"!!python/name:os.system\n",
            b"\0",
            b"\xff",
            b"? ",
            b": ",
            b"%YAML",
        ]
    )
    return st.one_of(whole, whole, st.lists(pieces | st.binary(max_size=5), max_size=5).map(b"".join))


def command_targets(folder: Path) -> dict[str, Target]:
    """Every command that reads a trained model, and recipes of `train`."""
    logging.getLogger().addHandler(logging.NullHandler())
    workshop = Workshop(folder / "workshop")
    model = folder / "model"
    if any(workshop.run(KINDS["Trainer, experts and blend"], model).codes):
        raise RuntimeError("no model to run commands on")
    check = _command_check(model, workshop.folder / "validation.jsonl")
    found = {f"glocal-xml {name}": Target(_argv(name), "argv.json", check, is_damaged=False) for name in _FLAGS}
    found["recipe"] = Target(
        _recipes(), "recipe.yaml", lambda path, content: _run(["train", str(path)]), is_damaged=False
    )
    return found
