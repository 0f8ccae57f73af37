"""The lexical expert: what it computes, what its tokens add, and how it is fitted."""

import numpy as np
import pytest
import torch
from expert_texts import FIRST, TOKENS, texts_that_tell_labels
from hypothesis import given
from hypothesis import strategies as st
from plain_experts import dense_table, plain_counter_row, plain_lexical_logits
from sklearn.svm import LinearSVC

from glocal_xml.experts import ExpertTexts, choose, fit_lexical, lexical
from glocal_xml.experts.token_rows import padded_ids
from glocal_xml.explain.blended_logit import lexical_contributions
from glocal_xml.modeling.experts import LexicalExpert

OPTIONS = {"workers": 1, "show_progress": False}


def random_expert(levels, num_labels=7, tokens=9, pairs=6, lead=3, seed=0):
    """Tables that are full and biases at random: nothing cancels out by chance."""
    generator = torch.Generator().manual_seed(seed)
    features, sizes = 2 * tokens + pairs if lead else tokens + pairs, [*levels, num_labels]
    expert = LexicalExpert(num_labels, tokens, pairs, levels, [features * size for size in sizes], lead)
    expert.counter.weights.uniform_(0.5, 3, generator=generator)
    expert.counter.weights[0] = 0
    expert.counter.pair_keys.copy_(torch.randperm(tokens * tokens, generator=generator)[:pairs].sort().values)
    for level, (table, size) in enumerate(zip(expert.tables, sizes, strict=True)):
        table.starts.copy_(torch.arange(features + 1) * size)
        table.rows.copy_(torch.arange(size).repeat(features))
        table.values.normal_(generator=generator)
        getattr(expert, f"biases_{level}").normal_(generator=generator)
        if level:
            above = sizes[level - 1]
            getattr(expert, f"parents_{level}").copy_(torch.randint(above, (size,), generator=generator))
    return expert


LEVELS = [[], [3], [2, 4]]
token_lists = st.lists(st.sampled_from([-100, *range(11)]), min_size=1, max_size=12)


