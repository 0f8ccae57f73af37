"""The memory of texts: votes, and texts that come and go without training."""

import numpy as np
import pytest
import torch
from expert_texts import FIRST, TOKENS, texts_that_tell_labels
from hypothesis import given
from hypothesis import strategies as st
from plain_experts import dense_table, plain_votes

from glocal_xml.data import LabelSpace
from glocal_xml.experts import add_to_memory, fit_memory, remember, remove_from_memory, texts_in_memory
from glocal_xml.experts.token_rows import padded_ids
from glocal_xml.modeling import TextExpertsConfig, TextExpertsForMultiLabel
from glocal_xml.modeling.experts import MemoryExpert

LABELS = 12


def distinct_texts(number, seed=0):
    """Texts of random tokens, of which hardly two are equally similar to a third."""
    random = np.random.default_rng(seed)
    rows = [random.integers(FIRST, TOKENS, size=random.integers(4, 12)).astype(np.int32) for _ in range(number)]
    labels = [sorted(set(random.integers(0, LABELS, size=random.integers(0, 4)).tolist())) for _ in range(number)]
    return rows, labels


@pytest.mark.parametrize(("neighbors", "power"), [(3, 1.0), (7, 4.0), (50, 2.0)])
def test_votes_are_those_of_a_plain_twin(neighbors, power):
    rows, labels = distinct_texts(40)
    expert, _ = fit_memory(rows, labels, LABELS, TOKENS, neighbors=neighbors, power=power)
    texts = [*distinct_texts(10, seed=1)[0], rows[3], np.zeros(0, dtype=np.int32)]
    expected = np.array([plain_votes(expert, text) for text in texts])
    np.testing.assert_allclose(expert.logits(padded_ids(texts)).numpy(), expected, rtol=1e-4, atol=1e-4)


@given(st.lists(st.lists(st.integers(0, 11), max_size=8), min_size=1, max_size=12), st.data())
def test_votes_of_any_texts(rows, data):
    """All texts vote, so that it does not matter which of equally similar ones come first."""
    labels = [data.draw(st.lists(st.integers(0, 4), unique=True, max_size=3)) for _ in rows]
    rows = [np.array(row, dtype=np.int32) for row in rows]
    expert, _ = fit_memory(rows, labels, 5, 12)
    texts = rows[:4]
    expected = np.array([plain_votes(expert, text) for text in texts])
    np.testing.assert_allclose(expert.logits(padded_ids(texts)).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_text_is_most_similar_to_itself_and_tells_its_labels():
    rows, labels = distinct_texts(30)
    expert, _ = fit_memory(rows, labels, LABELS, TOKENS)
    similarities, found = expert.similar(padded_ids(rows), 3)
    assert found[:, 0].tolist() == list(range(30)) and similarities.shape == (30, 3)
    torch.testing.assert_close(similarities[:, 0], torch.ones(30))
    assert [expert.labels_of(row) for row in range(30)] == labels
    assert expert.text_numbers.tolist() == list(range(30))


def test_frequent_tokens_and_names_of_labels():
    rows, labels = distinct_texts(60)
    rows = [np.append(row, 3).astype(np.int32) for row in rows]
    names = [np.array([FIRST, FIRST + 1], dtype=np.int32)]
    expert, sizes = fit_memory(rows + names, [*labels, [4]], LABELS, TOKENS, num_texts=60)
    assert expert.counter.weights[3] == 0
    assert sizes["texts"] == 61 and expert.text_numbers.tolist() == [*range(60), -1]
    without, _ = fit_memory(rows, labels, LABELS, TOKENS)
    assert torch.equal(expert.counter.weights, without.counter.weights)


def model_with_memory(rows, labels, num_labels=LABELS):
    model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=num_labels))
    model.set_expert("memory", *fit_memory(rows, labels, num_labels, TOKENS))
    return model


def same_weights(model, rows, labels, numbers):
    """A memory of these texts with the token weights of the model's."""
    counter = model.memory.counter
    dense = np.array([dense_row(counter, row) for row in rows]).reshape(len(rows), len(counter.weights))
    np.testing.assert_allclose(dense_table(model.memory.texts), dense, atol=1e-6)
    assert [model.memory.labels_of(row) for row in range(len(rows))] == [sorted(ids) for ids in labels]
    assert model.memory.text_numbers.tolist() == numbers


def dense_row(counter, row):
    features, values = counter(padded_ids([row]))
    return torch.zeros(len(counter.weights)).index_add_(0, features[0], values[0]).numpy()


