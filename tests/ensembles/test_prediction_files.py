"""Ensembles of prediction files, of this package and of others, against plain dictionaries."""

import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from glocal_xml.cli import main
from glocal_xml.data import LabelSpace
from glocal_xml.ensembles.files import PredictionFile, mean_ranking, read_prediction_file

NAMES = ["a b", "c", "d", "e"]
TEXTS = ["one", "two", "three"]


def write_json_lines(path, labels, scores, texts=TEXTS):
    rows = [
        {"text": text, "predictions": [{"label": name, "score": score} for name, score in zip(*row, strict=True)]}
        for text, *row in zip(texts, labels, scores, strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_omikuji(path, labels, scores):
    """As `omikuji test --out_path` does: numbers, three decimals, tabs."""
    rows = [zip(*row, strict=True) for row in zip(labels, scores, strict=True)]
    path.write_text("".join("\t".join(f"{NAMES.index(x)} {y:.3f}" for x, y in row) + "\n" for row in rows))
    return str(path)


def write_pecos(path, labels, scores):
    """As PECOS' `smat_util.save_matrix` does: an uncompressed CSR matrix of single precision."""
    matrix = np.zeros((len(labels), len(NAMES)), dtype=np.float32)
    for i, row in enumerate(labels):
        matrix[i, [NAMES.index(name) for name in row]] = scores[i]
    with open(path, "wb") as file:
        sparse.save_npz(file, sparse.csr_matrix(matrix), compressed=False)
    return str(path)


OURS = [["c", "a b"], ["d", "e"], ["e"]], [[0.8, 0.5], [0.75, 0.25], [0.5]]
OTHERS = [["a b", "c", "d"], [], ["a b"]], [[0.75, 0.5, 0.25], [], [0.5]]


@pytest.mark.parametrize("write", [write_json_lines, write_omikuji, write_pecos])
def test_formats(tmp_path, write):
    suffix = {write_json_lines: "jsonl", write_omikuji: "txt", write_pecos: "npz"}[write]
    read = read_prediction_file(write(tmp_path / f"x.{suffix}", *OTHERS), label_names=NAMES)
    assert (read.labels, read.scores, read.top_k) == (*OTHERS, 3)
    assert read.texts == (TEXTS if write is write_json_lines else None)


FILES = st.integers(1, 3).flatmap(
    lambda texts: st.lists(
        st.lists(st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 1)), min_size=texts, max_size=texts),
        min_size=2,
        max_size=4,
    )
)


@given(files=FILES)
def test_means_as_dictionaries_give_them(files):
    space = LabelSpace(NAMES, [1] * len(NAMES), num_texts=1)
    read = [PredictionFile("x", [list(row) for row in rows], [list(row.values()) for row in rows]) for rows in files]
    ids, scores = mean_ranking(read, space)
    for i, (own, values) in enumerate(zip(ids, scores, strict=True)):
        means = {name: sum(rows[i].get(name, 0) for rows in files) / len(files) for name in NAMES}
        order = sorted((name for name in NAMES if means[name]), key=lambda name: (-means[name], NAMES.index(name)))
        assert values[own >= 0] == pytest.approx([means[name] for name in order])
        # Sums in another order may differ in their last digit, and ties with them.
        assert [means[NAMES[label]] for label in own[own >= 0]] == pytest.approx([means[name] for name in order])
        assert sorted(own[own >= 0]) == sorted(map(NAMES.index, order))


@pytest.fixture
def files(tmp_path):
    """Predictions of three systems, names of labels, test and training texts."""
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in NAMES))
    true = [["a b", "new"], ["d"], ["a b", "e"]]
    rows = [{"text": text, "labels": labels} for text, labels in zip(TEXTS, true, strict=True)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "train.jsonl").write_text('{"text": "x", "labels": ["a b", "c"]}\n{"text": "y", "labels": ["a b"]}\n')
    return {
        "ours": write_json_lines(tmp_path / "ours.jsonl", *OURS),
        "omikuji": write_omikuji(tmp_path / "omikuji.txt", *OTHERS),
        "pecos": write_pecos(tmp_path / "P.npz", *OTHERS),
        "options": [
            *("--label_names_file", str(tmp_path / "names.txt"), "--test_file", str(tmp_path / "test.jsonl")),
            *("--metrics_at", "1", "2", "5", "--output_dir", str(tmp_path / "out")),
        ],
        "train": ["--train_file", str(tmp_path / "train.jsonl")],
    }


