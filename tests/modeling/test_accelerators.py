"""What makes a step slow or wrong on an accelerator, counted and tried on the CPU."""

import pytest
import torch
from operation_counter import OperationCounter
from other_device import OtherTensor, other_device, to_other_device
from test_families import CASES, NUM_LABELS, make_batch, tell_about_labels
from tiny_encoders import ENCODER_CONFIGS

from glocal_xml.modeling import FAMILIES, AttentionHead, EvidenceHead, LinearHead
from glocal_xml.modeling.fused_loss import ACCELERATOR_CHUNK_BYTES

HEADS = {
    "linear": lambda labels: LinearHead(8, labels, ACCELERATOR_CHUNK_BYTES, bias=True),
    "attention": lambda labels: AttentionHead(8, labels, ACCELERATOR_CHUNK_BYTES, (6, 4), bias=True),
    "evidence": lambda labels: EvidenceHead(8, labels, ACCELERATOR_CHUNK_BYTES, 6, 4, bias=True),
}


def make_model(case, **fields):
    torch.manual_seed(0)
    config_class, own = CASES[case]
    config = config_class(
        encoder=ENCODER_CONFIGS["bert"](),
        **{"num_labels": NUM_LABELS, "top_k": 5, "label_chunk_bytes": ACCELERATOR_CHUNK_BYTES, **own, **fields},
    )
    model = FAMILIES[config_class](config)
    tell_about_labels(model)
    model.start_epoch(99)
    return model


def counted(task):
    counter = OperationCounter()
    with counter:
        task()
    return counter


@pytest.mark.parametrize("head", HEADS)
def test_launches_of_a_head_do_not_grow_with_the_texts(head):
    """As long as the scores of a chunk of labels for all texts fit into its memory."""
    head, launches = HEADS[head](700), []
    for texts in (2, 16):
        states, mask = torch.randn(texts, 5, 8), torch.ones(texts, 5, dtype=torch.bool)
        inputs = (states[:, 0],) if isinstance(head, LinearHead) else (states, mask)
        labels = torch.randint(0, 700, (texts, 3))

        def step(inputs=inputs, labels=labels):
            head(*inputs).loss(labels).backward()

        step()
        head.zero_grad()
        counter = counted(step)
        launches.append(counter.launches)
        assert counter.synchronisations == 0
    assert launches[0] == launches[1] < 120


@pytest.mark.parametrize("case", sorted(CASES))
def test_few_values_are_read_back(case):
    """Once to check a batch, and once where a family decides by values what it computes."""
    model = make_model(case)
    batch = make_batch(model)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    # The first step finds out what stays as it is.
    model.train()(**batch)
    model.predict_top_k(**inputs)
    # Transformers' BERT looks for padding by itself.
    encoders = [model.encoder, *(getattr(model, "level_encoders", None) or ())]
    waits = sum(counted(lambda e=encoder: e(**inputs)).synchronisations for encoder in encoders)
    # Static levels have an encoder each, and check the batch for each.
    waits += len(encoders) - 1
    assert counted(lambda: model.train()(**batch).loss.backward()).synchronisations <= 2 + waits
    limit = 8 if getattr(model, "label_tree", None) else 2
    assert counted(lambda: model.predict_top_k(**inputs)).synchronisations <= limit + waits


@pytest.mark.parametrize("case", sorted(CASES))
def test_no_tensor_stays_on_the_cpu(case):
    expected, batch = make_model(case), None
    batch = make_batch(expected)
    model = to_other_device(make_model(case))
    other = {name: OtherTensor(value) for name, value in batch.items()}
    inputs = {name: other[name] for name in ("input_ids", "attention_mask")}
    own = {name: batch[name] for name in inputs}
    with other_device():
        output = model.train()(**other)
        output.loss.backward()
        best = model.predict_top_k(**inputs)
        whole = model.eval()(**inputs, output_logits=True)
        some = model.predict_top_k(**inputs, candidate_ids=[3, 1, 8], top_k=2)
        scores = model.score_labels(torch.tensor([2, 4]), **inputs)
    assert isinstance(output.loss, OtherTensor)
    torch.testing.assert_close(output.loss.inner, expected.train()(**batch).loss)
    assert torch.equal(best.top_k_ids.inner, expected.predict_top_k(**own).top_k_ids)
    with torch.no_grad():
        torch.testing.assert_close(whole.logits.inner.detach(), expected.eval()(**own, output_logits=True).logits)
    twin = expected.predict_top_k(**own, candidate_ids=[3, 1, 8], top_k=2)
    assert torch.equal(some.top_k_ids.inner, twin.top_k_ids)
    torch.testing.assert_close(scores["final"].inner, expected.score_labels([2, 4], **own)["final"])


def test_a_tensor_of_the_cpu_is_noticed():
    with other_device(), pytest.raises(RuntimeError, match="both devices"):
        OtherTensor(torch.ones(3)) + torch.ones(3)
