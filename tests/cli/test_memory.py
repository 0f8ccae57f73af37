"""`glocal-xml memory`: texts that a model remembers come and go, and new labels with them."""

import json

import pytest
from tiny_encoders import WORDS
from transformers import pipeline

from glocal_xml.cli import main
from glocal_xml.data import LabelSpace
from glocal_xml.experts import ExpertTexts, fit_experts, fixed_blend, log_frequencies
from glocal_xml.modeling import GlocalXMLForMultiLabel, TextExpertsConfig, TextExpertsForMultiLabel

LABELS = [f"is {word}" for word in WORDS[:8]]


def training_texts():
    rows = []
    for i in range(64):
        words = [WORDS[i % 8], WORDS[(3 * i + 1) % 8], WORDS[8 + i % 4]]
        rows.append((" ".join(words), sorted({i % 8, (3 * i + 1) % 8})))
    return rows


@pytest.fixture(scope="module", params=["text_experts", "glocal_xml"])
def folder(request, encoder_folder, tokenizer, tmp_path_factory):
    if request.param == "glocal_xml":
        model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=LABELS, mlp_size=8)
    else:
        model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=8))
        model.set_label_names(LABELS)
    texts, labels = zip(*training_texts(), strict=True)
    fit_experts(model, ExpertTexts.from_texts(texts, labels, tokenizer), tokenizer, workers=1, show_progress=False)
    counts = [sum(i in ids for ids in labels) for i in range(8)]
    space = LabelSpace(LABELS, counts, num_texts=64)
    model.set_blend(fixed_blend(model.branch_names), log_frequencies(space))
    path = tmp_path_factory.mktemp("models") / "remembering"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    space.save(path)
    return str(path)


def listed(folder, capsys):
    capsys.readouterr()
    assert main(["memory", str(folder), "--list"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_count_and_list(folder, capsys):
    assert main(["memory", folder]) == 0
    assert "64 texts and 0 names of labels; 8 of 8 labels" in capsys.readouterr().out
    rows = listed(folder, capsys)
    assert [row["number"] for row in rows] == list(range(64))
    assert rows[3]["labels"] == [LABELS[i] for i in training_texts()[3][1]]


def test_who_evaluates_on_texts_of_the_memory_is_told(folder, tmp_path, caplog):
    more, other = tmp_path / "more.jsonl", json.dumps({"text": WORDS[0], "labels": [LABELS[0]]})
    more.write_text(json.dumps({"text": f"{WORDS[15]} {WORDS[16]}", "labels": [LABELS[0]]}) + "\n" + other)
    assert main(["memory", folder, "--add", str(more), "--output_dir", str(tmp_path / "out")]) == 0
    assert main(["evaluate", str(tmp_path / "out"), str(more), "--use_cpu", "true"]) == 0
    assert "1 of 2 test texts are training texts of the model" in caplog.text


def test_added_labels_are_separated_as_the_model_knows_them(folder, tmp_path, capsys):
    table = tmp_path / "more.csv"
    table.write_text(f"text,labels\n{WORDS[0]} {WORDS[1]},{LABELS[0]};{LABELS[1]}\n")
    assert main(["memory", folder, "--add", str(table), "--output_dir", str(tmp_path / "out")]) == 0
    assert listed(tmp_path / "out", capsys)[-1]["labels"] == LABELS[:2]


def test_new_texts_with_new_labels_are_found_at_once(folder, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    more = [
        {"text": "ocean paper", "labels": ["is ocean", "is apple"]},
        {"text": "ocean queen", "labels": ["is ocean"]},
    ]
    file = tmp_path / "more.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in more), encoding="utf-8")
    output = tmp_path / "changed"
    command = ["memory", folder, "--add", str(file), "--output_dir", str(output)]
    assert main(command) == 0
    assert "2 texts added, 1 labels of them new" in caplog.text
    assert "66 texts and 0 names of labels; 9 of 9 labels" in capsys.readouterr().out
    assert listed(output, capsys)[-2:] == [
        {"number": 64, "labels": ["is apple", "is ocean"]},
        {"number": 65, "labels": ["is ocean"]},
    ]
    space = LabelSpace.load(output)
    before = LabelSpace.load(folder)
    assert space.names == [*LABELS, "is ocean"] and space.num_texts == 66
    assert space.counts == [before.counts[0] + 1, *before.counts[1:], 2]
    pipe = pipeline("extreme-multi-label-classification", model=str(output), branch_scores=True, top_k=9)
    scores = {row["label"]: row["branch_scores"]["memory"] for row in pipe("ocean paper queen")}
    assert max(scores, key=scores.get) == "is ocean" and scores["is ocean"] > 0.5
    # The lexical expert knows its first texts too, so that a blend that trusts it alone finds the label.
    lexical = {row["label"]: row["branch_scores"]["lexical"] for row in pipe("ocean paper queen")}
    assert max(lexical, key=lexical.get) == "is ocean"
    lexical = {row["label"]: row["branch_scores"]["lexical"] for row in pipe("dog fox")}
    assert lexical["is ocean"] < 0.1
    # Old labels answer to old texts as before.
    old = pipeline("extreme-multi-label-classification", model=folder, top_k=3)("dog fox")
    assert [row["label"] for row in pipe("dog fox", top_k=3)] == [row["label"] for row in old]
    assert main(command) == 2


def test_corrected_texts_replace_those_that_are_remembered(folder, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    file, first, second = tmp_path / "more.jsonl", tmp_path / "first", tmp_path / "second"
    wrong = [{"text": "ocean paper", "labels": [label]} for label in LABELS[:2]]
    for source, output, rows in [(folder, first, wrong), (first, second, [{**wrong[0], "labels": [LABELS[7]]}])]:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        assert main(["memory", str(source), "--add", str(file), "--output_dir", str(output)]) == 0
    assert "2 texts of the memory are replaced" in caplog.text
    rows = listed(second, capsys)
    assert [row["number"] for row in rows] == [*range(64), 66] and rows[-1]["labels"] == [LABELS[7]]


def test_texts_are_forgotten(folder, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("3\n\n4\n999\n", encoding="utf-8")
    output = tmp_path / "changed"
    assert main(["memory", folder, "--remove", str(numbers), "--output_dir", str(output)]) == 0
    assert "2 texts removed, of 3 numbers given" in caplog.text
    assert [row["number"] for row in listed(output, capsys)] == [i for i in range(64) if i not in (3, 4)]
    assert LabelSpace.load(output) == LabelSpace.load(folder)


def test_mistakes_are_one_line(folder, model_folder, tmp_path, capsys):
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("3\nfour\n", encoding="utf-8")
    output = ["--output_dir", str(tmp_path / "changed")]
    for command, message in [
        ([folder, "--remove", str(numbers), *output], "line 2: 'four' must be the number"),
        ([folder, "--remove", str(numbers)], "need `--output_dir FOLDER`"),
        ([folder, *output], "give `--add FILE`"),
        ([model_folder], "has no memory of texts"),
        ([folder, "--add", str(tmp_path / "none.jsonl"), *output], "none.jsonl"),
    ]:
        assert main(["memory", *command]) == 2
        assert message in capsys.readouterr().err
