"""The dense memory: votes of texts with similar embeddings, and texts that come and go."""

import numpy as np
import pytest
import torch
from expert_models import FAMILY_CASES, NUM_LABELS, TREE_CASES, make_inputs, make_model
from expert_texts import texts_that_tell_labels
from hypothesis import example, given
from hypothesis import strategies as st
from plain_experts import logit
from tiny_encoders import WORDS
from transformers import AutoModel

from glocal_xml.data import LabelSpace
from glocal_xml.data.words import train_word_tokenizer
from glocal_xml.experts import ExpertTexts, add_to_dense, embed, remember, remove_from_memory, text_embeddings
from glocal_xml.experts.memory import extended
from glocal_xml.experts.token_rows import padded_ids
from glocal_xml.modeling import DenseMemory

LABELS, SIZE = 7, 5


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = train_word_tokenizer([" ".join(WORDS)], max_words=60, min_texts=1)
    tokenizer.model_max_length = 12
    return tokenizer


def memory_of(embeddings, labels, **settings):
    memory = DenseMemory(LABELS, SIZE, 0, 0, **{"neighbors": 4, "power": 3.0, **settings})
    memory.center.copy_(embeddings.mean(dim=0))
    return extended(memory, memory.direction(embeddings).numpy(), labels)[0]


def plain_votes(memory, embeddings, labels, text):
    """One text after the other, with numpy alone: (labels,)."""
    center = embeddings.mean(axis=0)
    cosine = [
        np.dot(row - center, text - center) / (np.linalg.norm(row - center) * np.linalg.norm(text - center))
        for row in embeddings
    ]
    best = np.argsort(-np.array(cosine), kind="stable")[: memory.neighbors]
    weights = np.maximum(np.array(cosine)[best], 0) ** memory.power
    votes = np.zeros(LABELS)
    for row, weight in zip(best, weights / weights.sum(), strict=True):
        votes[labels[row]] += weight
    return logit((votes + 0.05) / 1.1)


