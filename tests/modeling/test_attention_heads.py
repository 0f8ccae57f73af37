"""The fused attention heads against plain ones, written as in their papers: outputs and gradients."""

import copy
import re

import pytest
import torch
import warm_process
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_label_attention import plain_attention_logits, plain_evidence_logits, plain_loss

import glocal_xml.modeling.attention_head as attention_room
from glocal_xml.modeling import AttentionHead, EvidenceHead, fused_loss

FORMS = ("mlp", "evidence", "tied")
# Bytes that leave one text at a time, and bytes for all of them: on a CPU and on an accelerator.
ONE_TEXT, ALL_TEXTS = "one text at a time", "all texts at once"


def make(
    form="mlp",
    texts=3,
    tokens=7,
    hidden=6,
    width=5,
    labels=13,
    chunk=4,
    blocks=ONE_TEXT,
    bias=True,
    temperature=0.7,
    dtype=torch.float64,
    further_sizes=(),
):
    """A head with biases that matter, texts padded at their end, one text without labels."""
    options = {"temperature": temperature, "bias": bias}
    if form == "mlp":
        head = AttentionHead(hidden, labels, 1, (width, *further_sizes), **options)
    else:
        sizes = (width, width) if form == "tied" else (width, width + 1)
        head = EvidenceHead(hidden, labels, 1, *sizes, tied=form == "tied", **options)
    head = head.to(dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.7)
    hidden_states = torch.randn(texts, tokens, hidden, dtype=dtype, requires_grad=True)
    lengths = torch.randint(1, tokens + 1, (texts,))
    lengths[-1] = tokens
    mask = torch.arange(tokens) < lengths[:, None]
    head.chunk_bytes = bytes_for(head, hidden_states, mask, chunk, blocks)
    ids = torch.stack([torch.randperm(labels)[: min(3, labels)] for _ in range(texts)])
    ids[torch.rand(ids.shape) < 0.3] = -100
    ids[0] = -100
    return head, hidden_states, mask, ids


def bytes_for(head, hidden_states, mask, chunk, blocks):
    """The memory for chunks of so many labels, found by asking the head: that of two labels first."""
    few, enough = 0, 2**20
    while head.label_embeddings.out_features > 1 and enough - few > 1:
        head.chunk_bytes = (few + enough) // 2
        with torch.no_grad():
            one_by_one = head(hidden_states, mask).run_size == 1
        few, enough = (head.chunk_bytes, enough) if one_by_one else (few, head.chunk_bytes)
    return enough // 2 * chunk * (len(mask) if blocks == ALL_TEXTS else 1)


@pytest.fixture(autouse=True)
def few_labels_are_enough(monkeypatch):
    """So that tiny heads also go over several chunks of labels for all texts at once."""
    monkeypatch.setattr(fused_loss, "_ENOUGH_LABELS", 3)


def fused(head, hidden_states, mask, labels):
    return head(hidden_states, mask).loss(labels)


def plain_logits(head, hidden_states, mask):
    form = plain_attention_logits if isinstance(head, AttentionHead) else plain_evidence_logits
    return form(head, hidden_states, mask)


def plain(head, hidden_states, mask, labels):
    return plain_loss(plain_logits(head, hidden_states, mask), labels)


def gradients(loss, head, hidden_states):
    names = ["hidden_states", *(name for name, _ in head.named_parameters())]
    return dict(zip(names, torch.autograd.grad(loss, [hidden_states, *head.parameters()]), strict=True))


def assert_same(first, second, tolerance):
    for name, expected in second.items():
        assert first[name].dtype == expected.dtype
        assert (first[name] - expected).abs().max() <= tolerance * expected.abs().max() + 1e-13, name


