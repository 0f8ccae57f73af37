"""Words stand where they stand, whatever a tokenizer makes of a text."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoders import ENCODER_CONFIGS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast, RobertaTokenizerFast

from glocal_xml import GlocalXMLConfig, GlocalXMLForMultiLabel, explain
from glocal_xml.data import train_word_tokenizer
from glocal_xml.explain.words import ReadWords, split_words

SCRIPT = Path(__file__).parents[2] / "examples" / "small_xlnet.py"
TRAINING_TEXTS = ["apples and bananas are lemons, says the queen", "a house on the moon: ice-cold, 24 elephants"] * 2
# Texts and their words; of the last ones, those that are not made of letters and digits come apart.
TEXTS = {
    "the Queen's bananas, ice-cold": ["the", "Queen's", "bananas", ",", "ice", "-", "cold"],
    "  moon\r\n\tmoonlight  ": ["moon", "moonlight"],
    "cafe\u0301 İstanbul ﬁne naïve": ["cafe\u0301", "İstanbul", "ﬁne", "naïve"],
    "ok 👩‍💻 👍🏽 🇩🇪": ["ok", "👩‍💻", "👍🏽", "🇩🇪"],
    "עולם moon مرحبا": ["עולם", "moon", "مرحبا"],
    "हिन्दी 机器学习 です": ["हिन्दी", "机", "器", "学", "习", "で", "す"],
    "a\x00b \x1b moon\u200f \u202e": ["a", "b", "moon"],
}


def read_words(text, token_spans, weights):
    read = ReadWords(text, token_spans)
    return read.words, read.sums(weights)


def word_piece(folder):
    pieces = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *"abcdefghijklmnopqrstuvwxyz'-,", "moon", "banana"]
    (folder / "vocab.txt").write_text("\n".join([*pieces, "##s", "##light", "##a", "##e"]) + "\n", encoding="utf-8")
    return BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)


def byte_pairs():
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXTS, trainer)
    return tokenizer


def roberta(folder):
    byte_pairs().model.save(str(folder))
    return RobertaTokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


def modernbert(folder):
    """As ModernBERT has it: spaces belong to tokens, and special tokens are BERT's."""
    tokenizer = byte_pairs()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", model_max_length=64)


def xlnet(folder):
    spec = importlib.util.spec_from_file_location("small_xlnet", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.train_tokenizer(TRAINING_TEXTS, 60, lower_case=True)


MAKERS = {"bert": word_piece, "roberta": roberta, "modernbert": modernbert, "xlnet": xlnet}


@pytest.fixture(scope="module", params=MAKERS)
def kind_and_tokenizer(request, tmp_path_factory):
    return request.param, MAKERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_words_of_every_tokenizer(kind_and_tokenizer, text):
    _, tokenizer = kind_and_tokenizer
    spans = tokenizer(text).encodings[0].offsets
    weights = torch.rand(2, len(spans), dtype=torch.double)
    words, totals = read_words(text, spans, weights)
    assert [word.text for word in words] == TEXTS[text]
    assert all(text[word.start : word.end] == word.text for word in words)
    of_words = [any(w.start < end and start < w.end for w in words) for start, end in spans]
    assert torch.allclose(totals.sum(dim=1), weights[:, of_words].sum(dim=1))


def test_sub_words_are_joined_and_shared_out(tmp_path):
    text, tokenizer = "moonlight bananas", word_piece(tmp_path)
    encoding = tokenizer(text).encodings[0]
    assert encoding.tokens == ["[CLS]", "moon", "##light", "banana", "##s", "[SEP]"]
    words, totals = read_words(text, encoding.offsets, torch.tensor([[0.3, 0.1, 0.2, 0.15, 0.05, 0.2]]))
    assert [word.text for word in words] == ["moonlight", "bananas"]
    assert totals[0].tolist() == pytest.approx([0.3, 0.2], abs=1e-6)
    # A token over two words, three characters of the one and one of the other.
    assert read_words("abc,", [(0, 4)], torch.ones(1, 1))[1][0].tolist() == [0.75, 0.25]


def test_words_beyond_the_tokens_are_not_there():
    words, totals = read_words("one two three", [(0, 3), (4, 7)], torch.ones(1, 2))
    assert [word.text for word in words] == ["one", "two"] and totals.shape == (1, 2)
    assert read_words("", [(0, 0), (0, 0)], torch.ones(3, 2))[1].shape == (3, 0)


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=8))
def test_no_weight_is_lost_or_made(text, cuts):
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    spans = list(zip(places, places[1:], strict=False))
    words, totals = read_words(text, spans, torch.ones(1, len(spans), dtype=torch.double))
    assert words == split_words(text)
    assert all(before.end <= after.start for before, after in zip(words, words[1:], strict=False))
    seen = sum(any(w.start < end and start < w.end for w in words) for start, end in spans)
    assert totals.sum().item() == pytest.approx(seen)


def test_explanations_with_every_tokenizer(kind_and_tokenizer):
    kind, tokenizer = kind_and_tokenizer
    encoder = ENCODER_CONFIGS[kind]()
    encoder.vocab_size = len(tokenizer)
    model = GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=encoder, num_labels=3))
    model.set_label_names(["x", "y", "z"])
    with torch.no_grad():
        model.local_head.label_embeddings.weight.normal_()
    text = "moonlight, Bananas 👩‍💻"
    explanation = explain(model, tokenizer, text, labels=["y"])
    assert [word.text for word in explanation.words] == ["moonlight", ",", "Bananas", "👩‍💻"]
    # Special tokens stand before the words, or behind them.
    inputs = tokenizer(text, return_tensors="pt")
    weights = model.label_word_attention(torch.tensor([1]), **inputs)[0, 0].tolist()
    spans = inputs.encodings[0].offsets
    first = [weight for weight, (start, end) in zip(weights, spans, strict=True) if 0 < end <= len("moonlight")]
    # Attention in single precision, once computed for an explanation and once on its own.
    assert explanation.labels[0].word_weights[0] == pytest.approx(sum(first), abs=1e-5)
    read = [weight for weight, (start, end) in zip(weights, spans, strict=True) if text[start:end].strip()]
    assert sum(explanation.labels[0].word_weights) == pytest.approx(sum(read), abs=1e-5) and sum(read) < 1.0


def test_a_word_tokenizer_reads_letters_alone():
    tokenizer = train_word_tokenizer(TRAINING_TEXTS)
    text = "The QUEEN's 24 lemons, unknown 👍"
    spans = tokenizer(text).encodings[0].offsets
    words, _ = read_words(text, spans, torch.ones(1, len(spans)))
    assert [word.text for word in words] == ["The", "QUEEN's", "24", "lemons", "unknown"]
