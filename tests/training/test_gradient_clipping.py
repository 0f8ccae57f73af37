"""Gradients of every kind are clipped by one common norm."""

import copy

import pytest
import torch

from glocal_xml.training.optimizer import clip_gradients


def plain_model():
    return torch.nn.ModuleDict(
        {"table": torch.nn.Embedding(10, 4), "linear": torch.nn.Linear(4, 3), "unused": torch.nn.Linear(2, 2)}
    ).double()


def step(model):
    # Row 3 occurs three times: its parts belong together before they are squared.
    rows = model["table"](torch.tensor([3, 1, 3, 7, 3]))
    model["linear"](rows).pow(2).sum().backward()


@pytest.mark.parametrize("max_norm", [0.1, 1e6, float("inf")])
@pytest.mark.parametrize("sparse", [False, True])
def test_dense_and_sparse_gradients_are_clipped_as_torch_clips_dense_ones(max_norm, sparse):
    model = plain_model()
    twin = copy.deepcopy(model)
    model["table"].sparse = sparse
    step(model)
    step(twin)
    assert model["table"].weight.grad.is_sparse == sparse
    norm = clip_gradients(model.parameters(), max_norm)
    expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), max_norm)
    torch.testing.assert_close(norm, expected)
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        if other.grad is None:
            assert parameter.grad is None
        else:
            gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            torch.testing.assert_close(gradient, other.grad)


def test_no_gradient_at_all():
    assert clip_gradients(plain_model().parameters(), 1.0) == 0
