"""Tiny encoders, a tokenizer and data, all made in code: no test needs a network."""

import gc
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS, SPECIAL, WORDS, papers_encoder
from transformers import AutoModel, BertTokenizerFast

# The same examples in every run, so that a failure comes from the change that is tested. `--hypothesis-profile search`
# looks for new ones. No deadline: how long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("project")
# Tiny models gain nothing from more threads, and lose much where cores are shared.
torch.set_num_threads(1)


# Folders of tests that take seconds each: begun last, one of them would keep a single process busy at the end.
LONG_ONES = {"runs", "docs", "hub", "reliability", "estimate", "export"}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.parent.name not in LONG_ONES)


@pytest.fixture(scope="session")
def modules_left_alone():
    """How many modules were imported when garbage collection was last told to leave them alone."""
    return [0]


@pytest.fixture(autouse=True)
def collect_no_modules(modules_left_alone):
    """A run collects garbage when it ends, which takes long over all that was imported by now."""
    if len(sys.modules) > modules_left_alone[0] + 50:
        gc.collect()
        gc.freeze()
        modules_left_alone[0] = len(sys.modules)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=sorted(ENCODER_CONFIGS))
def encoder_config(request):
    """The configuration of a tiny encoder, of each kind in turn."""
    return ENCODER_CONFIGS[request.param]()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A word-level BERT tokenizer over a handful of words."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS, *"abcdefghij"]) + "\n", encoding="utf-8")
    return BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)


@pytest.fixture(scope="session")
def encoder_folder(tokenizer, tmp_path_factory):
    """A tiny random BERT on disk with its tokenizer, to start models from."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    AutoModel.from_config(ENCODER_CONFIGS["bert"]()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def papers_encoders(tokenizer, tmp_path_factory):
    """A folder with tiny random encoders under the names that the papers' recipes have for theirs."""

    def write(layers: int):
        folder = tmp_path_factory.mktemp(f"encoders-{layers}")
        for name in ("bert-base-uncased", "roberta-base", "xlnet-base-cased"):
            torch.manual_seed(0)
            AutoModel.from_config(papers_encoder(name, layers)).save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
        return folder

    return write


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """Writes texts that name their labels: easy to learn, so that a run can be seen to work."""

    def write(name: str, number: int, first: int = 0) -> str:
        path = tmp_path_factory.mktemp("data") / name
        rows = []
        for i in range(first, first + number):
            words = [WORDS[i % 8], WORDS[(3 * i + 1) % 8], WORDS[8 + i % 9]]
            rows.append({"text": " ".join(words), "labels": sorted({f"is {word}" for word in words[:2]})})
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write
