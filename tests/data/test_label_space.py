"""The label space: ids, propensities, bands, and its files."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from napkinxc.metrics import Jain_et_al_inverse_propensity

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import LabelSpace

quick = settings(deadline=None, max_examples=60)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=6)
label_lists = st.lists(st.lists(names, max_size=5), min_size=1, max_size=20).filter(lambda lists: any(lists))


@quick
@given(train=label_lists, test=label_lists)
def test_encode_and_decode_are_inverse(train, test):
    space = LabelSpace.from_label_lists(train)
    trained = list(space.names)
    assert trained == sorted({label for labels in train for label in labels})
    new = space.add_unseen(test)
    assert new == sorted({label for labels in test for label in labels} - set(trained)) == space.unseen
    assert space.add_unseen(test) == [] and space.names == trained
    for labels in [*train, *test]:
        ids = space.encode(labels)
        assert ids == sorted(set(ids)) and set(space.decode(ids)) == set(labels)
    assert all(i >= space.num_labels for i in space.encode(new))


@quick
@given(train=label_lists, a=st.floats(0.1, 1), b=st.floats(0.1, 5))
def test_propensities_equal_those_of_napkinxc(train, a, b):
    space = LabelSpace.from_label_lists(train)
    space.add_unseen([["never trained\x00" * 2]])
    matrix = np.zeros((len(train), space.num_labels + 1))
    for row, labels in enumerate(train):
        matrix[row, space.encode(labels)] = 1
    found = space.inverse_propensities(a, b)
    # With one or two texts the formula gives weights below one, even negative ones; ours are then all one.
    expected = Jain_et_al_inverse_propensity(matrix, A=a, B=b) if len(train) > 2 else np.ones(matrix.shape[1])
    np.testing.assert_allclose(found, expected, atol=1e-6)


@quick
@given(
    counts=st.lists(st.integers(0, 300) | st.sampled_from([0, 1, 20, 21, 100, 101]), min_size=1),
    unseen=st.integers(0, 4),
)
def test_bands_partition_all_labels(counts, unseen):
    space = LabelSpace([f"label {i}" for i in range(len(counts))], counts, 300, [f"unseen {i}" for i in range(unseen)])
    bands = space.bands()
    assert list(bands) == ["unseen", "few", "medium", "many"]
    assert sorted(np.concatenate(list(bands.values())).tolist()) == list(range(len(counts) + unseen))
    for name, lowest, highest in [("unseen", 0, 0), ("few", 1, 20), ("medium", 21, 100), ("many", 101, 300)]:
        assert all(lowest <= [*counts, *[0] * unseen][i] <= highest for i in bands[name])


def test_taxonomy_keeps_its_order_and_its_labels_without_a_text():
    space = LabelSpace.from_label_lists([["b", "b"], ["a", "b"]], names=["c", "b", "a"])
    assert (space.names, space.counts, space.num_texts) == (["c", "b", "a"], [0, 2, 1], 2)
    assert space.bands()["unseen"].tolist() == [0]
    with pytest.raises(ValueError, match=r"1 labels are not among the 1 names given, such as \['b'\]"):
        LabelSpace.from_label_lists([["a", "b"]], names=["a"])


def test_log_odds():
    space = LabelSpace(["a", "b", "c"], [0, 5, 10], 10)
    found = space.log_odds()
    assert found.dtype == np.float32 and found.shape == (3,)
    np.testing.assert_allclose(found, [np.log(0.5 / 10.5), 0, np.log(10.5 / 0.5)], rtol=1e-6, atol=1e-7)


def test_describe():
    space = LabelSpace(["a", "b", "c"], [2000, 50, 0], 2000, ["d"])
    assert space.describe() == (
        "3 labels, 2,000 texts, 1.02 labels per text; labels by training texts: unseen 2, few 0, medium 1, many 1; "
        "1 met only in evaluation data"
    )


@quick
@given(train=label_lists)
def test_save_and_load(tmp_path_factory, train):
    folder = tmp_path_factory.mktemp("space") / "new"
    space = LabelSpace.from_label_lists(train)
    space.save(folder)
    assert LabelSpace.load(folder) == space
    assert sorted(path.name for path in folder.iterdir()) == ["label_counts.json", "labels.txt"]
    assert (folder / "labels.txt").read_bytes() == "".join(name + "\n" for name in space.names).encode()


@quick
@given(train=label_lists, test=label_lists)
def test_pickle_keeps_everything(train, test):
    space = LabelSpace.from_label_lists(train)
    space.add_unseen(test)
    copied = pickle.loads(pickle.dumps(space))
    assert copied == space and [copied.encode(labels) for labels in test] == [space.encode(labels) for labels in test]


def test_load_refuses_files_of_different_runs(tmp_path):
    LabelSpace(["a", "b"], [1, 1], 2).save(tmp_path)
    (tmp_path / "labels.txt").write_bytes(b"a\nb\nc\n")
    with pytest.raises(ValueError, match="3 names but 2 counts"):
        LabelSpace.load(tmp_path)
    (tmp_path / "label_counts.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="do not fit together"):
        LabelSpace.load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], 1), "no labels"),
        ((["a"], [1, 2], 3), "1 names but 2 counts"),
        ((["a"], [0], 0), "num_texts is 0"),
        ((["a"], [2], 1), "between 0 and num_texts"),
        ((["a", "a"], [1, 1], 1), "'a' occurs 2 times"),
        ((["a"], [1], 1, ["a"]), "'a' occurs 2 times"),
        (([1], [1], 1), "label name 1 is no string"),
        (([""], [1], 1), "empty or has a line break"),
        ((["a\rb"], [1], 1), "empty or has a line break"),
    ],
)
def test_wrong_label_spaces(arguments, message):
    with pytest.raises(ValueError, match=message):
        LabelSpace(*arguments)


@pytest.mark.parametrize("labels", ["a,b", None, 3])
def test_the_labels_of_a_text_are_a_list(labels):
    for take in (lambda: LabelSpace.from_label_lists([labels]), lambda: LabelSpace(["a"], [1], 1).encode(labels)):
        with pytest.raises(ValueError, match="give a list of names"):
            take()


def test_unknown_labels_and_ids():
    space = LabelSpace(["a"], [1], 1, ["b"])
    with pytest.raises(ValueError, match="'c' is not among the 2 labels"):
        space.encode(["a", "c"])
    for wrong in (-100, 2):
        with pytest.raises(ValueError, match=f"label id {wrong}"):
            space.decode([0, wrong])
    with pytest.raises(ValueError, match="b is 0"):
        space.inverse_propensities(b=0)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "labels.txt"
    write_atomically(path, "old\r\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_bytes() == b"old\r\n"
    assert list(tmp_path.iterdir()) == [path]
