import gzip

import numpy as np
import pytest

from glocal_xml.data import load_word_vectors

WORDS = ["[PAD]", "[UNK]", "moon", "fox", "zebra"]
LINES = ["the 9 9 9", "moon 0.5 -1 2", ". . . 1 2 3", "fox 1e-1 0 3", "moon 7 7 7"]


def write(path, lines=LINES):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    return path


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.fixture(params=["glove.txt", "glove.txt.gz", "word2vec.vec", "glove.npz"])
def vector_file(request, tmp_path):
    path = tmp_path / request.param
    if path.suffix == ".npz":
        vectors = np.array([[9, 9, 9], [0.5, -1, 2], [0.1, 0, 3], [7, 7, 7]], dtype=np.float64)
        return write_npz(path, words=np.array(["the", "moon", "fox", "moon"]), vectors=vectors)
    return write(path, ["5 3", *(line + " " for line in LINES)] if path.suffix == ".vec" else LINES)


def test_reads_the_words_of_the_vocabulary(vector_file):
    matrix, found = load_word_vectors(vector_file, WORDS)
    assert matrix.shape == (5, 3) and matrix.dtype == np.float32 and found == 2
    np.testing.assert_allclose(matrix[[0, 2, 3]], [[0, 0, 0], [0.5, -1, 2], [0.1, 0, 3]], rtol=1e-6)


def test_words_without_a_vector_are_drawn(vector_file):
    many = [*WORDS, *(f"unseen {i}" for i in range(2000))]
    matrix, found = load_word_vectors(vector_file, many)
    drawn = matrix[[1, 4, *range(5, len(many))]]
    assert found == 2 and np.abs(drawn).max() <= 1 and abs(drawn.std() - 3**-0.5) < 0.02
    assert np.array_equal(load_word_vectors(vector_file, many)[0], matrix)
    other = load_word_vectors(vector_file, many, seed=1)[0]
    assert np.array_equal(other[2], matrix[2]) and not np.array_equal(other[1], matrix[1])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["moon 1 2 3", "fox 1 2"], "line 2: 2 numbers, but the lines before have 3"),
        (["moon 1 2 3", "fox 1 2 3 4"], "line 2: 4 numbers, but the lines before have 3"),
        (["2 4", "moon 1 2 3"], "line 2: 3 numbers"),
        (["moon 1 2 3", "fox 1 x 3"], "line 2: .*'fox' must be followed by 3 numbers"),
        (["moon 1 nan 3"], "line 1: .*not finite"),
        (["moon"], "line 1: no vector"),
        (["moon 1 2", ""], "line 2"),
        (["Moon 1 2 3"], "none of the 5 words"),
    ],
)
def test_bad_lines_are_named(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        load_word_vectors(write(tmp_path / "bad.txt", lines), WORDS)


def test_bad_bytes_are_named(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"moon 1 2\n\xff 1 2\n")
    with pytest.raises(ValueError, match="line 2: invalid UTF-8"):
        load_word_vectors(tmp_path / "bad.txt", WORDS)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": np.array(["moon"])}, "arrays `words` and `vectors`"),
        ({"words": np.array(["moon"]), "vectors": np.ones((2, 3))}, "shape"),
        ({"words": np.array(["moon"]), "vectors": np.ones(1)}, "shape"),
        ({"words": np.array(["moon"]), "vectors": np.full((1, 3), np.inf)}, "'moon': .*not finite"),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        load_word_vectors(write_npz(tmp_path / "bad.npz", **arrays), WORDS)


def test_a_file_that_is_no_archive_is_named(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"nothing of that kind")
    with pytest.raises(ValueError, match="is no .npz"):
        load_word_vectors(tmp_path / "bad.npz", WORDS)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_word_vectors(tmp_path / "none.txt", WORDS)