@settings(deadline=None, max_examples=80)
@given(
    form=st.sampled_from(FORMS),
    texts=st.integers(1, 4),
    tokens=st.integers(1, 11),
    hidden=st.integers(1, 9),
    width=st.integers(1, 7),
    labels=st.integers(1, 30),
    chunk=st.integers(1, 31),
    blocks=st.sampled_from([ONE_TEXT, ALL_TEXTS]),
    bias=st.booleans(),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    further_sizes=st.lists(st.integers(1, 6), max_size=3),
    seed=st.integers(0, 1000),
)
def test_equals_the_plain_form_in_double_precision(seed, **sizes):
    torch.manual_seed(seed)
    head, hidden_states, mask, labels = make(**sizes)
    inputs = (head, hidden_states, mask, labels)
    expected, loss = plain(*inputs), fused(*inputs)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    assert_same(gradients(loss, head, hidden_states), gradients(expected, head, hidden_states), 1e-9)
    scores, logits = head(hidden_states, mask), plain_logits(head, hidden_states, mask)
    start = sizes["labels"] // 2
    torch.testing.assert_close(scores.run(start, sizes["labels"]), logits[:, start:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(scores.all(), logits, rtol=1e-9, atol=1e-9)
    chosen = torch.randint(0, sizes["labels"], (sizes["texts"], 3))
    torch.testing.assert_close(scores.chosen(chosen), logits.gather(1, chosen), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(scores.chosen(chosen[0]), logits[:, chosen[0]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_both_ways_over_the_texts_are_tried(form):
    sizes = {"form": form, "texts": 3, "labels": 20, "chunk": 6}
    one, every = (
        head(states, mask).blocks for head, states, mask, _ in (make(**sizes), make(**sizes, blocks=ALL_TEXTS))
    )
    assert len(one.texts) == 3 and all(padding is None for *_, padding in one.texts)
    assert len(every.texts) == 1 and every.texts[0][2] is not None
    assert one.num_labels < 20 and every.num_labels < 20


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocks", [ONE_TEXT, ALL_TEXTS])
def test_equals_the_plain_form_in_single_precision(form, blocks):
    """No further from double precision than the plain form is, over several draws: ReLUs may open or shut."""
    errors = {fused: [], plain: []}
    for _ in range(7):
        head, hidden_states, mask, labels = make(form, 5, 33, 24, 17, 211, 17, blocks, dtype=torch.float32)
        twin, states = copy.deepcopy(head).double(), hidden_states.detach().double().requires_grad_()
        expected = plain(twin, states, mask, labels)
        exact = gradients(expected, twin, states)
        for way, found in errors.items():
            loss = way(head, hidden_states, mask, labels)
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
            rough = gradients(loss, head, hidden_states)
            found.append([((rough[n] - exact[n]).abs().max() / exact[n].abs().max()).item() for n in exact])
    fused_error, plain_error = (torch.tensor(found).median(dim=0).values for found in errors.values())
    assert (fused_error <= 2 * plain_error + 1e-6).all(), (fused_error, plain_error)


@pytest.mark.parametrize("form", ["evidence", "tied"])
def test_contributions_of_words_sum_to_the_logit(form):
    head, hidden_states, mask, _ = make(form)
    scores, ids = head(hidden_states, mask), torch.tensor([[3, 1], [0, 12], [5, 5]])
    contributions = scores.contributions(ids)
    assert contributions.shape == (3, 2, 7)
    assert (contributions.masked_select(~mask[:, None]) == 0).all(), "padding says nothing"
    sums = contributions.sum(dim=-1) + head.label_embeddings.bias[ids]
    torch.testing.assert_close(sums, plain_logits(head, hidden_states, mask).gather(1, ids))
    assert contributions.min() < 0 < contributions.max(), "words speak for a label and against it"


@pytest.mark.parametrize("form", FORMS)
def test_large_scores_stay_finite(form):
    inputs = make(form, temperature=1e-3, dtype=torch.float32)
    loss = fused(*inputs)
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *inputs[:2]).values())
    torch.testing.assert_close(loss, plain(*inputs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["mlp", "deep mlp", "evidence", "tied"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_as_close_as_the_plain_form(dtype, form):
    """Over several draws, since a ReLU that rounding opens or shuts changes a gradient by much in either form."""
    errors = {fused: [], plain: []}
    for _ in range(40):
        sizes = (4, 20, 32, 24, 60)
        head, *inputs = make(
            form.split()[-1], *sizes, dtype=torch.float32, further_sizes=(20, 16) if form == "deep mlp" else ()
        )
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.mul_(0.4)
        exact = gradients(plain(head, *inputs), head, inputs[0])
        for way, found in errors.items():
            with torch.autocast("cpu", dtype=dtype):
                loss = way(head, *inputs)
            assert loss.dtype == torch.float32
            rough = gradients(loss, head, inputs[0])
            assert all(gradient.dtype == torch.float32 for gradient in rough.values())
            found.append([((rough[name] - exact[name]).norm() / exact[name].norm()).item() for name in exact])
    fused_error, plain_error = (torch.tensor(found).median(dim=0).values for found in errors.values())
    assert (fused_error <= 1.5 * plain_error + 0.005).all(), (fused_error, plain_error)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("blocks", [ONE_TEXT, ALL_TEXTS])
def test_huge_weights_stay_finite_in_half_precision(form, dtype, blocks):
    """Keys, values and their products overflow in float16 then."""
    head, hidden_states, mask, labels = make(form, hidden=32, width=32, blocks=blocks, dtype=torch.float32)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3000)
    with torch.autocast("cpu", dtype=dtype):
        scores = head(hidden_states, mask)
        ids = torch.tensor([[0, 4], [1, 2], [3, 12]])
        outputs = [scores.loss(labels), scores.all(), scores.chosen(ids), scores.attention(ids)]
    assert all(output.isfinite().all() for output in outputs)


@pytest.mark.parametrize("form", FORMS)
def test_gradient_scaler_with_float16(form):
    """Scaled gradients in, unscaled ones of single precision out."""
    head, hidden_states, mask, labels = make(form, dtype=torch.float32)
    expected = gradients(plain(head, hidden_states, mask, labels), head, hidden_states)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = fused(head, hidden_states, mask, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    found = {name: parameter.grad for name, parameter in head.named_parameters()}
    expected.pop("hidden_states")
    assert_same(found, expected, 0.03)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**10


@pytest.mark.parametrize("form", FORMS)
def test_tiny_gradients_of_negatives_survive_float16(form):
    head, hidden_states, mask, labels = make(form, dtype=torch.float32)
    with torch.no_grad():
        head.label_embeddings.bias.fill_(-15.0)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = fused(head, hidden_states, mask, torch.full_like(labels, -100))
    loss.backward()
    assert (head.label_embeddings.bias.grad > 0).all()
    assert (head.label_embeddings.weight.grad.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_accumulation_adds_up(form):
    head, hidden_states, mask, labels = make(form)
    expected = gradients(fused(head, hidden_states, mask, labels), head, hidden_states)
    for row in range(3):
        part = slice(row, row + 1)
        (fused(head, hidden_states[part], mask[part], labels[part]) / 3).backward()
    found = {"hidden_states": hidden_states.grad, **{name: p.grad for name, p in head.named_parameters()}}
    assert_same(found, expected, 1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_two_uses_in_one_graph(form):
    head, hidden_states, mask, labels = make(form)
    other = torch.randn_like(hidden_states)

    def both(way):
        return way(head, hidden_states, mask, labels) * 3 + way(head, hidden_states + other, mask, labels) ** 2

    expected = gradients(both(plain), head, hidden_states)
    assert_same(gradients(both(fused), head, hidden_states), expected, 1e-9)


def test_second_backward_is_refused():
    inputs = make()
    loss = fused(*inputs)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run the forward pass again"):
        loss.backward()


def test_double_backward_is_refused():
    inputs = make()
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(fused(*inputs), inputs[1], create_graph=True)


@pytest.mark.parametrize("form", ["mlp", "evidence"])
def test_no_gradient_work_without_need(form, monkeypatch):
    head, hidden_states, mask, labels = make(form)
    expected = fused(head, hidden_states, mask, labels)
    products, original = [], fused_loss.add_product
    for place in (attention_room, fused_loss):
        monkeypatch.setattr(place, "add_product", lambda *a, **k: products.append(1) or original(*a, **k))

    def count():
        products.clear()
        loss = fused(head, hidden_states, mask, labels)
        torch.testing.assert_close(loss, expected)
        made = [] if loss.grad_fn is None else [gradient is not None for gradient in loss.grad_fn.gradients]
        return len(products), made

    every, made = count()
    assert all(made)
    with torch.no_grad():
        scores_alone, made = count()
    assert made == [] and scores_alone < every / 2
    head.label_embeddings.requires_grad_(False)
    frozen_table, made = count()
    # Neither the queries nor their biases.
    assert scores_alone < frozen_table < every and made[2:4] == [False, False]


@pytest.mark.parametrize(
    ("form", "frozen"),
    [
        *[("mlp", part) for part in ("label_embeddings", "mlp_further.0", "mlp_further.1.bias", "[^m].*")],
        ("mlp", "(?!mlp_f).*"),
        *[("evidence", part) for part in ("label_embeddings", "label_outputs", "key", "value")],
        ("tied", "key"),
    ],
)
def test_frozen_parts_change_no_other_gradient(form, frozen):
    head, hidden_states, mask, labels = make(form, further_sizes=(4, 3))
    expected = gradients(plain(head, hidden_states, mask, labels), head, hidden_states)
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(re.match(frozen, name) is None)
    fused(head, hidden_states.detach(), mask, labels).backward()
    found = {name: parameter.grad for name, parameter in head.named_parameters() if parameter.requires_grad}
    assert found and all(gradient is not None for gradient in found.values())
    assert_same(found, {name: expected[name] for name in found}, 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocks", [ONE_TEXT, ALL_TEXTS])
def test_nothing_of_the_size_of_the_label_space_is_kept(form, blocks):
    """Beyond parameters and their gradients: chunk buffers only, at any number of labels."""

    def largest(labels):
        torch.manual_seed(0)
        head, hidden_states, mask, ids = make(
            form, labels=labels, hidden=8, width=4, chunk=100, blocks=blocks, dtype=torch.float32
        )
        mask, sizes = torch.ones_like(mask), []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                result = function(*args, **(kwargs or {}))
                if isinstance(result, torch.Tensor):
                    sizes.append(result.untyped_storage().nbytes())
                return result

        scores = head(hidden_states, mask)
        with Watch():
            scores.loss(ids)
        own = {parameter.untyped_storage().nbytes() for parameter in head.parameters()}
        return max(size for size in sizes if size not in own)

    assert largest(20_000) <= 1.5 * largest(2_000)


@pytest.mark.parametrize("form", ["mlp", "evidence"])
def test_compiled_rest_calls_it_as_it_is(form):
    head, hidden_states, mask, labels = make(form)

    def step(hidden_states):
        return fused(head, torch.tanh(hidden_states), mask, labels) * 2

    expected = gradients(step(hidden_states), head, hidden_states)
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager")
    assert_same(gradients(compiled(hidden_states), head, hidden_states), expected, 1e-9)


def _parallel_step(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

    class Step(torch.nn.Module):
        def __init__(self, head):
            super().__init__()
            self.head = head

        def forward(self, *inputs):
            return fused(self.head, *inputs)

    torch.manual_seed(0)
    head, hidden_states, mask, labels = make(texts=4)
    part = slice(2 * rank, 2 * rank + 2)
    model = torch.nn.parallel.DistributedDataParallel(Step(head))
    # Twice, the first without a reduction: hooks must see the sum of both.
    with model.no_sync():
        model(hidden_states[part], mask[part], labels[part]).backward()
    model(hidden_states[part], mask[part], labels[part]).backward()
    if rank == 0:
        torch.save({name: parameter.grad for name, parameter in head.named_parameters()}, f"{folder}/gradients.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    warm_process.run_function(_parallel_step, (str(tmp_path),), number=2)
    torch.manual_seed(0)
    head, hidden_states, mask, labels = make(texts=4)
    expected = gradients(2 * fused(head, hidden_states, mask, labels), head, hidden_states)
    expected.pop("hidden_states")
    assert_same(torch.load(tmp_path / "gradients.pt"), expected, 1e-9)
