"""What APLC-XLNet has beyond the contract of every family."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from tiny_encoders import ENCODER_CONFIGS
from transformers import AutoModel

from glocal_xml.modeling import APLCXLNet, APLCXLNetConfig

NUM_LABELS = 20
COUNTS = list(range(NUM_LABELS))


def make(counted=True, **fields):
    fields = {"num_labels": NUM_LABELS, "top_k": 3, "summary_size": 32, **fields}
    model = APLCXLNet(APLCXLNetConfig(encoder=ENCODER_CONFIGS["xlnet"](), **fields)).eval()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_()
    if counted:
        model.set_label_counts(COUNTS)
    return model


def vectors(model, *inputs):
    """What the clusters read of each text."""
    return model(*inputs, output_scores=True).scores.branches["clusters"].hidden


def test_defaults_are_the_papers():
    config = APLCXLNetConfig(num_labels=3956)
    assert config.encoder.model_type == "xlnet"
    assert (config.cluster_proportions, config.cluster_decay, config.summary_dropout) == ([0.5, 0.5], 2, 0.1)
    # d_h of table 2 is the size of XLNet-Base for label spaces of thousands.
    assert APLCXLNetConfig(encoder=ENCODER_CONFIGS["xlnet"]()).cluster_input_size == 16


@pytest.mark.parametrize("side", ["left", "right"])
def test_summary_of_the_last_attended_token(side):
    model = make()
    text = torch.tensor([[9, 8, 7, 6]])
    padding = torch.tensor([[5, 5]])
    parts = [padding, text] if side == "left" else [text, padding]
    mask = torch.cat([torch.full_like(part, int(part is text)) for part in parts], dim=1)
    found = vectors(model, torch.cat(parts, dim=1), mask)
    last = model.encoder(text, use_mems=False).last_hidden_state[:, -1]
    torch.testing.assert_close(found, torch.tanh(model.summary(last)))


def test_learning_rates_go_by_three_modules():
    assert {name.split(".")[0] for name, _ in make().named_parameters()} == {"encoder", "summary", "head"}


def test_dropout_stands_between_summary_and_clusters():
    model = make(summary_dropout=0.5).train()
    assert (vectors(model, torch.tensor([[9, 8, 7]])) == 0).any()
    model.eval()
    assert (vectors(model, torch.tensor([[9, 8, 7]])) != 0).all()


def test_prediction_and_evaluation_skip_tails():
    model = make(summary_dropout=0.0)
    inputs = {"input_ids": torch.tensor([[9, 8, 7], [6, 7, 8]]), "labels": torch.tensor([[19, 18], [19, -100]])}
    with torch.no_grad():
        # No text can have a label of the tail: its root is far below whatever the head says.
        hidden = vectors(model, inputs["input_ids"])
        model.head.roots.weight.copy_((torch.linalg.pinv(hidden) @ torch.full((2, 1), -100.0)).T)
        expected = model(**inputs, output_logits=True)
        calls = []
        model.head.tails[0].register_forward_hook(lambda *call: calls.append(call))
        best = model.predict_top_k(inputs["input_ids"])
        output = model(**inputs, output_logits=False)
    assert calls == []
    assert torch.equal(best.top_k_ids, expected.top_k_ids) and torch.equal(output.top_k_ids, expected.top_k_ids)
    torch.testing.assert_close(output.top_k_scores, expected.top_k_scores)
    torch.testing.assert_close(output.loss, expected.loss)
    assert output.loss_terms.keys() == {"clusters"}
    assert output.logits is None


def test_a_new_model_must_be_told_the_counts(tmp_path):
    inputs = {"input_ids": torch.tensor([[9, 8, 7]]), "labels": torch.tensor([[3]])}
    model = make(counted=False)
    for use in (model, model.train(), lambda **inputs: model.predict_top_k(inputs["input_ids"])):
        with pytest.raises(ValueError, match=r"set_label_counts\(label_space.counts\)"):
            use(**inputs)
    model.set_label_counts(COUNTS)
    model.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path)(**inputs).loss.isfinite()
    # In another label space the clusters are unknown again, not what happened to be in memory.
    other = AutoModel.from_pretrained(tmp_path, num_labels=30, ignore_mismatched_sizes=True)
    with pytest.raises(ValueError, match="set_label_counts"):
        other(**inputs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cluster_proportions": [0.5, 0.6]}, "sum to 1"),
        ({"cluster_proportions": "halves"}, "cluster_proportions"),
        ({"cluster_proportions": [0.999, 0.001]}, "at least one label"),
        ({"cluster_decay": 0}, "at least 1"),
        ({"cluster_decay": 99}, "no width"),
        ({"summary_size": 0}, "summary_size"),
        ({"summary_dropout": 1.0}, "summary_dropout"),
    ],
)
def test_bad_configuration_is_refused(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        APLCXLNetConfig(encoder=ENCODER_CONFIGS["xlnet"](), **{"num_labels": NUM_LABELS, **fields})


def test_a_checkpoint_of_other_clusters_is_refused(tmp_path):
    make().save_pretrained(tmp_path)
    for proportions in ([0.3, 0.7], [0.2, 0.3, 0.5]):
        other = AutoModel.from_pretrained(tmp_path, cluster_proportions=proportions, ignore_mismatched_sizes=True)
        with pytest.raises(ValueError, match="set_label_counts"):
            other(torch.tensor([[7, 8]]))
        other.set_label_counts(COUNTS)
        assert other(torch.tensor([[7, 8]])).logits.isfinite().all()
