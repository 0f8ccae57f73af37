"""A tokenizer of whole words, with a vocabulary from training texts, and pretrained vectors for these words."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .array_files import read_arrays
from .text_files import read_strict_lines

PADDING, UNKNOWN = "[PAD]", "[UNK]"


def train_word_tokenizer(
    texts: Iterable[str], *, max_words: int = 500_000, min_texts: int = 2
) -> PreTrainedTokenizerFast:
    """
    Makes a tokenizer of the words that most texts have; it saves and loads like any other, through `AutoTokenizer`.

    Texts are brought to Unicode's NFC and lower-cased. A word is a run of letters, marks and digits of any script;
    all else separates words and is dropped, as AttentionXML drops punctuation. Scripts without spaces are not cut
    into words. A text without any word becomes `[UNK]`, so that there is something to read; only the empty string
    stays empty.

    Args:
        texts: The training texts; read once.
        max_words: Most words of the vocabulary, those in the most texts first, equal ones in their order; the default
            is AttentionXML's. `[PAD]` with the id 0 and `[UNK]` with 1 come on top.
        min_texts: In how many texts a word must be; one that is in a single text could only be learned by heart.
    """
    for name, value in {"max_words": max_words, "min_texts": min_texts}.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a number of at least 1, got {value!r}")
    tokenizer = Tokenizer(models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
    # `[UNK]` in capitals, which lower-casing leaves to this one place.
    to_unknown = normalizers.Replace(Regex(r"\A[\W_]*\z"), UNKNOWN)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(), to_unknown])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"\[{UNKNOWN[1:-1]}\]|[^\W_]+"), "removed", invert=True)
    counts = Counter[str]()
    for text in texts:
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
        counts.update({word for word, _ in pieces} - {UNKNOWN})
    frequent = sorted((word for word, count in counts.items() if count >= min_texts), key=lambda w: (-counts[w], w))
    if not frequent:
        raise ValueError(
            f"no word is in {min_texts} training texts or more, of {len(counts)} words in all; lower min_texts, or "
            "give more texts"
        )
    words = [PADDING, UNKNOWN, *frequent[:max_words]]
    tokenizer.model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        model_input_names=["input_ids", "attention_mask"],
    )


def vocabulary(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The words of a tokenizer in the order of their ids."""
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def load_word_vectors(path: str | os.PathLike, words: Sequence[str], *, seed: int = 0) -> tuple[np.ndarray, int]:
    """
    The vectors of `words`, of shape (words, size) in single precision, and how many of them the file has.

    `[PAD]` is zero. Words that the file lacks, `[UNK]` among them, are drawn evenly from -1 to 1 in every number, as
    in AttentionXML: a standard deviation of 0.58, where GloVe 6B's is 0.53 for its 50,000 most frequent words.

    Args:
        path: Text, gzipped or not, with a word and its numbers in each line, parted by single blanks, after an
            optional first line with the number of words and the size; or `.npz` with the arrays `words` and
            `vectors`. Of a word that comes twice the first counts.
        words: The vocabulary in the order of its ids.
        seed: Of the vectors that are drawn.
    """
    path = Path(path)
    ids = {word: i for i, word in enumerate(words) if word != PADDING}
    read = _read_npz if path.suffix == ".npz" else _read_text
    vectors: dict[int, np.ndarray] = {}
    for word, vector in read(path, ids.keys()):
        vectors.setdefault(ids[word], vector)
    if not vectors:
        raise ValueError(
            f"{path} has none of the {len(words)} words, such as {list(words[2:5])}; words are lower-cased here: give "
            "vectors of lower-cased words in the language of the texts"
        )
    size = len(next(iter(vectors.values())))
    matrix = np.random.default_rng(seed).uniform(-1, 1, (len(words), size)).astype(np.float32)
    for i, vector in vectors.items():
        matrix[i] = vector
    if PADDING in words:
        matrix[words.index(PADDING)] = 0
    return matrix, len(vectors)


def _read_npz(path: Path, wanted: "set[str]") -> Iterator[tuple[str, np.ndarray]]:
    arrays = read_arrays(path)
    if not {"words", "vectors"} <= arrays.keys():
        raise ValueError(f"{path} has {', '.join(arrays)}; give the arrays `words` and `vectors`")
    words, vectors = arrays["words"], arrays["vectors"]
    if words.dtype.kind != "U" or vectors.dtype.kind not in "iuf":
        raise ValueError(f"{path} has words of {words.dtype} and vectors of {vectors.dtype}; give texts and numbers")
    if words.ndim != 1 or vectors.ndim != 2 or len(words) != len(vectors):
        raise ValueError(
            f"{path} has words of shape {words.shape} and vectors of shape {vectors.shape}; they must be (words,) and "
            "(words, size)"
        )
    for i, word in enumerate(words.tolist()):
        if word in wanted:
            yield word, _finite(vectors[i].astype(np.float32), f"{path}, word {word!r}")


def _read_text(path: Path, wanted: "set[str]") -> Iterator[tuple[str, np.ndarray]]:
    size = None
    for number, line in read_strict_lines(path):
        place = f"{path}, line {number}"
        # A blank at the end is word2vec's.
        line = line.rstrip(" ")
        if size is None:
            cells = line.split(" ")
            is_header = len(cells) == 2 and all(cell.isdecimal() for cell in cells)
            size = int(cells[1][:10]) if is_header else len(cells) - 1
            if size < 1:
                raise ValueError(f"{place}: no vector; a line is a word and its numbers, parted by blanks")
            if is_header:
                continue
        # From the right: some words of GloVe have blanks in them.
        word, *values = line.rsplit(" ", size)
        if len(values) != size or (" " in word and _is_number(word.rpartition(" ")[2])):
            raise ValueError(
                f"{place}: {len(line.split(' ')) - 1} numbers, but the lines before have {size}; repair the line or "
                "the file"
            )
        if word in wanted:
            try:
                vector = np.array(values, dtype=np.float32)
            except ValueError as error:
                raise ValueError(f"{place}: {error}; the word {word!r} must be followed by {size} numbers") from None
            yield word, _finite(vector, place)


def _finite(vector: np.ndarray, place: str) -> np.ndarray:
    if not np.isfinite(vector).all():
        raise ValueError(f"{place}: the vector has numbers that are not finite; repair or remove it")
    return vector


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
