"""Batches: padded tokens, label ids padded with -100."""

import copy

import numpy as np
import pytest
import torch
from transformers import BertTokenizer

from glocal_xml.data import XMTCCollator

ROWS = [
    {"input_ids": [2, 5, 3], "attention_mask": [1, 1, 1], "labels": [4], "length": 3},
    {"input_ids": [2, 5, 6, 7, 3], "attention_mask": [1, 1, 1, 1, 1], "labels": [0, 2, 9], "length": 5},
]


@pytest.fixture
def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    return BertTokenizer(vocab={word: i for i, word in enumerate(words)})


def test_tokens_and_labels_are_padded_and_the_rows_are_left_alone(tokenizer):
    rows = copy.deepcopy(ROWS)
    batch = XMTCCollator(tokenizer)(rows)
    assert rows == ROWS and set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].tolist() == [[2, 5, 3, 0, 0], [2, 5, 6, 7, 3]]
    assert batch["attention_mask"].sum(1).tolist() == [3, 5]
    assert batch["labels"].dtype == torch.int64
    assert batch["labels"].tolist() == [[4, -100, -100], [0, 2, 9]]


def test_padding_side_and_multiple(tokenizer):
    tokenizer.padding_side = "left"
    batch = XMTCCollator(tokenizer, pad_to_multiple_of=8)(ROWS)
    assert batch["input_ids"].shape == (2, 8)
    assert batch["input_ids"][0].tolist() == [0] * 5 + [2, 5, 3]


def test_texts_without_labels(tokenizer):
    empty = [{**row, "labels": []} for row in ROWS]
    assert XMTCCollator(tokenizer)(empty)["labels"].tolist() == [[-100], [-100]]
    assert XMTCCollator(tokenizer)([empty[0], ROWS[1]])["labels"].tolist() == [[-100] * 3, [0, 2, 9]]
    unlabelled = [{"input_ids": row["input_ids"]} for row in ROWS]
    assert set(XMTCCollator(tokenizer)(unlabelled)) == {"input_ids", "attention_mask"}


def test_rows_that_make_no_batch(tokenizer):
    collator = XMTCCollator(tokenizer)
    with pytest.raises(ValueError, match="tokenize the dataset first"):
        collator([{"text": "a", "labels": [1]}])
    with pytest.raises(ValueError, match="no rows"):
        collator([])
    with pytest.raises(ValueError, match="1 of 2 rows have labels"):
        collator([ROWS[0], {"input_ids": [2, 3]}])


@pytest.mark.parametrize("ids", [np.array([0, 2, 9]), torch.tensor([0, 2, 9]), (0, 2, 9), {9, 0, 2}])
def test_labels_may_be_any_ids(tokenizer, ids):
    assert XMTCCollator(tokenizer)([{**ROWS[1], "labels": ids}])["labels"].tolist() == [[0, 2, 9]]


@pytest.mark.parametrize("ids", [[0.0, 1.0, 1.0], [True, False], np.array([1.0]), 3, None, "12", ["a"], [[1, 2]]])
def test_labels_that_are_no_ids_are_refused(tokenizer, ids):
    with pytest.raises(ValueError, match="give a list of whole numbers"):
        XMTCCollator(tokenizer)([{**ROWS[1], "labels": ids}])
