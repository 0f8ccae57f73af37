"""Files of PECOS: label indices before a tab, or lines of text beside a sparse matrix."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from glocal_xml.data import BadRow, BadRows, read_rows

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
# No zero bytes: a file that starts with one is refused as binary (test_hostile_files.py).
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n\t")
texts = st.text(characters, min_size=1).filter(str.strip)
tables = st.lists(st.tuples(texts, st.sets(st.integers(0, 6), min_size=1)), min_size=1, max_size=8)
NAMES = [f"label, {i}" for i in range(7)]


@pytest.fixture
def label_map(tmp_path):
    path = tmp_path / "output-items.txt"
    path.write_text("".join(f"{name}\n" for name in NAMES), encoding="utf-8")
    return path


@quick
@given(table=tables, relevance=st.booleans())
def test_lines_with_indices(tmp_path, label_map, table, relevance):
    path = tmp_path / "train.txt"
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for text, indices in table:
            labels = ",".join(f"{index}::0.5" if relevance else str(index) for index in sorted(indices))
            file.write(f"{labels}\t{text}\n")
    expected = [{"text": text, "labels": [NAMES[i] for i in sorted(indices)]} for text, indices in table]
    assert list(read_rows(path, label_map=label_map)) == expected
    numbers = [row["labels"] for row in read_rows(path)]
    assert numbers == [[str(i) for i in sorted(indices)] for _, indices in table]


@quick
@given(table=tables)
def test_lines_of_text_and_a_matrix(tmp_path, label_map, table):
    path = tmp_path / "X.trn.txt"
    path.write_text("".join(f"{text}\n" for text, _ in table), encoding="utf-8", newline="\n")
    matrix = sparse.lil_matrix((len(table), len(NAMES)))
    for row, (_, indices) in enumerate(table):
        matrix[row, list(indices)] = 1.0
    sparse.save_npz(tmp_path / "Y.trn.npz", matrix.tocsr())
    expected = [{"text": text, "labels": [NAMES[i] for i in sorted(indices)]} for text, indices in table]
    assert list(read_rows(path, label_map=label_map)) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no tab at all", "no tab"),
        ("one,2\ttext", "labels that are no indices:"),
        ("7\ttext", "label index outside the map:"),
        ("-1\ttext", "labels that are no indices:"),
        ("\ttext", "no labels"),
        ("1\t ", "empty text"),
    ],
)
def test_bad_lines_are_named(tmp_path, label_map, line, reason):
    path = tmp_path / "train.txt"
    path.write_text(f"1\tfirst\n{line}\n2\tlast\n", encoding="utf-8")
    found = list(read_rows(path, label_map=label_map, bad_rows=(bad_rows := BadRows("skip"))))
    assert [row["text"] for row in found] == ["first", "last"] and bad_rows.by_reason == {reason: 1}
    with pytest.raises(BadRow, match="line 2"):
        list(read_rows(path, label_map=label_map))


def test_a_matrix_that_does_not_fit_or_is_none(tmp_path):
    path, matrix = tmp_path / "X.tst.txt", tmp_path / "Y.tst.npz"
    path.write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match="Y….npz"):
        read_rows(path, file_format="pecos_npz")
    matrix.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ValueError, match="no sparse matrix"):
        read_rows(path)
    for rows in (1, 3):
        sparse.save_npz(matrix, sparse.csr_matrix([[1.0, 0.0]] * rows))
        with pytest.raises(ValueError, match=f"has 2 lines, .* has {rows} rows"):
            list(read_rows(path))
    assert [row["labels"] for row in read_rows(path, labels_path=write_matrix(tmp_path / "other.npz"))] == [["1"]] * 2


def write_matrix(path):
    """With a stored zero, which is no label."""
    sparse.save_npz(path, sparse.csr_matrix(([0.0, 1.0, 1.0], [0, 1, 1], [0, 2, 3]), shape=(2, 2)))
    return path
