"""The fused label-word attention against the plain one, written as in the paper."""

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_label_attention import plain_attention_logits, plain_loss

from glocal_xml.modeling.label_attention import LabelAttention


def make(
    texts=3,
    tokens=7,
    hidden=6,
    mlp=5,
    labels=13,
    chunk=4,
    bias=True,
    temperature=0.7,
    dtype=torch.float64,
    further_sizes=(),
):
    """A head with biases that matter, texts padded on both sides, one text without labels."""
    head = LabelAttention(hidden, labels, 1, mlp, temperature, bias=bias, further_sizes=further_sizes).to(dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.7)
    hidden_states = torch.randn(texts, tokens, hidden, dtype=dtype, requires_grad=True)
    mask = torch.rand(texts, tokens) < 0.7
    mask[:, tokens // 2] = True
    head.chunk_bytes = chunk * head.bytes_per_label(head.features(hidden_states, mask))
    ids = torch.stack([torch.randperm(labels)[: min(3, labels)] for _ in range(texts)])
    ids[torch.rand(ids.shape) < 0.3] = -100
    ids[0] = -100
    return head, hidden_states, mask, ids


def fused(head, hidden_states, mask, labels):
    return head.loss(head.features(hidden_states, mask), labels)


def plain(head, hidden_states, mask, labels):
    return plain_loss(plain_attention_logits(head, hidden_states, mask), labels)


def gradients(loss, head, hidden_states):
    names = ["hidden_states", *(name for name, _ in head.named_parameters())]
    return dict(zip(names, torch.autograd.grad(loss, [hidden_states, *head.parameters()]), strict=True))


def assert_same(first, second, tolerance):
    for name, expected in second.items():
        assert first[name].dtype == expected.dtype
        assert (first[name] - expected).abs().max() <= tolerance * expected.abs().max() + 1e-14, name


@settings(deadline=None, max_examples=60)
@given(
    texts=st.integers(1, 4),
    tokens=st.integers(1, 11),
    hidden=st.integers(1, 9),
    mlp=st.integers(1, 7),
    labels=st.integers(1, 30),
    chunk=st.integers(1, 31),
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
    features = head.features(hidden_states, mask)
    run = slice(sizes["labels"] // 2, sizes["labels"])
    logits = plain_attention_logits(head, hidden_states, mask)
    torch.testing.assert_close(head.logits(features, run), logits[:, run], rtol=1e-9, atol=1e-9)
    chosen = torch.randint(0, sizes["labels"], (sizes["texts"], 3))
    torch.testing.assert_close(head.logits(features, chosen), logits.gather(1, chosen), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 17, 500])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_plain_form_in_single_precision(chunk, bias):
    """No further from double precision than the plain form is, over several draws: ReLUs may open or shut."""
    errors = {fused: [], plain: []}
    for _ in range(7):
        head, hidden_states, mask, labels = make(5, 33, 24, 17, 211, chunk, bias, dtype=torch.float32)
        twin, states = copy.deepcopy(head).double(), hidden_states.detach().double().requires_grad_()
        expected = plain(twin, states, mask, labels)
        exact = gradients(expected, twin, states)
        for form, found in errors.items():
            loss = form(head, hidden_states, mask, labels)
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
            rough = gradients(loss, head, hidden_states)
            found.append([((rough[n] - exact[n]).abs().max() / exact[n].abs().max()).item() for n in exact])
    fused_error, plain_error = (torch.tensor(found).median(dim=0).values for found in errors.values())
    assert (fused_error <= 2 * plain_error + 1e-6).all(), (fused_error, plain_error)


def test_large_scores_stay_finite():
    inputs = make(temperature=1e-3, dtype=torch.float32)
    loss = fused(*inputs)
    assert all(gradient.isfinite().all() for gradient in gradients(loss, *inputs[:2]).values())
    torch.testing.assert_close(loss, plain(*inputs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("further_sizes", [(), (20, 16)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_as_close_as_the_plain_form(dtype, further_sizes):
    """Over several draws, since a ReLU that rounding opens or shuts changes a gradient by much in either form."""
    errors = {fused: [], plain: []}
    for _ in range(40):
        head, *inputs = make(4, 20, 32, 24, 60, dtype=torch.float32, further_sizes=further_sizes)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.mul_(0.4)
        exact = gradients(plain(head, *inputs), head, inputs[0])
        for form, found in errors.items():
            with torch.autocast("cpu", dtype=dtype):
                loss = form(head, *inputs)
            assert loss.dtype == torch.float32
            rough = gradients(loss, head, inputs[0])
            assert all(gradient.dtype == torch.float32 for gradient in rough.values())
            found.append([((rough[name] - exact[name]).norm() / exact[name].norm()).item() for name in exact])
    fused_error, plain_error = (torch.tensor(found).median(dim=0).values for found in errors.values())
    assert (fused_error <= 1.5 * plain_error + 0.005).all(), (fused_error, plain_error)


def test_gradient_scaler_with_float16():
    """Scaled gradients in, unscaled ones of single precision out."""
    head, hidden_states, mask, labels = make(dtype=torch.float32)
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


def test_tiny_gradients_of_negatives_survive_float16():
    head, hidden_states, mask, labels = make(dtype=torch.float32)
    with torch.no_grad():
        head.label_bias.fill_(-15.0)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = fused(head, hidden_states, mask, torch.full_like(labels, -100))
    loss.backward()
    assert (head.label_bias.grad > 0).all()
    assert (head.label_embeddings.weight.grad.abs().sum(dim=1) > 0).all()


def test_accumulation_adds_up():
    head, hidden_states, mask, labels = make()
    expected = gradients(fused(head, hidden_states, mask, labels), head, hidden_states)
    for row in range(3):
        part = slice(row, row + 1)
        (fused(head, hidden_states[part], mask[part], labels[part]) / 3).backward()
    found = {"hidden_states": hidden_states.grad, **{name: p.grad for name, p in head.named_parameters()}}
    assert_same(found, expected, 1e-9)


def test_two_uses_in_one_graph():
    head, hidden_states, mask, labels = make()
    other = torch.randn_like(hidden_states)

    def both(form):
        return form(head, hidden_states, mask, labels) * 3 + form(head, hidden_states + other, mask, labels) ** 2

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


def test_no_gradient_work_without_need(monkeypatch):
    head, hidden_states, mask, labels = make()
    expected = fused(head, hidden_states, mask, labels)
    products = []
    import glocal_xml.modeling.label_attention_loss as room

    original = room.add_product
    monkeypatch.setattr(room, "add_product", lambda *a, **k: products.append(1) or original(*a, **k))

    def count(**frozen):
        products.clear()
        keys, values, _ = head.features(hidden_states, mask)
        features = (keys.detach() if "keys" in frozen else keys, values.detach() if "values" in frozen else values)
        loss = head.loss((*features, mask), labels)
        torch.testing.assert_close(loss, expected)
        made = [] if loss.grad_fn is None else [gradient is not None for gradient in loss.grad_fn.gradients]
        return len(products) // 12, made  # 3 texts and 4 chunks

    # Scores and what was read; then gradients by values, weights, keys and label embeddings.
    assert count() == (6, [True] * 6)
    with torch.no_grad():
        assert count() == (2, [])
    head.label_embeddings.weight.requires_grad_(False)
    assert count() == (5, [True, True, False, True, True, True])
    assert count(keys=True) == (3, [False, True, False, True, True, True])
    head.mlp_output.requires_grad_(False)
    head.label_bias.requires_grad_(False)
    assert count(values=True) == (4, [True, False, False, False, False, False])
    assert count(keys=True, values=True) == (2, [])


@pytest.mark.parametrize(
    "frozen", ["label_embeddings", "mlp_further.0", "mlp_further.1.bias", "[^m].*", "(?!mlp_f).*"]
)
def test_frozen_parts_of_a_deep_mlp_change_no_other_gradient(frozen):
    head, hidden_states, mask, labels = make(further_sizes=(4, 3))
    expected = gradients(plain(head, hidden_states, mask, labels), head, hidden_states)
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(re.match(frozen, name) is None)
    fused(head, hidden_states.detach(), mask, labels).backward()
    found = {name: parameter.grad for name, parameter in head.named_parameters() if parameter.requires_grad}
    assert found and all(gradient is not None for gradient in found.values())
    assert_same(found, {name: expected[name] for name in found}, 1e-9)


def test_nothing_of_the_size_of_the_label_space_is_kept():
    """Beyond parameters and their gradients: chunk buffers only, at any number of labels."""

    def largest(labels):
        torch.manual_seed(0)
        head, hidden_states, _, ids = make(labels=labels, hidden=8, mlp=4, chunk=100, dtype=torch.float32)
        mask, sizes = torch.ones(hidden_states.shape[:2], dtype=torch.bool), []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                result = function(*args, **(kwargs or {}))
                if isinstance(result, torch.Tensor):
                    sizes.append(result.untyped_storage().nbytes())
                return result

        features = head.features(hidden_states, mask)
        with Watch():
            head.loss(features, ids)
        own = {parameter.untyped_storage().nbytes() for parameter in head.parameters()}
        return max(size for size in sizes if size not in own)

    assert largest(20_000) == largest(400)


def test_compiled_rest_calls_it_as_it_is():
    head, hidden_states, mask, labels = make()

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


def test_two_processes_equal_one(tmp_path):
    torch.multiprocessing.spawn(_parallel_step, (str(tmp_path),), nprocs=2)
    torch.manual_seed(0)
    head, hidden_states, mask, labels = make(texts=4)
    expected = gradients(2 * fused(head, hidden_states, mask, labels), head, hidden_states)
    expected.pop("hidden_states")
    assert_same(torch.load(tmp_path / "gradients.pt"), expected, 1e-9)