def test_texts_come_and_go():
    rows, labels = distinct_texts(30)
    model = model_with_memory(rows[:20], labels[:20])
    weights = model.memory.counter.weights.clone()
    add_to_memory(model, rows[20:], labels[20:], range(100, 110))
    same_weights(model, rows, labels, [*range(20), *range(100, 110)])
    assert remove_from_memory(model, [3, 4, 105, 999]) == 3
    kept = [i for i in range(30) if i not in (3, 4, 25)]
    numbers = [[*range(20), *range(100, 110)][i] for i in kept]
    same_weights(model, [rows[i] for i in kept], [labels[i] for i in kept], numbers)
    assert torch.equal(model.memory.counter.weights, weights)
    # The configuration follows: the model can be saved and loaded.
    assert model.config.memory["texts"] == 27
    empty = MemoryExpert(LABELS, **model.config.memory)
    empty.load_state_dict(model.memory.state_dict())
    assert torch.equal(empty.logits(padded_ids(rows)), model.memory.logits(padded_ids(rows)))


def test_added_then_removed_is_as_before():
    rows, labels = distinct_texts(25)
    model = model_with_memory(rows[:20], labels[:20])
    before = {name: values.clone() for name, values in model.memory.state_dict().items()}
    add_to_memory(model, rows[20:], labels[20:], range(20, 25))
    assert remove_from_memory(model, range(20, 25)) == 5
    after = model.memory.state_dict()
    assert all(torch.equal(values, after[name]) for name, values in before.items())


def test_a_label_without_a_text_is_found_as_soon_as_it_has_one():
    rows, labels = texts_that_tell_labels(40, LABELS - 1)
    model = model_with_memory(rows, labels)
    new = [np.array([FIRST + 20, FIRST + 21], dtype=np.int32)]
    lowest = model.memory.logits(padded_ids(new))[0, LABELS - 1]
    add_to_memory(model, new, [[LABELS - 1]], [1000])
    votes = model.memory.logits(padded_ids(new))[0]
    assert votes.argmax() == LABELS - 1 and votes[LABELS - 1] > lowest


@pytest.mark.parametrize(("texts", "labels"), [("dog", [["a"]]), (["dog"], []), (["dog"], ["ab"])])
def test_a_list_of_labels_for_every_text_is_remembered(texts, labels):
    model = model_with_memory(*distinct_texts(4))
    with pytest.raises(ValueError, match="a list of names for each"):
        remember(model, LabelSpace(["a", "b"], [1, 1], 2), None, texts, labels)


def test_tokens_that_no_text_has_count_as_the_rarest_but_special_ones():
    rows, labels = distinct_texts(30)
    expert, _ = fit_memory(rows, labels, LABELS, TOKENS + 2, ignored=[0, int(rows[0][0])])
    weights = expert.counter.weights
    assert weights[0] == 0 and weights[int(rows[0][0])] > 0
    assert weights[TOKENS] == weights[TOKENS + 1] == weights.max()
    # They change no vote: what is similar is so by tokens of the memory.
    known = padded_ids(rows)
    more = torch.cat([known, torch.full((30, 2), TOKENS)], dim=1)
    torch.testing.assert_close(expert.logits(more), expert.logits(known))


def test_an_empty_memory_votes_for_nothing(tmp_path):
    rows, labels = distinct_texts(5)
    model = model_with_memory(rows, labels)
    assert remove_from_memory(model, range(5)) == 5
    logits = model.memory.logits(padded_ids(rows))
    torch.testing.assert_close(logits, torch.full((5, LABELS), float(np.log(0.05 / 1.05))))
    model.save_pretrained(tmp_path)
    loaded = TextExpertsForMultiLabel.from_pretrained(tmp_path)
    assert torch.equal(loaded.memory.logits(padded_ids(rows)), logits)
    # And can be filled once more.
    add_to_memory(loaded, rows, labels, range(5))
    same_weights(loaded, rows, labels, list(range(5)))


def test_a_model_without_a_memory_says_so():
    model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=LABELS))
    with pytest.raises(ValueError, match="no memory"):
        add_to_memory(model, [], [], [])
    with pytest.raises(ValueError, match="no expert yet"):
        model(torch.tensor([[1]]))


def test_an_empty_memory_knows_no_text():
    model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=2))
    rows = [np.array([5, 6]), np.array([7])]
    model.set_expert("memory", *fit_memory(rows, [[0], [1]], 2, 10))
    assert texts_in_memory(model, rows).tolist() == [True, True]
    remove_from_memory(model, [0, 1])
    assert texts_in_memory(model, rows).tolist() == [False, False]
    # Numbers start again.
    add_to_memory(model, rows, [[0], [1]])
    assert model.memory.text_numbers.tolist() == [0, 1]
