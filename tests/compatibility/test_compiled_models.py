"""`torch.compile` gives what the model gives, and few graph breaks: where values decide, not at every layer."""

import pytest
import torch
from test_families import make_batch
from test_other_libraries import inputs_of, make_model
from torch._dynamo import explain

# Breaks of a training step and of a prediction: the check of a batch, losses and rankings run as they are. The three
# experts of ME-XML have a loss each, and a label tree a search before the loss.
BREAKS = {
    "glocal_xml": (2, 1),
    "me_xml-three-experts": (5, 1),
    "aplc_xlnet-tails": (2, 1),
    "light_attention": (2, 1),
    "glocal_xml-tree": (3, 1),
}


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Tracing takes seconds.
SOME_SLOW = [pytest.param(case, marks=() if case == "glocal_xml" else pytest.mark.slow) for case in BREAKS]


@pytest.mark.compatibility(
    "Training",
    "`torch.compile(model)`, graph breaks",
    "two in a training step (ME-XML one more per expert, label trees one more), one in a prediction",
    since="0.1",
)
@pytest.mark.parametrize("case", SOME_SLOW)
def test_graph_breaks(case):
    model = make_model(case)
    batch, inputs = make_batch(model), inputs_of(model)
    # What a first call finds out is kept: hooks of Transformers, whether there are clusters and trees.
    model.train()(**batch, output_hidden_states=True)
    in_training = explain(model)(**batch)
    torch._dynamo.reset()
    model.eval()
    with torch.no_grad():
        model(**inputs)
        in_prediction = explain(model)(**inputs)
    reasons = [[reason.user_stack[-1] for reason in seen.break_reasons] for seen in (in_training, in_prediction)]
    assert (in_training.graph_break_count, in_prediction.graph_break_count) == BREAKS[case], reasons


@pytest.mark.compatibility(
    "Training",
    "`torch.compile(model)`",
    "works: the same loss, gradients and scores; the encoder is compiled, losses and rankings run as they are",
    since="0.1",
)
@pytest.mark.slow
@pytest.mark.parametrize("case", BREAKS)
def test_a_compiled_model_is_the_same(case):
    plain = make_model(case)
    model = make_model(case)
    batch, inputs = make_batch(model), inputs_of(model)
    # The default backend takes a minute to compile.
    compiled = torch.compile(model, backend="eager")
    for one, call in ((plain, plain), (model, compiled)):
        one.train()
        call(**batch).loss.backward()
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad.to_dense(), other.grad.to_dense(), msg=name)
    model.eval(), plain.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, plain(**inputs).logits)
    with pytest.raises(ValueError, match="`labels` holds the id"):
        compiled(**batch | {"labels": batch["labels"] + 1000})


@pytest.mark.slow
def test_the_default_backend_trains_and_predicts():
    plain, model = make_model("glocal_xml"), make_model("glocal_xml")
    batch, inputs = make_batch(model), inputs_of(model)
    compiled = torch.compile(model)
    expected = plain.train()(**batch).loss
    model.train()
    loss = compiled(**batch).loss
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    loss.backward()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, plain.eval()(**inputs).logits, rtol=1e-4, atol=1e-4)