@pytest.mark.parametrize("levels", LEVELS, ids=len)
@given(texts=st.lists(token_lists, min_size=1, max_size=4))
def test_logits_are_those_of_a_plain_twin(levels, texts):
    expert = random_expert(levels)
    expected = np.array([plain_lexical_logits(expert, text) for text in texts])
    np.testing.assert_allclose(expert.logits(padded_ids(texts)).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("levels", LEVELS, ids=len)
@given(text=token_lists, labels=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_contributions_sum_to_the_logits(levels, text, labels):
    expert, ids, labels = random_expert(levels).double(), torch.tensor(text), torch.tensor(labels)
    shares, start = lexical_contributions(expert, labels, ids)
    assert shares.shape == (len(labels), len(text))
    logits = expert.logits(ids[None])[0, labels]
    torch.testing.assert_close((shares.sum(dim=1) + start).float(), logits.float(), rtol=1e-5, atol=1e-5)
    # What stands there without tokens is the logit of an empty text, and what is not counted adds nothing.
    empty = expert.logits(torch.tensor([[-100]]))[0, labels]
    torch.testing.assert_close(start.float(), empty.float(), rtol=1e-5, atol=1e-5)
    assert not shares[:, (ids <= 0) | (ids >= 9)].any()


@pytest.mark.parametrize("levels", LEVELS, ids=len)
def test_equal_tokens_have_equal_shares(levels):
    expert = random_expert(levels, pairs=0, lead=0)
    shares, _ = lexical_contributions(expert, torch.arange(7), torch.tensor([4, 2, 4, -100, 4]))
    torch.testing.assert_close(shares[:, 0], shares[:, 2])
    torch.testing.assert_close(shares[:, 0], shares[:, 4])
    assert (shares[:, 0] != shares[:, 1]).any()


def state(expert):
    return {name: values.clone() for name, values in expert.state_dict().items()}


def assert_equal(first, second):
    first, second = state(first), state(second)
    assert first.keys() == second.keys()
    assert all(torch.equal(values, second[name]) for name, values in first.items())


@pytest.fixture(params=[1, 2, 3], ids="levels={}".format)
def levels(request, monkeypatch):
    """Options with which a fit on 30 labels has one, two or three tables."""
    monkeypatch.setattr(lexical, "_ONE_LEVEL", 2 if request.param == 3 else 512)
    monkeypatch.setattr(lexical, "_BRANCHING", 2)
    return {"cluster_size": 100 if request.param == 1 else 4}, request.param


def test_it_learns_an_obvious_mapping(levels):
    options, number = levels
    rows, labels = texts_that_tell_labels(240, 30)
    expert, sizes = fit_lexical(rows, labels, 30, TOKENS, **options, **OPTIONS)
    assert len(expert.tables) == number == len(sizes["levels"]) + 1
    texts, truth = texts_that_tell_labels(60, 30, seed=1)
    best = expert(padded_ids(texts)).top_k(1).ids[:, 0].tolist()
    assert np.mean([label in true for label, true in zip(best, truth, strict=True)]) > 0.9
    expected = np.array([plain_lexical_logits(expert, text) for text in texts])
    np.testing.assert_allclose(expert.logits(padded_ids(texts)).numpy(), expected, rtol=1e-3, atol=1e-3)


def test_a_fit_is_the_same_with_more_workers_and_once_more(levels, monkeypatch):
    monkeypatch.setattr(lexical, "_FEW_PRODUCTS", 0)
    options, _ = levels
    data = (*texts_that_tell_labels(120, 30), 30, TOKENS)
    expert, sizes = fit_lexical(*data, **options, **OPTIONS)
    again, other_sizes = fit_lexical(*data, **options, workers=2, show_progress=False)
    assert sizes == other_sizes
    assert_equal(expert, again)


def test_sizes_rebuild_the_expert(levels, tmp_path):
    options, _ = levels
    rows, labels = texts_that_tell_labels(120, 30)
    expert, sizes = fit_lexical(rows, labels, 30, TOKENS, **options, **OPTIONS)
    torch.save(expert.state_dict(), tmp_path / "expert.pt")
    empty = LexicalExpert(30, **sizes)
    empty.load_state_dict(torch.load(tmp_path / "expert.pt"))
    assert torch.equal(empty.logits(padded_ids(rows)), expert.logits(padded_ids(rows)))


def test_labels_of_no_text_and_of_all_texts(levels):
    """The first is never found, the second always; neither has anything to learn from."""
    options, _ = levels
    rows, labels = texts_that_tell_labels(120, 28)
    labels = [[*ids, 29] for ids in labels]
    expert, _ = fit_lexical(rows, labels, 30, TOKENS, **options, **OPTIONS)
    logits = expert.logits(padded_ids(rows[:20]))
    assert (logits[:, 28] < -3).all() and (logits[:, 29] > 1).all()
    assert logits.isfinite().all()


@pytest.mark.parametrize("cluster_size", [2, 3, 100])
@pytest.mark.parametrize("num_labels", [1, 2, 3, 4])
def test_few_labels(num_labels, cluster_size):
    rows, labels = texts_that_tell_labels(40, num_labels)
    expert, sizes = fit_lexical(rows, labels, num_labels, TOKENS, cluster_size=cluster_size, **OPTIONS)
    logits = expert.logits(padded_ids(rows))
    assert logits.shape == (40, num_labels) and logits.isfinite().all()
    expected = np.array([plain_lexical_logits(expert, text) for text in rows])
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-3, atol=1e-3)
    assert bool(sizes["levels"]) == (num_labels > cluster_size)


def test_texts_without_labels_and_without_tokens_are_no_obstacle():
    rows, labels = texts_that_tell_labels(60, 6)
    rows[3], labels[5] = np.zeros(0, dtype=np.int32), []
    expert, _ = fit_lexical(rows, labels, 6, TOKENS, **OPTIONS)
    assert expert.logits(padded_ids(rows)).isfinite().all()
    # Labels beyond the label space, which evaluation data may have, count for nothing.
    beyond = [[*ids, 6, 99] for ids in labels]
    assert_equal(fit_lexical(rows, beyond, 6, TOKENS, **OPTIONS)[0], expert)


def test_more_texts_than_features_are_fitted_as_well():
    """Rare labels of many texts, among few tokens, have the weights of an exact fit."""
    random = np.random.default_rng(0)
    rows = [random.integers(FIRST, TOKENS, 12).astype(np.int32) for _ in range(1500)]
    labels = [[token - FIRST for token in set(row.tolist()) if random.random() < 0.3] for row in rows]
    num_labels = TOKENS - FIRST
    expert, _ = fit_lexical(rows, labels, num_labels, TOKENS, pairs=0, lead=0, **OPTIONS)
    features = np.array([plain_counter_row(expert.counter, row.tolist()) for row in rows])
    weights = dense_table(expert.tables[0])
    for label in range(0, num_labels, 10):
        exact = LinearSVC(C=1.0, dual=True, tol=1e-6, max_iter=100_000)
        exact.fit(features, [label in ids for ids in labels])
        np.testing.assert_allclose(weights[label], exact.coef_[0], atol=0.15)


def test_names_of_labels_teach_and_count_for_nothing_in_rarity():
    """A label without texts is found by its name; how rare a token is, texts alone tell."""
    rows, labels = texts_that_tell_labels(120, 9)
    # A token that occurs in texts without saying anything, and is the name of label 9.
    rows = [np.append(row, FIRST + 50).astype(np.int32) if i % 20 == 0 else row for i, row in enumerate(rows)]
    names, name_labels = [np.array([FIRST + 50], dtype=np.int32)], [[9]]
    without, _ = fit_lexical(rows, labels, 10, TOKENS, **OPTIONS)
    expert, _ = fit_lexical(rows + names, labels + name_labels, 10, TOKENS, num_texts=120, **OPTIONS)
    assert torch.equal(expert.counter.weights, without.counter.weights)
    asked = padded_ids(names)
    assert expert.logits(asked)[0, 9] > without.logits(asked)[0, 9] + 1


def test_pairs_tell_what_single_tokens_do_not():
    """The label is whether one token comes before another."""
    random = np.random.default_rng(0)
    rows, labels = [], []
    for i in range(200):
        first, second = (7, 9) if i % 2 else (9, 7)
        rows.append(
            np.array([*random.integers(20, 40, 3), first, second, *random.integers(20, 40, 3)], dtype=np.int32)
        )
        labels.append([i % 2])
    for pairs, right in ((1000, True), (0, False)):
        expert, sizes = fit_lexical(rows[:150], labels[:150], 2, TOKENS, pairs=pairs, **OPTIONS)
        found = expert(padded_ids(rows[150:])).top_k(1).ids[:, 0].tolist()
        assert (np.mean([label in true for label, true in zip(found, labels[150:], strict=True)]) > 0.9) == right
        assert (sizes["pairs"] > 0) == right
    limited, sizes = fit_lexical(rows, labels, 2, TOKENS, pairs=2, **OPTIONS)
    # The two most frequent ones.
    assert sorted(limited.counter.pair_keys.tolist()) == [7 * TOKENS + 9, 9 * TOKENS + 7]


def test_first_tokens_tell_what_counts_do_not():
    """The label is which of two tokens comes first, with others between them."""
    random = np.random.default_rng(0)
    between = random.integers(20, 40, (200, 8)).astype(np.int32)
    rows = [np.array([7, *row, 9] if i % 2 else [9, *row, 7], dtype=np.int32) for i, row in enumerate(between)]
    labels = [[i % 2] for i in range(200)]
    for lead, right in ((2, True), (0, False)):
        expert, sizes = fit_lexical(rows[:150], labels[:150], 2, TOKENS, pairs=0, lead=lead, **OPTIONS)
        logits = expert.logits(padded_ids(rows[150:]))
        assert (np.mean(logits.argmax(dim=1).numpy() == np.arange(150, 200) % 2) > 0.9) == right
        assert sizes["lead"] == lead
        # Padding and special tokens before a text change nothing.
        shifted = padded_ids([np.array([-100, 0, *row]) for row in rows[150:]])
        torch.testing.assert_close(expert.logits(shifted), logits)


def test_first_texts_of_a_label_without_weights(levels):
    """It is found by them at once, and other labels answer as before."""
    options, number = levels
    rows, labels = texts_that_tell_labels(240, 29)
    expert, sizes = fit_lexical(rows, labels, 30, TOKENS, **options, **OPTIONS)
    # Tokens that occur in texts, and one that does not.
    first = [np.array([FIRST + 29, FIRST + 30, 2], dtype=np.int32), np.array([FIRST + 29, 2], dtype=np.int32)]
    taught, new_sizes = lexical.with_first_texts(expert, sizes, first, [[29], [29, 3]])
    before, after = expert.logits(padded_ids(rows)), taught.logits(padded_ids(rows))
    torch.testing.assert_close(after[:, :29], before[:, :29])
    asked = padded_ids(first[1:])
    assert taught.logits(asked)[0, 29] > expert.logits(asked)[0, 29] + 2
    if number > 1:
        clusters = taught.logits(padded_ids(first), number - 1).sigmoid().sum(dim=0)
        assert getattr(taught, f"parents_{number - 1}")[29] == clusters.argmax()
    again = LexicalExpert(30, **new_sizes)
    again.load_state_dict(taught.state_dict())
    assert torch.equal(again.logits(asked), taught.logits(asked))


@pytest.mark.parametrize(("num_labels", "tried", "chosen"), [(100, 4, 100), (101, 5, 400)])
def test_settings_are_those_that_do_best_on_held_out_texts(monkeypatch, num_labels, tried, chosen):
    fits = []

    def quality(expert, *_):
        return expert["cluster_size"] - expert["pairs"] / 10**6 + expert["lead"] / 100 + expert["c"]

    monkeypatch.setattr(choose, "fit_lexical", lambda *_, **options: (fits.append(options) or options, {}))
    monkeypatch.setattr(choose, "_precision", quality)
    texts = ExpertTexts([np.arange(3)] * 4, [[0]] * 4)
    settings = choose.choose_lexical_settings(texts, texts, num_labels, 10)
    assert settings == {"pairs": 0, "lead": 16, "c": 1.0, "cluster_size": chosen} and len(fits) == tried
