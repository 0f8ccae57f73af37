"""Datasets: from files and loaded splits to label ids and tokens."""

import gzip
import json
import logging
import os
from collections import Counter

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, List, Value
from transformers import BertTokenizer

from glocal_xml.data import (
    BadRow,
    LabelSpace,
    XMTCCollator,
    load_hub_dataset,
    load_xmtc_dataset,
    split_validation,
    tokenize,
)
from glocal_xml.data.dataset import warn_of_names

TRAIN = [{"text": "red apple", "labels": ["fruit", "red"]}, {"text": "green apple", "labels": ["fruit"]}]
TEST = [{"text": "blue sky", "labels": ["blue", "air"]}, {"text": "red plum", "labels": ["red", "fruit"]}]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "apple", "plum", "sky"]
    return BertTokenizer(vocab={word: i for i, word in enumerate(words)})


def write(path, rows):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


@pytest.fixture
def files(tmp_path):
    return {"train": write(tmp_path / "train.jsonl.gz", TRAIN), "test": str(write(tmp_path / "test.jsonl", TEST))}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
def test_files_and_loaded_splits_give_the_same_ids(files, streaming, loaded, caplog):
    if loaded:
        files = {"train": Dataset.from_list(TRAIN), "test": Dataset.from_list(TEST)}
    with caplog.at_level(logging.WARNING):
        parts, space = load_xmtc_dataset(files, streaming=streaming)
    assert isinstance(parts, IterableDatasetDict if streaming else DatasetDict) and list(parts) == ["train", "test"]
    assert (space.names, space.counts, space.num_texts) == (["fruit", "red"], [2, 1], 2)
    assert space.unseen == ["air", "blue"]
    assert "2 labels of the test part have no training text, such as ['air', 'blue']" in caplog.text
    assert list(parts["train"]) == [{"text": "red apple", "labels": [0, 1]}, {"text": "green apple", "labels": [0]}]
    assert list(parts["test"]) == [{"text": "blue sky", "labels": [2, 3]}, {"text": "red plum", "labels": [0, 1]}]
    assert parts["train"].features == Features({"text": Value("string"), "labels": List(Value("int32"))})


