"""A tokenizer of whole words, with a vocabulary from training texts."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
