"""The fused linear head against the plain one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_label_attention import plain_linear_logits, plain_loss

from glocal_xml.modeling import LinearHead


def make(hidden=6, labels=13, chunk=4, texts=3, bias=True, dtype=torch.float64):
    head = LinearHead(hidden, labels, 1, bias=bias).to(dtype)
    document = torch.randn(texts, hidden, dtype=dtype, requires_grad=True)
    # What a label takes: four numbers for each text, its row and the gradient of it.
    head.chunk_bytes = chunk * 4 * (4 * texts + 2 * hidden)
    ids = torch.stack([torch.randperm(labels)[:3] if labels > 2 else torch.zeros(3).long() for _ in range(texts)])
    ids[0] = -100
    ids[:, 1:][torch.rand(texts, 2) < 0.3] = -100
    return head, document, ids if labels > 2 else ids[:, :1]


def loss_and_gradients(loss, tensors):
    return loss.item(), torch.autograd.grad(loss, tensors)


def assert_equal_to_plain(head, document, labels, tolerance):
    tensors = [document, *head.parameters()]
    loss, gradients = loss_and_gradients(head(document).loss(labels), tensors)
    plain, expected = loss_and_gradients(plain_loss(plain_linear_logits(head, document), labels), tensors)
    assert loss == pytest.approx(plain, rel=tolerance)
    for gradient, other in zip(gradients, expected, strict=True):
        assert gradient.dtype == other.dtype
        assert (gradient - other).abs().max() <= tolerance * other.abs().max()
    logits, scores = plain_linear_logits(head, document), head(document)
    chosen = torch.randint(0, scores.num_labels, (scores.num_texts, 4))
    torch.testing.assert_close(scores.all(), logits)
    torch.testing.assert_close(scores.chosen(chosen), logits.gather(1, chosen))
    torch.testing.assert_close(scores.chosen(chosen[0]), logits[:, chosen[0]])


@settings(deadline=None, max_examples=40)
@given(
    hidden=st.integers(1, 9),
    labels=st.integers(1, 30),
    chunk=st.integers(1, 31),
    texts=st.integers(1, 5),
    bias=st.booleans(),
    double=st.booleans(),
)
def test_equals_the_plain_form(hidden, labels, chunk, texts, bias, double):
    dtype, tolerance = (torch.float64, 1e-9) if double else (torch.float32, 1e-5)
    assert_equal_to_plain(*make(hidden, labels, chunk, texts, bias, dtype), tolerance)


def test_no_gradients_without_need():
    head, document, labels = make()
    expected = head(document).loss(labels)
    with torch.no_grad():
        assert not head(document).loss(labels).requires_grad
    head.requires_grad_(False)
    assert not head(document.detach()).loss(labels).requires_grad
    # A frozen label table has no gradient made for it.
    loss = head(document).loss(labels)
    assert [gradient is None for gradient in loss.grad_fn.gradients] == [False, True, True]
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    head, document, labels = make(dtype=torch.float32)
    expected = torch.autograd.grad(head(document).loss(labels), head.label_embeddings.weight)[0]
    with torch.autocast("cpu", dtype=dtype):
        loss = head(document.to(dtype)).loss(labels)
    assert loss.dtype == torch.float32
    gradient = torch.autograd.grad(loss, head.label_embeddings.weight)[0]
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.01 * expected.abs().max().item())


def test_tiny_gradients_of_negatives_survive_float16():
    """The mean over many labels would be zero in half precision, scaled or not."""
    head, document, labels = make(dtype=torch.float32)
    with torch.no_grad():
        head.label_embeddings.bias.fill_(-15.0)
    loss = head(document.detach().half()).loss(torch.full_like(labels, -100))
    loss.backward()
    assert (head.label_embeddings.weight.grad != 0).all()
    assert (head.label_embeddings.bias.grad > 0).all()


def test_wrapped_layers_are_refused():
    head, document, labels = make()
    head.label_embeddings = torch.nn.Sequential(head.label_embeddings)
    with pytest.raises(ValueError, match="plain tables"):
        head(document).loss(labels)


def test_huge_weights_stay_finite_in_half_precision():
    head, document, labels = make(dtype=torch.float32)
    with torch.no_grad():
        head.label_embeddings.weight.mul_(1e5)
    with torch.autocast("cpu", dtype=torch.float16):
        scores = head(document.half())
        assert scores.loss(labels).isfinite() and scores.all().isfinite().all()
