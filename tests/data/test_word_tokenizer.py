import pytest
from transformers import AutoTokenizer

from glocal_xml.data import train_word_tokenizer
from glocal_xml.data.words import vocabulary

TEXTS = ["The fox, the FOX; a moon!", "a moon\n\nover foo_bar 2.0", "over the moon", "zebra ant"]


def words(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])


def test_vocabulary_by_texts_then_by_word():
    # A word counts once a text: "the" and "fox" are in two texts and one.
    expected = ["[PAD]", "[UNK]", "moon", "a", "over", "the"]
    assert vocabulary(train_word_tokenizer(iter(TEXTS))) == expected
    assert vocabulary(train_word_tokenizer(TEXTS[::-1], max_words=3)) == expected[:5]
    rare = vocabulary(train_word_tokenizer(TEXTS, min_texts=1))
    assert rare == [*expected, "0", "2", "ant", "bar", "foo", "fox", "zebra"]


def test_words_of_a_text():
    tokenizer = train_word_tokenizer([*TEXTS, "naïve हिन्दी"], min_texts=1)
    assert words(tokenizer, "FOO_bar: the\tzebra-fox (v2.0)?") == ["foo", "bar", "the", "zebra", "fox", "[UNK]", "0"]
    # Composed or not, a letter is the same; marks belong to their word.
    assert words(tokenizer, "nai\u0308ve Naïve हिन्दी") == ["naïve", "naïve", "हिन्दी"]
    assert tokenizer("the fox")["attention_mask"] == [1, 1]


@pytest.mark.parametrize("text", [" ", "\n\n", "...", "_-_", "\u00a0!"])
def test_a_text_without_words_can_be_read(text):
    tokenizer = train_word_tokenizer([*TEXTS, text, text])
    assert "[UNK]" not in vocabulary(tokenizer)[2:]
    assert tokenizer(text)["input_ids"] == [tokenizer.unk_token_id] == [1]


def test_an_empty_line_is_no_empty_text():
    assert words(train_word_tokenizer(TEXTS), "the\n\nmoon\n") == ["the", "moon"]


def test_saves_and_loads_through_the_auto_class(tmp_path):
    tokenizer = train_word_tokenizer(TEXTS)
    tokenizer.model_max_length = 3
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    batch = loaded(["The moon over a ...", "!"], truncation=True, padding=True)
    assert batch.data == tokenizer(["The moon over a ...", "!"], truncation=True, padding=True).data
    assert batch["input_ids"] == [[5, 2, 4], [1, 0, 0]] and batch["attention_mask"] == [[1, 1, 1], [1, 0, 0]]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert vocabulary(loaded) == vocabulary(tokenizer) and loaded.pad_token_id == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_words": 0}, "max_words"), ({"min_texts": "2"}, "min_texts"), ({"min_texts": 9}, "lower min_texts")],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        train_word_tokenizer(TEXTS, **options)
