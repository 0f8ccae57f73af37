"""A head trained on embeddings that are made once."""

import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS

from glocal_xml import GlocalXMLConfig, GlocalXMLForMultiLabel
from glocal_xml.training.frozen_encoder import reads_one_embedding, train_on_embeddings

LABELS = 9


def make_model(**fields):
    torch.manual_seed(0)
    options = {"branches": "global", **fields}
    return GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=LABELS, **options))


def texts_and_labels(model, number=600):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (number, 6), generator=generator)
    return model.document_embeddings(ids), [sorted({i % LABELS, (i * 7) % LABELS}) for i in range(number)]


@pytest.mark.parametrize("fields", [{}, {"use_pooler": True}, {"use_pooler": True, "label_size": 8}], ids=str)
def test_texts_are_learned_and_the_encoder_stays(fields):
    model = make_model(**fields).eval()
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    embeddings, _ = texts_and_labels(model, 8)
    labels = [[i] for i in range(8)]
    for _ in range(60):
        facts = train_on_embeddings(model, embeddings, labels, show_progress=False)
    assert facts["epochs"] == 10 and facts["steps"] == 10 and len(facts["loss_curve"]) == 10
    documents = embeddings if model.pooler is None else model.pooler(embeddings)
    best = model.global_head(documents).top_k(1).ids[:, 0]
    assert best.tolist() == list(range(8))
    assert all(torch.equal(value, before[name]) for name, value in model.encoder.state_dict().items())


def test_the_length_of_embeddings_changes_nothing():
    """The rate follows it: a logit moves as far at each step."""
    losses = []
    for scale in (1.0, 25.0):
        model = make_model()
        with torch.no_grad():
            model.global_head.label_embeddings.weight.div_(scale)
        embeddings, labels = texts_and_labels(model)
        embeddings = scale * torch.nn.functional.normalize(embeddings, dim=1)
        losses.append([loss for _, loss in train_on_embeddings(model, embeddings, labels)["loss_curve"]])
    # But for the biases, whose rate is the same.
    assert losses[1] == pytest.approx(losses[0], rel=0.15) and losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("fields", [{}, {"use_pooler": True}, {"label_bias": False}], ids=str)
def test_what_all_texts_have_in_common_and_the_length_of_names_change_nothing(fields):
    scores = []
    for shift, factor in ((0.0, 1.0), (4.0, 9.0)):
        model = make_model(**fields)
        embeddings, labels = texts_and_labels(model, 90)
        center = embeddings[:60].mean(dim=0)
        names = center + factor * (embeddings[60:] - center)
        # Without a bias nothing can make up for a shift.
        shift *= model.config.label_bias
        first = model.global_head.label_embeddings if model.pooler is None else model.pooler
        if first.bias is not None:
            # Both start with the same scores.
            with torch.no_grad():
                first.bias -= shift * first.weight.sum(dim=1)
        train_on_embeddings(model, torch.cat([embeddings[:60], names]) + shift, labels, num_texts=60)
        documents = embeddings + shift
        scores.append(model.global_head(documents if model.pooler is None else model.pooler(documents)).all())
    if "label_bias" not in fields:
        torch.testing.assert_close(scores[1], scores[0], rtol=1e-2, atol=1e-2)
    assert all(one.isfinite().all() for one in scores)


def test_the_same_seed_gives_the_same_weights():
    weights = []
    for seed in (1, 1, 2):
        model = make_model()
        train_on_embeddings(model, *texts_and_labels(model), seed=seed, show_progress=False)
        weights.append(model.global_head.label_embeddings.weight)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_time_ends_it(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr("glocal_xml.training.frozen_encoder.time.monotonic", lambda: float(next(now)))
    model = make_model()
    # A second for each step, of which there are 30.
    facts = train_on_embeddings(model, *texts_and_labels(model), seconds=7.5)
    assert facts["steps"] == 7 and facts["epochs"] == pytest.approx(7 / 3, abs=0.001) and len(facts["loss_curve"]) == 2


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({}, True),
        ({"branches": "both"}, False),
        ({"document_layers": 2, "use_pooler": True}, False),
        ({"tree_levels": [2]}, False),
    ],
    ids=str,
)
def test_which_models_read_one_embedding(fields, reads):
    assert reads_one_embedding(make_model(**fields)) == reads