def test_an_edited_file_is_read_again_and_an_unchanged_one_is_not(files):
    first, _ = load_xmtc_dataset(files)
    stamp = os.stat(files["train"])
    again, _ = load_xmtc_dataset(files)
    assert again["train"].cache_files == first["train"].cache_files
    write(files["train"], [{**TRAIN[0], "text": "red grape"}, TRAIN[1]])
    # Even with its old time stamp.
    os.utime(files["train"], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    edited, _ = load_xmtc_dataset(files)
    assert edited["train"]["text"][0] == "red grape"


@pytest.mark.parametrize("loaded", [False, True])
def test_bad_rows_are_errors_or_are_skipped_with_a_warning_every_time(tmp_path, caplog, loaded):
    rows = [TRAIN[0], {"text": " ", "labels": ["fruit"]}, TRAIN[1], {"text": "x", "labels": []}]
    source = Dataset.from_list(rows) if loaded else write(tmp_path / "train.jsonl", rows)
    with pytest.raises(BadRow, match="line 2: empty text"):
        load_xmtc_dataset({"train": source})
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            parts, space = load_xmtc_dataset({"train": source}, bad_rows="skip")
        assert caplog.text.count("2 bad rows skipped (empty text: 1, no labels: 1)") == 1
        assert parts["train"]["text"][:] == ["red apple", "green apple"] and space.num_texts == 2


def test_a_given_label_space_is_used_and_left_alone(files):
    space = LabelSpace(["red", "fruit"], [1, 1], 2)
    parts, extended = load_xmtc_dataset({"test": files["test"]}, label_space=space)
    assert parts["test"]["labels"][:] == [[2, 3], [0, 1]]
    assert extended.unseen == ["air", "blue"] and space.unseen == []
    # The second is known from evaluation data only.
    for known in (LabelSpace(["red"], [1], 2), LabelSpace(["red"], [1], 2, ["fruit"])):
        with pytest.raises(ValueError, match=r"1 labels that the model does not have, such as \['fruit'\]"):
            load_xmtc_dataset({"train": files["train"]}, label_space=known)


def test_a_whole_taxonomy(files):
    parts, space = load_xmtc_dataset({"train": files["train"]}, label_names=["sky", "red", "fruit"])
    assert space.counts == [0, 1, 2] and parts["train"]["labels"][:] == [[1, 2], [2]]


def test_labels_of_loaded_datasets_may_be_class_ids_integers_or_strings():
    features = Features({"text": Value("string"), "labels": List(ClassLabel(names=["zebra", "ant"]))})
    classes = Dataset.from_dict({"text": ["a", "b"], "labels": [[0], [1, 0]]}, features=features)
    _, space = load_xmtc_dataset({"train": classes})
    assert (space.names, space.counts) == (["ant", "zebra"], [1, 2])
    integers = Dataset.from_dict({"text": ["a"], "labels": [[7, 5]]}).with_format("numpy")
    assert load_xmtc_dataset({"train": integers})[1].names == ["5", "7"]
    strings = Dataset.from_dict({"body": ["a", "b"], "tags": ["x; y", None], "id": [1, 2]})
    options = {"text_column": "body", "labels_column": "tags", "label_delimiter": ";", "allow_no_labels": True}
    parts, space = load_xmtc_dataset({"train": strings}, **options)
    assert space.names == ["x", "y"] and parts["train"].to_list()[1] == {"text": "b", "labels": []}
    wrong = Dataset.from_dict({"text": ["a"], "labels": [[-1]]}, features=features)
    with pytest.raises(BadRow, match="class id outside the names: -1"):
        load_xmtc_dataset({"train": wrong})


@pytest.mark.parametrize("cell", ["grain; wheat", "grain|wheat", "grain,wheat", "['grain', 'wheat']"])
def test_a_part_in_another_format_may_have_another_delimiter(tmp_path, cell):
    train = write(tmp_path / "a.jsonl", [{"text": "a", "labels": ["grain", "wheat", "oil, crude"]}])
    test = tmp_path / "b.csv"
    test.write_text(f'text,labels\nb,"{cell}"\n')
    parts, space = load_xmtc_dataset({"train": train, "test": test})
    assert space.decode(parts["test"]["labels"][0]) == ["grain", "wheat"]
    # What a trained model knows decides, too: here that the comma is part of a name.
    test.write_text('text,labels\nb,"oil, crude;wheat"\n')
    parts, space = load_xmtc_dataset({"test": test}, label_space=space)
    assert space.decode(parts["test"]["labels"][0]) == ["oil, crude", "wheat"]


def test_rows_of_a_matrix_are_not_taken_for_names_without_a_word(tmp_path, caplog):
    load_xmtc_dataset({"train": write(tmp_path / "a.jsonl", [{"text": "a", "labels": "0,1,0"}])})
    assert "The only labels are 0 and 1" in caplog.text


def test_labels_that_are_the_same_but_for_their_spelling_are_named(tmp_path, caplog):
    rows = [{"text": "a", "labels": ["Caf\u00e9", "cafe\u0301", "tea"]}]
    assert len(load_xmtc_dataset({"train": write(tmp_path / "a.jsonl", rows)})[1].names) == 3
    assert r"1 labels are written in several ways" in caplog.text and r"'Caf\xe9' and 'cafe\u0301'" in caplog.text


def test_known_labels_are_looked_through_once(caplog):
    names = ["a", "A", "b", "B", "nan"]
    warn_of_names(names, iter(names))
    assert not caplog.text


def test_a_stream_is_not_read_to_its_end_in_search_of_a_delimiter():
    read = Counter()

    def rows(part):
        for _ in range(2500):
            read[part] += 1
            yield {"text": "a", "labels": ["red", "fruit"]}

    parts = {name: IterableDataset.from_generator(rows, gen_kwargs={"part": name}) for name in ("train", "test")}
    load_xmtc_dataset(parts, streaming=True)
    # Whole for the labels, and before that what may tell a delimiter.
    assert max(read.values()) < 2 * 2500


def test_labels_of_test_texts_that_are_spelled_or_separated_otherwise_are_named(files, tmp_path, caplog):
    test = write(tmp_path / "other.jsonl", [{"text": "a", "labels": ["Red", "fruit"]}])
    _, space = load_xmtc_dataset({"train": files["train"], "test": test})
    assert "1 labels are written in several ways" in caplog.text and "'red' and 'Red'" in caplog.text
    assert "most of" not in caplog.text
    caplog.clear()
    write(test, [{"text": "a", "labels": ["red fruit", "blue air"]}])
    load_xmtc_dataset({"test": test}, label_space=space)
    assert "most of the 2 labels of the test part: write them as in training" in caplog.text
    # What the model has been told is not told again.
    assert "several ways" not in caplog.text


@pytest.mark.parametrize(
    ("separator", "as_list"), [(" ", False), ("/", False), (" # ", False), (" ", True), (";", True)]
)
def test_labels_that_look_like_several_in_one_string_are_named(tmp_path, caplog, separator, as_list):
    strings = [separator.join(pair) for pair in (("1", "2"), ("1", "3"), ("3", "1"), ("2", "3"))]
    rows = [{"text": "a", "labels": [string] if as_list else string} for string in strings]
    load_xmtc_dataset({"train": write(tmp_path / "a.jsonl", rows)})
    assert f"{separator.strip() or ' '!r} separates 3 different names in these 4 labels" in caplog.text
    caplog.clear()
    # One label for each text, and several.
    for other in (
        [["machine learning"], ["a/b"], ["a/c"], ["c;d"]],
        [["a b", "b a"], ["a", "b"]],
        [["c"], ["c+"], ["c++"], ["d"], ["e"]],
        [[f"{color} {thing}"] for color in ("red", "blue", "green") for thing in ("car", "bike", "bus")],
        [[f"{room}/{thing}/{state}"] for room in "abc" for thing in "def" for state in ("new", "used")],
    ):
        load_xmtc_dataset({"train": Dataset.from_dict({"text": ["a"] * len(other), "labels": other})})
    assert "different names" not in caplog.text


def test_what_pandas_writes_for_missing_values_is_named(tmp_path, caplog):
    load_xmtc_dataset({"train": write(tmp_path / "a.jsonl", [{"text": "a", "labels": "nan"}])})
    assert "pandas writes ['nan'] for missing values" in caplog.text


@pytest.mark.parametrize(
    ("strings", "names", "warning"),
    [
        (["grain;wheat", "wheat"], ["grain", "wheat"], "separated by ';'"),
        (["grain | wheat", "rye"], ["grain", "rye", "wheat"], "separated by '|'"),
        (["grain, wheat", "rye"], ["grain", "rye", "wheat"], None),
        (["grain;wheat", "rye,oats"], ["grain;wheat", "oats", "rye"], "several delimiters"),
        (["grain", "rye"], ["grain", "rye"], None),
    ],
)
def test_what_separates_labels_is_found(tmp_path, caplog, strings, names, warning):
    rows = [{"text": "a", "labels": string} for string in strings]
    single = [{"text": "b", "labels": "oil, crude" if warning and "';'" in warning else "rye"}]
    for make in (lambda name, rows: write(tmp_path / name, rows), lambda name, rows: Dataset.from_list(rows)):
        caplog.clear()
        parts, space = load_xmtc_dataset({"train": make("a.jsonl", rows), "test": make("b.jsonl", single)})
        assert space.names == names
        # The same for every part.
        assert [len(ids) for ids in parts["test"]["labels"]] == [1]
        assert (warning is None and not caplog.records) or warning in caplog.text


def test_wrong_requests(files, tmp_path):
    streamed = Dataset.from_list(TRAIN).to_iterable_dataset()
    for arguments, options, message in [
        ({"dev": files["test"]}, {}, r"parts \['dev'\], allowed are"),
        ({}, {}, "allowed are"),
        (Dataset.from_list(TRAIN), {}, "files is a Dataset; give its parts by name"),
        ({"train": TRAIN}, {}, "the train part is a list; give a file or a dataset"),
        ({"test": files["test"]}, {}, "neither a train part nor a label_space"),
        (files, {"label_names": ["a"], "label_space": LabelSpace(["a"], [1], 1)}, "both given"),
        (files, {"label_column": "x"}, r"unknown options \['label_column'\]"),
        (files, {"labels_path": "x"}, "labels_path is one file"),
        (files, {"bad_rows": "ignore"}, "bad_rows is 'ignore'"),
        ({"train": streamed}, {}, "pass streaming=True"),
        ({"train": Dataset.from_dict({"body": ["a"]})}, {}, r"no column 'text', only \['body'\]"),
        ({"train": write(tmp_path / "bad.jsonl", [{}])}, {"bad_rows": "skip"}, "no valid rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_xmtc_dataset(arguments, **options)


def test_load_hub_dataset_from_disk_and_from_files(tmp_path):
    rows = Dataset.from_list([{"body": row["text"], "tags": row["labels"], "text": "other"} for row in TRAIN])
    columns = {"text_column": "body", "labels_column": "tags"}
    rows.save_to_disk(tmp_path / "one")
    assert load_hub_dataset(tmp_path / "one", **columns)["train"].to_list() == TRAIN
    DatasetDict({"train": rows, "dev": rows.select([1])}).save_to_disk(tmp_path / "two")
    assert list(load_hub_dataset(tmp_path / "two", **columns)) == ["train"]
    splits = load_hub_dataset(tmp_path / "two", split_map={"validation": "dev"}, **columns)
    assert {name: split.to_list() for name, split in splits.items()} == {"validation": TRAIN[1:]}
    with pytest.raises(ValueError, match=r"has the splits \['dev', 'train'\]"):
        load_hub_dataset(tmp_path / "two", split_map={"test": "eval"}, **columns)
    with pytest.raises(ValueError, match="no column 'words'"):
        load_hub_dataset(tmp_path / "two", text_column="words", labels_column="tags")


def test_load_hub_dataset_streamed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRAIN), encoding="utf-8")
    splits = load_hub_dataset(tmp_path / "data", text_column="text", labels_column="labels", streaming=True)
    assert isinstance(splits["train"], IterableDataset)
    parts, _ = load_xmtc_dataset(splits, streaming=True)
    assert [row["labels"] for row in parts["train"]] == [[0, 1], [0]]


def test_split_validation_is_seeded_and_loses_nothing():
    dataset = Dataset.from_dict({"id": list(range(50))})
    train, validation = split_validation(dataset, fraction_or_size=0.2, seed=1)
    assert len(validation) == 10 and sorted(train["id"][:] + validation["id"][:]) == list(range(50))
    assert validation["id"][:] == sorted(validation["id"])
    assert split_validation(dataset, fraction_or_size=10, seed=1)[1]["id"][:] == validation["id"][:]
    assert split_validation(dataset, fraction_or_size=10, seed=2)[1]["id"][:] != validation["id"][:]
    assert len(split_validation(dataset.select(range(2)), fraction_or_size=0.01, seed=0)[1]) == 1


@pytest.mark.parametrize("wrong", [0, 0.0, 1.0, -3, 50, True, 0.999])
def test_split_validation_leaves_a_text_on_each_side(wrong):
    with pytest.raises(ValueError, match="fraction|validation"):
        split_validation(Dataset.from_dict({"id": list(range(50))}), fraction_or_size=wrong, seed=0)


@pytest.mark.parametrize("streaming", [False, True])
def test_tokenize_truncates_without_padding_and_keeps_labels(files, streaming, tokenizer):
    parts, _ = load_xmtc_dataset(files, streaming=streaming)
    tokens = tokenize(parts, tokenizer, max_length=3)
    assert type(tokens) is type(parts)
    row = next(iter(tokens["train"]))
    assert row == {
        "labels": [0, 1],
        "input_ids": tokenizer.convert_tokens_to_ids(["[CLS]", "red", "[SEP]"]),
        "token_type_ids": [0, 0, 0],
        "attention_mask": [1, 1, 1],
        "length": 3,
    }
    longer = list(tokenize(parts["test"], tokenizer, max_length=16))
    assert [row["length"] for row in longer] == [4, 4]
    assert XMTCCollator(tokenizer)(longer)["labels"].tolist() == [[2, 3], [0, 1]]


def test_tokenize_refuses_what_cannot_work(tokenizer):
    dataset = Dataset.from_list(TRAIN)
    with pytest.raises(ValueError, match="max_length is 2, but 2 special tokens"):
        tokenize(dataset, tokenizer, max_length=2)
    with pytest.raises(ValueError, match="num_proc is 2"):
        tokenize(dataset.to_iterable_dataset(), tokenizer, max_length=8, num_proc=2)
