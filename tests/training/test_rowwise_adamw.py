"""Row-wise AdamW: as AdamW for rows in play, and nothing at all for the others."""

import pytest
import torch
from torch import nn

from glocal_xml.training.optimizer import RowwiseAdamW, for_sparse_tables

OPTIONS = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-12, "weight_decay": 0.1}


def make(sparse):
    torch.manual_seed(0)
    tables = {"table": nn.Embedding(9, 4, sparse=sparse), "bias": nn.Embedding(9, 1, sparse=sparse)}
    return nn.ModuleDict({**tables, "linear": nn.Linear(4, 1)})


def step(model, optimizer, ids):
    optimizer.zero_grad()
    rows = torch.tensor(ids)
    loss = (model["linear"](model["table"](rows)).tanh() + model["bias"](rows)).pow(2).sum()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_rows_always_in_play_move_as_by_adamw(fused):
    ours, plain = make(sparse=True), make(sparse=False)
    optimizer = RowwiseAdamW(ours.parameters(), fused=fused, **OPTIONS)
    twin = torch.optim.AdamW(plain.parameters(), **OPTIONS)
    # Some ids occur twice: their gradients add up.
    for ids in ([*range(9), 3, 3], [*range(9), 8], [*range(9)]):
        step(ours, optimizer, ids)
        step(plain, twin, ids)
    for name, parameter in ours.named_parameters():
        # Sums of gradients in another order, and the fused kernel, round otherwise; a step is of the size 0.05.
        torch.testing.assert_close(parameter, plain.get_parameter(name), rtol=1e-4, atol=1e-6)


def test_rows_out_of_play_rest():
    model = make(sparse=True)
    optimizer = RowwiseAdamW(model.parameters(), **OPTIONS)
    step(model, optimizer, [0, 1, 5])
    table = model["table"].weight
    before = {name: value.clone() for name, value in optimizer.state[table].items()}
    weights = table.detach().clone()
    step(model, optimizer, [5, 7])
    resting = [0, 1, 2, 3, 4, 6, 8]
    assert torch.equal(table[resting], weights[resting])
    for name, value in optimizer.state[table].items():
        assert torch.equal(value[resting], before[name][resting])
    assert optimizer.state[table]["step"].tolist() == [1, 1, 0, 0, 0, 2, 0, 1, 0]
    # The first update of a row is of the size of the rate, however late it comes.
    moved = (table[7] - weights[7] * (1 - 0.05 * 0.1)).abs()
    torch.testing.assert_close(moved, torch.full((4,), 0.05), rtol=1e-4, atol=1e-6)


def test_resumes_bit_by_bit(tmp_path):
    batches = [[0, 1, 5], [5, 7], [2, 2, 7], [0, 8]]
    whole = make(sparse=True)
    optimizer = RowwiseAdamW(whole.parameters(), fused=True, **OPTIONS)
    for ids in batches[:2]:
        step(whole, optimizer, ids)
    torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    for ids in batches[2:]:
        step(whole, optimizer, ids)
    resumed = make(sparse=True)
    again = RowwiseAdamW(resumed.parameters(), fused=True, **OPTIONS)
    state = torch.load(tmp_path / "state.pt")
    resumed.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    for ids in batches[2:]:
        step(resumed, again, ids)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name


def test_gradients_are_left_where_they_were():
    model = make(sparse=True)
    optimizer = RowwiseAdamW(model.parameters(), **OPTIONS)
    step(model, optimizer, [0, 1])
    assert model["table"].weight.grad.is_sparse and model["linear"].weight.grad is not None


def test_which_optimiser_a_model_gets():
    assert for_sparse_tables(torch.optim.AdamW, make(sparse=False)) is torch.optim.AdamW
    assert for_sparse_tables(torch.optim.AdamW, make(sparse=True)) is RowwiseAdamW
    assert for_sparse_tables(torch.optim.SGD, make(sparse=True)) is torch.optim.SGD
    with pytest.raises(ValueError, match="Adafactor does not know"):
        for_sparse_tables(torch.optim.Adafactor, make(sparse=True))
    with pytest.raises(ValueError, match="`amsgrad` is not supported"):
        RowwiseAdamW(make(sparse=True).parameters(), amsgrad=True)