def test_command_from_files_to_results(files, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert main(["ensemble", files["ours"], files["omikuji"], *files["options"], "--top_k", "2"]) == 0
    assert "omikuji.txt: 3 texts, 3 labels each at most" in caplog.messages
    assert any("P@2" in line and "ensemble " in line for line in caplog.messages)
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert results["ensemble"]["labels_of_a_text"] == {"ours.jsonl": 2, "omikuji.txt": 3}
    # The means: a b .625, c .65, d .125 | d .375, e .125 | a b .25, e .25, the lower number first.
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert [[item["label"] for item in line["predictions"]] for line in lines] == [
        ["c", "a b"],
        ["d", "e"],
        ["a b", "e"],
    ]
    assert [line["text"] for line in lines] == TEXTS and lines[0]["labels"] == ["a b", "new"]
    assert lines[0]["predictions"][0]["score"] == pytest.approx(0.65)
    precision = {name: (row["precision@1"], row["precision@2"]) for name, row in results["test"].items()}
    assert precision["ensemble"] == pytest.approx((2 / 3, 4 / 6))
    assert precision["ours.jsonl"] == pytest.approx((2 / 3, 3 / 6))
    assert precision["omikuji.txt"] == pytest.approx((2 / 3, 2 / 6))
    assert not any("psp" in name or "@5" in name for row in results["test"].values() for name in row)
    assert main(["ensemble", files["ours"], files["pecos"], *files["options"]]) == 2
    again = [
        "ensemble",
        files["ours"],
        files["pecos"],
        *files["options"],
        *files["train"],
        "--overwrite_output",
        "true",
    ]
    assert main(again) == 0
    counted = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["test"]
    assert counted["ensemble"]["precision@2"] == results["test"]["ensemble"]["precision@2"]
    assert 0 < counted["ensemble"]["psp@2"] < 1


def test_labels_of_a_table_are_separated_as_fits_those_that_are_predicted(files, tmp_path):
    labels = ["a b;new", "d", "a b;e"]
    lines = [f'"{text}",{string}\n' for text, string in zip(TEXTS, labels, strict=True)]
    (tmp_path / "test.csv").write_text("text,labels\n" + "".join(lines))
    options = [option.replace("test.jsonl", "test.csv") for option in files["options"]]
    assert main(["ensemble", files["ours"], files["omikuji"], *options]) == 0
    test = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["test"]
    assert test["ensemble"]["precision@2"] == pytest.approx(4 / 6)


def test_without_a_test_file_predictions_are_joined(files, tmp_path):
    assert main(["ensemble", files["omikuji"], files["ours"], *files["options"][:2], *files["options"][-2:]]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == TEXTS and "labels" not in lines[0]


def test_only_the_test_texts_of_a_run_count(tmp_path):
    lines = [{"part": part, "predictions": [{"label": part, "score": 1}]} for part in ("test", "predict", "test")]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_prediction_file(tmp_path / "run.jsonl")
    assert (read.labels, read.texts) == ([["test"], ["test"]], None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"text": "one"}\n', "line 1: no `predictions` of the form"),
        ("x.jsonl", '{"predictions": [["c", 0.5]]}\n', "line 1: no `predictions` of the form"),
        ("x.jsonl", '{"predictions": []}\n{"pred\n', "line 2: broken JSON"),
        ("x.jsonl", '{"predictions": [{"label": "c", "score": 3}]}\n', "the score 3.0 is no probability"),
        ("x.jsonl", '{"predictions": [{"label": "c", "score": NaN}]}\n', "NaN is no JSON"),
        ("x.jsonl", '{"predictions": []}\n', "predictions for 1 texts, the test file has 3"),
        ("x.txt", "0 0.5\t9 0.1\n\n\n", "has label 9, but there are 4 names"),
        ("x.txt", "0 0.5\t0 0.1\n\n\n", "row 1: a label is there twice"),
        ("x.txt", "zero 0.5\n", "neither JSON nor `label score` pairs"),
        ("x.npz", "PK nonsense", "is no sparse matrix"),
        ("x.csv", "text,label_1\n", "is for spreadsheets"),
        ("missing.jsonl", None, "missing.jsonl does not exist"),
    ],
)
def test_mistakes_are_named(files, tmp_path, capsys, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["ensemble", files["ours"], str(tmp_path / name), *files["options"]]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_mistakes(files, tmp_path, capsys):
    others = write_json_lines(tmp_path / "others.jsonl", *OTHERS, texts=["one", "three", "two"])
    for arguments, message in {
        (files["ours"], others): "Row 2 of",
        (files["ours"], str(tmp_path)): "let them predict first",
        (files["ours"],): "two members or more",
    }.items():
        assert main(["ensemble", *arguments, *files["options"]]) == 2
        assert message in capsys.readouterr().err
    assert main(["ensemble", files["ours"], files["omikuji"], *files["options"][2:]]) == 2
    assert "has numbers for labels: pass their names" in capsys.readouterr().err
