"""What a label read is what it needs: scores fall more without those words than without others."""

import importlib.util
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blended_models import blended_model, training_texts
from tiny_encoders import WORDS
from transformers import AutoModel, AutoTokenizer

from glocal_xml import GlocalXMLForMultiLabel
from glocal_xml.cli.train import main as train
from glocal_xml.data import read_rows
from glocal_xml.explain import Explanation, LabelExplanation, Word

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("faithfulness", ROOT / "benchmarks" / "faithfulness.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(benchmark, model, tokenizer, texts, **options):
    drops = benchmark.measure(model, tokenizer, texts, **options)
    return {(k, row["score"]): row for k, kept in drops.items() for row in benchmark.summary(kept)}


def random_texts(number, generator):
    """Every other text has a word that names its label; all others are there for all labels alike, and for none."""
    rows = []
    for label in [i % 8 for i in range(number)]:
        words = [*([WORDS[label]] if label < 4 else []), *generator.sample(WORDS[4:], 5)]
        generator.shuffle(words)
        rows.append((" ".join(words), label if label < 4 else -100))
    return rows


def small_model(encoder_folder):
    torch.manual_seed(0)
    return GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=WORDS[:4], mlp_size=16)


def test_a_trained_model_needs_what_it_read(benchmark, encoder_folder, tokenizer):
    model, generator = small_model(encoder_folder), random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        texts, labels = zip(*random_texts(32, generator), strict=True)
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        model(**inputs, labels=torch.tensor(labels).unsqueeze(1)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    texts = [text for text, label in random_texts(32, generator) if label >= 0]
    rows = figures(benchmark, model.eval(), tokenizer, texts, ks=(1,), labels=1, draws=2)
    for score in ("final", "local"):
        row = rows[1, score]
        assert row["pairs"] == row["texts"] == 16 and row["before"] > 0.6
        assert row["top - random, 95 %"][0] > 0.4 and row["top > random"] == 1.0
        assert abs(row["random"]) < 0.1 and abs(row["least"]) < 0.1


def test_an_untrained_model_does_not(benchmark, encoder_folder, tokenizer):
    model, texts = small_model(encoder_folder), [text for text, _ in random_texts(8, random.Random(0))]
    row = figures(benchmark, model, tokenizer, texts, ks=(1,), draws=1)[1, "local"]
    assert abs(row["top"]) < 0.05 and row["top > random"] < 0.95


@pytest.mark.parametrize("name", ["GlocalXML", "no encoder"])
def test_a_blended_model_needs_the_words_that_add_most(benchmark, name, tokenizer):
    """The lexical expert alone has a weight: the encoder is random."""
    model, (texts, _) = blended_model(name, tokenizer), training_texts()
    model.config.blend["weights"] = {"lexical": 1.0}
    drops = benchmark.measure(model, tokenizer, [*texts, ""], ks=(1,), labels=1, draws=2)
    rows = {row["score"]: row for row in benchmark.summary(drops[1])}
    assert set(rows) == {"final", *model.branch_names}
    assert rows["final"]["texts"] == len(texts) and rows["final"]["top > random"] > 0.8
    assert rows["final"]["top"] == pytest.approx(rows["lexical"]["top"], abs=1e-6)
    # A text that is longer than the encoder reads is cut; without an encoder it is not.
    long = " ".join(["moon"] * 100)
    assert len(benchmark.read_part(model, tokenizer, long).split()) == (100 if name == "no encoder" else 62)


def test_deleting_and_matching(benchmark):
    text = "one two, three"
    words = [Word("one", 0, 3), Word("two", 4, 7), Word(",", 7, 8), Word("three", 9, 14)]
    assert benchmark.without(text, [words[3], words[0]]) == "two, "
    assert benchmark.without(text, words) == ""
    # Word or punctuation first, then the number of tokens, then the order; none twice, and no target.
    kinds = [(True, 1), (True, 2), (False, 1), (True, 1), (True, 2)]
    assert benchmark.matched([0], [4, 3, 2, 1], kinds) == [3]
    assert benchmark.matched([0, 3], [1, 4, 2], kinds) == [1, 4]
    assert benchmark.matched([2], [0, 1], kinds) == [0]


def test_words_rank_by_what_they_add(benchmark):
    """Against a label is the last place, however much it was read."""
    text = "one two three four"
    words = [Word("one", 0, 3), Word("two", 4, 7), Word("three", 8, 13), Word("four", 14, 18)]
    read = LabelExplanation("x", 0.5, {"local": 0.5}, 1.0, [0.1, 0.6, 0.2, 0.1], [])
    added = replace(read, word_contributions=[0.5, -2.0, 1.0, 0.0], other_contributions={}, bias=0.0, logit=-0.5)
    kinds = [(True, 1)] * 4

    def deleted(label, **options):
        explanation = Explanation(text, words, [label], "local", False)
        shorter = benchmark.deletions(explanation, kinds, 1, 1, np.random.default_rng(0), **options)
        return {way: set(text.split()) - set(left.split()) for _, way, left in shorter}

    assert (deleted(added)["top"], deleted(added)["least"]) == ({"three"}, {"two"})
    assert deleted(added, rank_by="attention")["top"] == deleted(read)["top"] == {"two"}
    with pytest.raises(ValueError, match="no contributions"):
        deleted(read, rank_by="contributions")
    with pytest.raises(ValueError, match="must be one of contributions, attention"):
        deleted(read, rank_by="order")
    with pytest.raises(ValueError, match="no attention"):
        deleted(replace(added, word_weights=None), rank_by="attention")


def test_intervals_go_by_texts(benchmark):
    values = np.repeat([0.0, 1.0], 50)
    low, high = benchmark.bootstrap(values, np.arange(100))
    assert 0.35 < low < 0.5 < high < 0.65
    # Two texts of fifty equal labels tell no more than two labels would.
    assert benchmark.bootstrap(values, np.repeat([0, 1], 50)) == [0.0, 1.0]


@pytest.mark.slow
def test_real_weights_need_what_they_read(benchmark, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = str(tmp_path / "demo")
    flags = ["--max_train_texts", "1700", "--validation_size", "100", "--max_test_texts", "64", "--output_dir", folder]
    train(["examples/recipes/debtags/demo.yaml", *flags])
    model, tokenizer = (kind.from_pretrained(folder) for kind in (AutoModel, AutoTokenizer))
    rows = read_rows("examples/data/debtags/test.jsonl.gz")
    texts = [row["text"] for _, row in zip(range(60), rows, strict=False)]
    for row in figures(benchmark, model, tokenizer, texts, draws=2).values():
        assert row["top - random, 95 %"][0] > 0.0, row
