"""What an encoder reads of a text, made of the ids of all of its tokens, is what its tokenizer makes of the text."""

import pytest
from tiny_encoders import WORDS
from transformers import (
    AlbertTokenizer,
    BertTokenizer,
    ByT5Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    RobertaTokenizer,
    T5Tokenizer,
    XLNetTokenizer,
)

from glocal_xml.data.words import train_word_tokenizer
from glocal_xml.modeling.text_windows import TextStarts, all_token_ids

TEXTS = [
    " ".join(WORDS),
    "Apple, banana! " * 9,
    "moon",
    " ",
    "[SEP] kite </s>  queen\n<sep> ice",
    "unbekannte Wörter 漢字 😀",
    " ".join(WORDS) + ".",
]


def trained(tokenizer_class):
    tokenizer = tokenizer_class().train_new_from_iterator([TEXTS * 20], 400)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def reversed_side(tokenizer):
    tokenizer.truncation_side = tokenizer.padding_side = "left"
    return tokenizer


def with_types(tokenizer):
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


TOKENIZERS = {
    "bert": lambda: trained(BertTokenizer),
    "bert from the end": lambda: reversed_side(trained(BertTokenizer)),
    "roberta": lambda: trained(RobertaTokenizer),
    "xlnet": lambda: with_types(trained(XLNetTokenizer)),
    "albert": lambda: trained(AlbertTokenizer),
    "t5": lambda: trained(T5Tokenizer),
    "gpt2": lambda: trained(GPT2Tokenizer),
    "llama": lambda: trained(LlamaTokenizer),
    "words": lambda: train_word_tokenizer(TEXTS, min_texts=1),
    "bytes, slow": ByT5Tokenizer,
    "bytes from the end, slow": lambda: reversed_side(ByT5Tokenizer()),
}


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def any_tokenizer(request):
    return TOKENIZERS[request.param]()


@pytest.mark.parametrize("max_length", [5, 12, 30, None])
def test_starts_are_those_of_the_tokenizer(any_tokenizer, max_length):
    starts = TextStarts(any_tokenizer)
    for text in TEXTS:
        # What an earlier call leaves in the tokenizer does not matter.
        expected = any_tokenizer(text, truncation=max_length is not None, max_length=max_length)
        token_ids = all_token_ids(any_tokenizer, [text])[0]
        assert token_ids == any_tokenizer(text, add_special_tokens=False)["input_ids"]
        any_tokenizer([text, "a"], truncation=True, max_length=6, padding="max_length")
        assert all_token_ids(any_tokenizer, ["moon", text]) == [all_token_ids(any_tokenizer, ["moon"])[0], token_ids]
        found = starts(token_ids, max_length)
        assert {name: list(values) for name, values in found.items()} == dict(expected)


def test_the_tokenizers_differ_in_what_they_add():
    added = {name: make().num_special_tokens_to_add() for name, make in TOKENIZERS.items()}
    assert {added["bert"], added["t5"], added["words"]} == {2, 1, 0}
    assert TOKENIZERS["xlnet"]()("moon")["token_type_ids"][-2:] == [0, 2]


def test_no_room_beside_special_tokens(tokenizer):
    with pytest.raises(ValueError, match="2 special tokens"):
        TextStarts(tokenizer)([7, 8], 2)
