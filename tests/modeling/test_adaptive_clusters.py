"""Adaptive label clusters against the plain form: loss, gradients, ranking, and what is not computed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_adaptive_clusters import plain_clusters, plain_clusters_loss, plain_probabilities

from glocal_xml.modeling.adaptive_clusters import AdaptiveLabelClusters, cluster_sizes, tail_loss, tail_widths
from glocal_xml.modeling.fused_loss import Precisions
from glocal_xml.modeling.label_scores import product_logits

THIRDS = (0.2, 0.3, 0.5)


def make(hidden_size=8, labels=20, proportions=THIRDS, texts=5, chunk=None, dtype=torch.float64, **fields):
    """A layer with scores of a useful size, vectors of texts, and counts in no order and with ties."""
    layer = AdaptiveLabelClusters(hidden_size, labels, proportions=proportions, **fields).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    counts = torch.randint(0, 6, (labels,)).tolist()
    counts[labels // 2] = 9
    layer.set_label_counts(counts)
    hidden = torch.randn(texts, hidden_size, dtype=dtype, requires_grad=True)
    if chunk is not None:
        # What a label takes: six numbers for each text, its row and the gradient of it.
        layer.chunk_bytes = chunk * 4 * (6 * texts + 2 * hidden_size)
        assert layer(hidden).run_size <= chunk
    return layer, hidden, counts


def some_labels(texts, labels, most=3):
    """No label, then a single one behind padding, then what comes; each id once, padding anywhere."""
    ids = torch.stack([torch.randperm(labels)[:most] for _ in range(texts)])
    ids[torch.rand(texts, most) < 0.3] = -100
    ids[0] = -100
    if texts > 1:
        ids[1] = -100
        ids[1, -1] = labels - 1
    return ids


def gradients_of(loss, layer, hidden):
    """By name; a parameter that was not used counts as zero."""
    tensors = {"hidden": hidden, **dict(layer.named_parameters())}
    found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if gradient is None else gradient
        for (name, tensor), gradient in zip(tensors.items(), found, strict=True)
    }


@settings(deadline=None, max_examples=60)
@given(
    labels=st.integers(4, 25),
    tails=st.integers(1, 3),
    texts=st.integers(1, 5),
    chunk=st.integers(1, 26),
    norm=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_loss_and_gradients_equal_the_plain_form(labels, tails, texts, chunk, norm, bias, seed):
    torch.manual_seed(seed)
    proportions = [1 / (tails + 1)] * (tails + 1)
    layer, hidden, counts = make(8, labels, proportions, texts, chunk, tail_norm=norm, bias=bias)
    ids = some_labels(texts, labels)
    loss, expected = layer(hidden).loss(ids), plain_clusters_loss(layer, hidden, ids, counts)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-8)
    gradients, others = gradients_of(loss, layer, hidden), gradients_of(expected, layer, hidden)
    for name, gradient in gradients.items():
        assert (gradient - others[name]).abs().max() <= 1e-7 * max(others[name].abs().max(), 1e-3), name


@settings(deadline=None, max_examples=60)
@given(
    labels=st.integers(4, 25),
    tails=st.integers(1, 3),
    chunk=st.integers(1, 26),
    k=st.integers(1, 30),
    coarse=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_top_k_equals_the_dense_ranking(labels, tails, chunk, k, coarse, seed):
    torch.manual_seed(seed)
    layer, hidden, counts = make(
        8, labels, [1 / (tails + 1)] * (tails + 1), 5, chunk, tail_norm=not coarse, bias=seed % 2 == 0
    )
    if coarse:
        # Whole numbers from a handful of values: many exact ties, within clusters and across them.
        with torch.no_grad():
            hidden.zero_()[:, 0] = 1
            for parameter in layer.parameters():
                parameter.clamp_(-1, 1).round_()
            layer.roots.weight.mul_(60)
    dense = layer(hidden).all()
    torch.testing.assert_close(dense.sigmoid(), plain_probabilities(layer, hidden, counts)[0])
    # Rankings are in single precision, which also hides in which order the double numbers were summed up.
    scores, order = dense.float().sort(dim=1, descending=True, stable=True)
    best = layer(hidden).top_k(k)
    torch.testing.assert_close(best.logits, scores[:, :k])
    assert torch.equal(best.ids, order[:, :k])


def test_biases_start_at_the_log_odds():
    layer, _, _ = make(bias=True)
    probabilities = torch.rand(20, dtype=torch.float64) * 0.5 + 1e-4
    layer.start_label_bias(torch.logit(probabilities))
    # A text that nothing is known about.
    nothing = torch.zeros(1, 8, dtype=torch.float64)
    with torch.no_grad():
        for tail in layer.tails:
            tail.label_embeddings.weight.zero_()
    torch.testing.assert_close(layer(nothing).all().sigmoid()[0], probabilities)
    alone = AdaptiveLabelClusters(8, 2, bias=True)
    alone.set_label_counts([5, 1])
    alone.start_label_bias(torch.tensor([-1.0, -2.0]))
    assert torch.isfinite(torch.cat([p.flatten() for p in alone.parameters()])).all()


@pytest.mark.parametrize("bias", [False, True])
def test_logits_of_runs_and_of_chosen_labels(bias):
    layer, hidden, counts = make(bias=bias)
    expected = plain_probabilities(layer, hidden, counts)[0]
    scores = layer(hidden)
    torch.testing.assert_close(scores.all().sigmoid(), expected)
    for start, stop in ((0, 20), (3, 4), (7, 15)):
        torch.testing.assert_close(scores.run(start, stop).sigmoid(), expected[:, start:stop])
    chosen = torch.randint(0, 20, (5, 6))
    torch.testing.assert_close(scores.chosen(chosen).sigmoid(), expected.gather(1, chosen))
    torch.testing.assert_close(scores.chosen(chosen[0]).sigmoid(), expected[:, chosen[0]])
    # Differentiable, for losses other than its own, in whichever way they are asked for.
    everything = torch.arange(20)
    for ask in (
        lambda scores: scores.all(),
        lambda scores: scores.run(0, 20),
        lambda scores: scores.chosen(everything),
        lambda scores: scores.chosen(everything.expand(5, -1)),
    ):
        gradients = gradients_of(ask(layer(hidden)).sigmoid().sum(), layer, hidden)
        others = gradients_of(plain_probabilities(layer, hidden, counts)[0].sum(), layer, hidden)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, others[name], msg=lambda m, n=name: f"{n}: {m}")


def watch_tails(layer):
    """How many texts each tail was computed for, call by call."""
    calls = []
    for i, tail in enumerate(layer.tails):
        tail.register_forward_hook(lambda module, inputs, output, i=i: calls.append((i, len(output))))
    return calls


def test_training_computes_only_what_a_text_needs():
    layer, hidden, counts = make()
    head, _, last = plain_clusters(counts, layer.sizes)
    calls = watch_tails(layer)
    labels = torch.tensor([[head[0], -100], [last[0], last[1]], [-100, -100], [last[2], head[1]], [head[0], head[1]]])
    layer(hidden).loss(labels).backward()
    assert calls == [(1, 2)]
    assert all(parameter.grad is None for parameter in layer.tails[0].parameters())
    # Texts without a tail of their own push its root down all the same.
    assert (layer.roots.weight.grad != 0).all()


def test_prediction_skips_tails_that_cannot_reach_the_ranking():
    layer, hidden, _ = make(proportions=(0.5, 0.25, 0.25))
    with torch.no_grad():
        hidden.copy_(torch.eye(5, 8))
        # Five vectors of one-hot kind: weights are the scores. Only two texts can have labels of the last tail.
        layer.label_embeddings.weight.fill_(2.0)
        layer.roots.weight.fill_(-3.0)
        layer.roots.weight[1, [1, 3]] = 4.0
    calls = watch_tails(layer)
    ids = layer(hidden).top_k(3).ids
    assert calls == [(1, 2)]
    dense = layer(hidden).all().float()
    assert torch.equal(ids, dense.sort(dim=1, descending=True, stable=True)[1][:, :3])
    calls.clear()
    # More labels than the head has: no tail can be left out.
    layer(hidden).top_k(11)
    assert calls[0] == (0, 5)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("decay", [1, 2, 3.5])
def test_parameters_are_those_of_equation_6(norm, decay):
    size, sizes = 50, (30, 40, 50, 80)
    layer = AdaptiveLabelClusters(size, 200, proportions=[n / 200 for n in sizes], decay=decay, tail_norm=norm)
    expected = size * (sizes[0] + 3)
    for i, labels in enumerate(sizes[1:], start=1):
        width = math.floor(size / decay**i)
        expected += width * (size + labels) + (2 * width if norm else 0)
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


@settings(deadline=None)
@given(num_labels=st.integers(2, 5000), weights=st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_sizes_follow_the_proportions(num_labels, weights):
    proportions = [weight / sum(weights) for weight in weights]
    # Two roundings may take one label from a cluster.
    if min(proportions) * num_labels < 2:
        return
    sizes = cluster_sizes(num_labels, proportions)
    assert sum(sizes) == num_labels and min(sizes) >= 1
    assert all(abs(size - share * num_labels) <= 1 + 1e-6 for size, share in zip(sizes, proportions, strict=True))


@settings(deadline=None, max_examples=50)
@given(counts=st.lists(st.integers(0, 5), min_size=6, max_size=60).filter(any))
def test_labels_are_put_into_clusters_by_count(counts):
    layer = AdaptiveLabelClusters(8, len(counts), proportions=THIRDS)
    layer.set_label_counts(counts)
    clusters = [layer.label_order[run].tolist() for run in layer.runs]
    assert clusters == plain_clusters(counts, layer.sizes)
    assert layer.label_order[layer.label_places].tolist() == list(range(len(counts)))
    for more, fewer in zip(clusters, clusters[1:], strict=False):
        assert min(counts[label] for label in more) >= max(counts[label] for label in fewer)


def test_thirds_and_halves():
    assert cluster_sizes(100, [0.33, 0.33, 0.34]) == [33, 33, 34]
    assert cluster_sizes(2, [0.5, 0.5]) == [1, 1]
    assert cluster_sizes(3956, [0.5, 0.5]) == [1978, 1978]
    assert tail_widths(512, 2, 3) == [256, 128, 64]


GRID = (-1e4, -300.0, -20.0, -1.0, 0.0, 0.5, 20.0, 300.0, 1e4)


def test_product_logits_and_their_derivatives_at_any_size():
    roots, tails = (grid.flatten() for grid in torch.meshgrid(torch.tensor(GRID), torch.tensor(GRID), indexing="ij"))
    logits = product_logits(roots, tails)
    assert logits.isfinite().all() and (logits <= roots).all() and (logits <= tails).all()
    # log p = log sigmoid(root) + log sigmoid(tail), the reference in double precision.
    log_sigmoid = torch.nn.functional.logsigmoid
    expected = log_sigmoid(roots.double()) + log_sigmoid(tails.double())
    torch.testing.assert_close(log_sigmoid(logits).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("positive", [False, True])
def test_loss_stays_finite_for_extreme_logits(dtype, positive):
    """One text per pair of root and tail logits; derivatives against those of the two factors in log space."""
    roots, tails = (grid.flatten() for grid in torch.meshgrid(torch.tensor(GRID), torch.tensor(GRID), indexing="ij"))
    roots, tails = roots.to(dtype)[:, None], tails.to(dtype)[:, None]
    loss, (by_tails, by_weight, _, by_roots) = tail_loss(
        Precisions(dtype, dtype, dtype),
        (True, True, False, True),
        tails,
        torch.ones(1, 1, dtype=dtype),
        None,
        roots,
        labels=torch.full((len(roots), 1), 0 if positive else -100),
        text_weights=torch.ones(len(roots), dtype=dtype),
        chunk_size=1,
    )
    assert loss.isfinite() and by_weight.isfinite().all()
    r, t = roots.double().requires_grad_(), tails.double().requires_grad_()
    log_p = torch.nn.functional.logsigmoid(r) + torch.nn.functional.logsigmoid(t)
    if positive:
        expected = torch.autograd.grad(-log_p.sum(), (r, t))
    else:
        # d -log(1 - p) = p / (1 - p) d log p, with p / (1 - p) taken where it does not overflow.
        odds = torch.exp(-torch.logaddexp(-r, torch.nn.functional.softplus(-r) - t)).detach()
        expected = [odds * torch.sigmoid(-r), odds * torch.sigmoid(-t)]
        expected = [torch.where(odds.isfinite(), value, torch.nan) for value in expected]
    for found, other in zip((by_roots, by_tails), expected, strict=True):
        assert found.isfinite().all()
        known = other.isfinite()
        torch.testing.assert_close(found.double()[known], other[known], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    layer, hidden, counts = make(dtype=torch.float32)
    labels = some_labels(5, 20)
    expected = gradients_of(layer(hidden).loss(labels), layer, hidden)
    with torch.autocast("cpu", dtype=dtype):
        scores = layer(hidden)
        loss, logits = scores.loss(labels), scores.all()
        assert scores.top_k(3).logits.dtype == torch.float32
    assert loss.dtype == torch.float32 and logits.dtype == torch.float32
    torch.testing.assert_close(logits.sigmoid(), plain_probabilities(layer, hidden, counts)[0], rtol=0, atol=0.05)
    for name, gradient in gradients_of(loss, layer, hidden).items():
        assert gradient.dtype == torch.float32
        assert (gradient - expected[name]).abs().max() <= 0.05 * expected[name].abs().max() + 1e-6, name
    # Logits of thousands, near the end of what float16 holds.
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "embeddings" in name or "roots" in name:
                parameter.mul_(1e3)
    with torch.autocast("cpu", dtype=dtype):
        loss = layer(hidden).loss(labels)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients_of(loss, layer, hidden).values())


def test_use_before_the_counts_are_known_is_refused():
    layer, hidden = AdaptiveLabelClusters(8, 20), torch.randn(2, 8)
    with pytest.raises(ValueError, match="set_label_counts"):
        layer(hidden)
    counted = AdaptiveLabelClusters(8, 20)
    counted.set_label_counts(range(20))
    layer.load_state_dict(counted.state_dict())
    assert torch.equal(layer(hidden).top_k(3).ids, counted(hidden).top_k(3).ids)
    layer.set_label_counts(torch.arange(20) * 2)
    with pytest.raises(ValueError, match="build a new layer"):
        layer.set_label_counts(torch.arange(20).flip(0))


@pytest.mark.parametrize("counts", [[1] * 19, [1] * 19 + [-1], [0] * 20, [[1] * 20], [1.0] * 19 + [math.nan]])
def test_bad_counts_are_refused(counts):
    with pytest.raises(ValueError, match="`label_counts` must"):
        AdaptiveLabelClusters(8, 20).set_label_counts(counts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"proportions": [1.0]}, "linear classifier"),
        ({"proportions": []}, "linear classifier"),
        ({"proportions": [0.33, 0.33, 0.33]}, "sum to 1"),
        ({"proportions": [1.5, -0.5]}, "above 0"),
        ({"proportions": [0.5, math.nan]}, "above 0"),
        ({"proportions": [0.99, 0.01]}, "at least one label"),
        ({"decay": 0.5}, "at least 1"),
        ({"decay": 9}, "no width"),
    ],
)
def test_bad_sizes_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveLabelClusters(8, 20, **fields)


def test_bad_calls_are_refused():
    layer, hidden, _ = make()
    for wrong in (hidden[:0], hidden[0], hidden[None]):
        with pytest.raises(ValueError, match=r"of shape \(texts, hidden size\)"):
            layer(wrong)