@given(st.integers(1, 20), st.integers(1, 30), st.floats(0.5, 6), st.integers(0, 10**6))
# A text that is hardly similar to any.
@example(1, 1, 4.0, 3)
def test_votes_are_those_of_a_plain_twin(texts, neighbors, power, seed):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(texts + 1, SIZE, generator=generator) + 2
    random = np.random.default_rng(seed)
    labels = [sorted(set(random.integers(0, LABELS, random.integers(0, 4)).tolist())) for _ in range(texts + 1)]
    memory = memory_of(embeddings, labels, neighbors=neighbors, power=power)
    asked = torch.cat([embeddings[:1], torch.randn(3, SIZE, generator=generator)])
    doubles = embeddings.double().numpy()
    expected = [plain_votes(memory, doubles, labels, text) for text in asked.double().numpy()]
    np.testing.assert_allclose(memory.logits(asked).numpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", [*FAMILY_CASES, *TREE_CASES])
def test_a_text_of_the_memory_is_most_similar_to_itself(case):
    """What a prediction compares is what the memory was made of, in every family."""
    model, (rows, labels) = make_model(case), texts_that_tell_labels(160, NUM_LABELS)
    ids = padded_ids(rows[:6])
    scores = model(ids.clamp(min=0), (ids >= 0).long(), output_logits=False, output_scores=True).scores
    similarities, found = model.dense.similar(scores.branches["dense"].texts, 1)
    torch.testing.assert_close(similarities[:, 0], torch.ones(6), rtol=1e-4, atol=1e-4)
    same = [rows[row].tolist() for row in found[:, 0].tolist()]
    assert same == [row.tolist() for row in rows[:6]] and len(labels) == len(model.dense.text_numbers)


def test_embeddings_come_in_the_order_of_texts(tokenizer):
    model = make_model("glocal_xml")
    rows = [np.arange(3, 3 + length, dtype=np.int32) for length in (9, 1, 30, 4, 2)]
    found, numbers = text_embeddings(model, rows, tokenizer)
    assert numbers.tolist() == [0, 1, 2, 3, 4]
    for row, embedding in zip(rows, found, strict=True):
        # The start of the text alone.
        ids = torch.tensor([row[: tokenizer.model_max_length].tolist()])
        torch.testing.assert_close(model.document_embeddings(ids)[0], embedding, rtol=1e-4, atol=1e-5)


def test_time_that_is_short_leaves_texts_out(tokenizer, monkeypatch):
    monkeypatch.setattr("glocal_xml.experts.dense._ORDERED", 10)
    now = iter(range(1000))
    monkeypatch.setattr("glocal_xml.experts.dense.time.monotonic", lambda: float(next(now)))
    model = make_model("glocal_xml", experts=())
    rows = [np.array([5 + i % 20, 6], dtype=np.int32) for i in range(100)]
    # A second for each ten texts, and two before the first.
    add_to_dense(model, ExpertTexts(rows, [[i % 12] for i in range(100)]), tokenizer, seconds=5.5)
    numbers = model.dense.text_numbers.tolist()
    assert len(numbers) == 30 == model.config.dense["texts"] and numbers == sorted(numbers) and numbers[-1] > 40
    assert [model.dense.labels_of(row) for row in range(30)] == [[number % 12] for number in numbers]


def test_texts_come_and_go(tokenizer, tmp_path):
    model = make_model("glocal_xml")
    space = LabelSpace(model.label_names, [1] * NUM_LABELS, 160)
    before = {name: values.clone() for name, values in model.dense.state_dict().items()}
    text = " ".join(WORDS[:6])
    remember(model, space, tokenizer, [text, WORDS[7]], [["name 3"], ["name 4", "name 5"]])
    # Both memories number a text alike.
    assert model.dense.text_numbers[-2:].tolist() == model.memory.text_numbers[-2:].tolist() == [160, 161]
    inputs = tokenizer([text], return_tensors="pt")
    embedding = model.document_embeddings(inputs["input_ids"], inputs["attention_mask"])
    similarities, rows = model.dense.similar(embedding, 1)
    assert rows.item() == 160 and similarities.item() == pytest.approx(1.0, abs=1e-4)
    assert model.dense.labels_of(160) == [3] and model.dense.labels_of(161) == [4, 5]
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.dense.logits(embedding), model.dense.logits(embedding))
    assert remove_from_memory(model, [160, 161]) == 2
    assert all(torch.equal(values, before[name]) for name, values in model.dense.state_dict().items())


def test_an_empty_memory_votes_for_nothing():
    model, inputs = make_model("glocal_xml"), make_inputs()
    assert remove_from_memory(model, range(160)) == 160
    embeddings = model.document_embeddings(**inputs)
    torch.testing.assert_close(model.dense.logits(embeddings), torch.full((8, NUM_LABELS), float(np.log(0.05 / 1.05))))
    assert model.predict_top_k(**inputs).top_k_scores.isfinite().all()


def test_names_of_labels_are_remembered_without_a_number(tokenizer):
    model = make_model("glocal_xml", experts=())
    rows = [np.array([5 + i, 6], dtype=np.int32) for i in range(4)]
    texts = ExpertTexts(rows, [[0], [1], [2], [3]], [np.array([9, 10], dtype=np.int32)], [[7]])
    found = embed(model, texts, tokenizer)
    assert found.numbers.tolist() == [0, 1, 2, 3, -1] and found.labels == [[0], [1], [2], [3], [7]]
    add_to_dense(model, texts, tokenizer, first=20, embedded=found)
    assert model.dense.text_numbers.tolist() == [20, 21, 22, 23, -1] and model.dense.labels_of(4) == [7]
    # What all texts have in common is that of texts alone.
    torch.testing.assert_close(model.dense.center, found.embeddings[:4].mean(dim=0))
    similarities, row = model.dense.similar(model.document_embeddings(torch.tensor([[9, 10]])), 1)
    assert row.item() == 4 and similarities.item() == pytest.approx(1.0, abs=1e-4)
