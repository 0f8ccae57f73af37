"""Label trees, candidates and clustered models against the plain way."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_candidates import children_of, leads_to, make_tree, plain_candidate_loss, plain_candidates
from tiny_encoders import ENCODER_CONFIGS

from glocal_xml.modeling import GlocalXMLConfig, GlocalXMLForMultiLabel, MEXMLConfig, MEXMLForMultiLabel
from glocal_xml.modeling.label_candidates import Candidates, CandidateTree, best_nodes

INPUT_IDS = torch.tensor([[7, 8, 9, 10], [9, 8, 7, 6], [11, 12, 13, 14]])
LABELS = torch.tensor([[3, 17, 20, -100], [0, 1, 2, 22], [-100, -100, -100, -100]])


@st.composite
def trees(draw):
    num_labels = draw(st.integers(2, 40))
    sizes = sorted(draw(st.lists(st.integers(1, num_labels), min_size=1, max_size=3)))
    tree = CandidateTree(num_labels, sizes)
    tree.set_tree(*make_tree(num_labels, sizes, seed=draw(st.integers(0, 5))))
    return tree


@st.composite
def padded_ids(draw, size, texts):
    rows = [draw(st.lists(st.integers(0, size - 1), max_size=4, unique=True)) for _ in range(texts)]
    return torch.tensor([[*sorted(row), *[-100] * (4 - len(row))] for row in rows])


@settings(deadline=None, max_examples=60)
@given(trees(), st.data())
def test_the_way_up_and_down(tree, data):
    labels = data.draw(padded_ids(tree.num_labels, 3))
    levels = range(len(tree.level_sizes))
    for level, nodes in zip(levels, tree.true_nodes(labels), strict=True):
        for row, ids in zip(nodes.tolist(), labels.tolist(), strict=True):
            found = [node for node in row if node >= 0]
            wanted = [
                n for n in range(tree.level_sizes[level]) if leads_to(tree, level, n, [i for i in ids if i >= 0])
            ]
            assert sorted(found) == wanted, "each node that leads to a label, once"
    level = data.draw(st.sampled_from(levels))
    rows = [
        data.draw(st.lists(st.integers(0, tree.level_sizes[level] - 1), max_size=4, unique=True)) for _ in range(3)
    ]
    flat = torch.tensor([node for row in rows for node in row], dtype=torch.long)
    nodes = Candidates(flat, torch.tensor([len(row) for row in rows]), flat.double())
    below = tree.below(level, nodes)
    expected = [[child for node in row for child in children_of(tree, level, node)] for row in rows]
    assert below.ids.tolist() == [child for row in expected for child in row]
    assert below.counts.tolist() == [len(row) for row in expected]
    assert below.paths.tolist() == [node for row in rows for node in row for _ in children_of(tree, level, node)]
    assert all(len(set(row)) == len(row) for row in expected), "no candidate twice"


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 12), st.data())
def test_best_nodes_keeps_what_is_forced(number, width, data):
    widths = [data.draw(st.integers(1, width)) for _ in range(3)]
    paths = torch.randn(3, width, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    for row, real in zip(paths, widths, strict=True):
        row[real:] = -torch.inf
    forced = torch.tensor([[data.draw(st.booleans()) and i < real for i in range(width)] for real in widths])
    best = best_nodes(paths, number, forced)
    for row, ids, real in zip(range(3), best.ids.split(best.lengths), widths, strict=True):
        wanted = forced[row].nonzero().flatten().tolist()
        others = sorted(set(range(real)) - set(wanted), key=lambda i, r=row: -paths[r, i].item())
        expected = set(wanted) | set(others[: max(0, number - len(wanted))])
        assert set(ids.tolist()) == expected and len(ids) == len(expected)


def make(model_class=GlocalXMLForMultiLabel, config_class=GlocalXMLConfig, num_labels=23, **fields):
    torch.manual_seed(0)
    fields = {"mlp_size": 8, "tree_levels": [3, 8], "training_beam": 2, "label_bias": True, **fields}
    model = model_class(config_class(encoder=ENCODER_CONFIGS["bert"](), num_labels=num_labels, **fields))
    model.set_label_counts(torch.arange(num_labels) + 1)
    model.set_label_tree(*make_tree(num_labels, model.config.tree_levels))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("encoder."):
                parameter.normal_(std=0.5)
    return model.double()


@pytest.mark.parametrize("levels", [[8], [3, 8], [2, 5, 11]])
@pytest.mark.parametrize("branches", ["both", "global", "local"])
def test_loss_and_gradients_equal_the_plain_form(levels, branches):
    model = make(tree_levels=levels, branches=branches).train()
    parameters = dict(model.named_parameters())
    loss = model(INPUT_IDS, labels=LABELS).loss
    loss.backward()
    ours = {name: parameter.grad for name, parameter in parameters.items()}
    tables = [name for name in parameters if name.split(".")[0].endswith("head") and "label_embeddings" in name]
    assert tables and all(ours[name].is_sparse for name in tables)

    features = model.text_features(INPUT_IDS)
    labels = [[i for i in row if i >= 0] for row in LABELS.tolist()]

    def of_labels(text, candidates, is_label):
        return sum(
            torch.nn.functional.binary_cross_entropy_with_logits(
                head.logits(features[name], slice(0, 23))[text, candidates], is_label
            )
            for name, head in model.branch_heads().items()
        )

    expected = plain_candidate_loss(model, features, labels, of_labels)
    torch.testing.assert_close(loss, expected)
    twins = torch.autograd.grad(expected, list(parameters.values()), allow_unused=True)
    for name, twin in zip(parameters, twins, strict=True):
        gradient = ours[name]
        if gradient is None or twin is None:
            assert gradient is None and twin is None, name
            continue
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        torch.testing.assert_close(gradient, twin, rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_only_rows_in_play_have_gradients():
    model = make(tree_levels=[8], training_beam=2).train()
    # A label of each of three clusters, though only two are asked for: none is dropped.
    labels = torch.tensor([[children_of(model.label_tree, 0, cluster)[1] for cluster in (0, 3, 5)]])
    model(INPUT_IDS[:1], labels=labels).loss.backward()
    expected = sorted(label for cluster in (0, 3, 5) for label in children_of(model.label_tree, 0, cluster))
    for table in (model.global_head.label_embeddings, model.local_head.label_embeddings):
        assert table.weight.grad.coalesce().indices()[0].tolist() == expected
        assert table.bias.grad.coalesce().indices()[0].tolist() == expected


def test_negatives_follow_the_clusters_that_score_highest_now():
    model = make(tree_levels=[8], training_beam=3).train()
    features = model.text_features(INPUT_IDS)
    before = model.go_down(features, 3, LABELS)[1]
    with torch.no_grad():
        model.level_classifiers[0].label_embeddings.weight.neg_()
        model.level_classifiers[0].label_embeddings.bias.neg_()
    after = model.go_down(features, 3, LABELS)[1]
    assert before.are_among(LABELS).sum() == after.are_among(LABELS).sum() == 7
    assert set(before.ids[before.texts == 2].tolist()).isdisjoint(after.ids[after.texts == 2].tolist())


@pytest.mark.parametrize("levels", [[8], [3, 8]])
@pytest.mark.parametrize("beam", [1, 3])
def test_prediction_ranks_the_labels_of_the_beam(levels, beam):
    model = make(tree_levels=levels, beam=beam, branches="both").eval()
    output = model.predict_top_k(INPUT_IDS, top_k=2)
    with torch.no_grad():
        features = model.text_features(INPUT_IDS)
        probabilities = model(INPUT_IDS, output_logits=True).logits.sigmoid()
        for text, (_, candidates, _) in enumerate(plain_candidates(model, features, beam=beam)):
            best = sorted(candidates, key=lambda label, t=text: (-probabilities[t, label].item(), label))[:2]
            assert output.top_k_ids[text].tolist() == best
            torch.testing.assert_close(output.top_k_scores[text], probabilities[text, best])


def test_a_beam_too_narrow_for_top_k_is_widened():
    model = make(tree_levels=[8], beam=1).eval()
    assert model.predict_top_k(INPUT_IDS, top_k=10).top_k_ids.shape == (3, 10)
    everything = model.predict_top_k(INPUT_IDS, top_k=23).top_k_ids
    assert torch.equal(everything.sort(dim=1).values, torch.arange(23).expand(3, -1))


def test_label_bias_starts_at_the_log_odds_of_each_label():
    model = make(tree_levels=[3, 8]).eval()
    with torch.no_grad():
        for head in (*model.branch_heads().values(), *model.level_heads().values()):
            head.label_embeddings.weight.zero_()
        model.local_head.mlp_output.weight.zero_()
        model.local_head.mlp_output.bias.zero_()
    odds = torch.linspace(-9, 2, 23)
    model.start_label_bias(odds)
    logits = model(INPUT_IDS, output_logits=True).logits
    torch.testing.assert_close(logits, odds.double().expand(3, -1), rtol=1e-5, atol=1e-5)


def test_errors_say_what_to_do():
    with pytest.raises(StrictDataclassError, match="must grow from the top"):
        GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=10, tree_levels=[8, 4])
    with pytest.raises(StrictDataclassError, match="`beam` must be at least 1"):
        GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), beam=0)
    with pytest.raises(StrictDataclassError, match="without a label tree"):
        GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=99, tree_levels=[8], shortlist=20)
    model = GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=23, tree_levels=[8]))
    with pytest.raises(ValueError, match="no label tree yet"):
        model(INPUT_IDS)
    starts, order = make_tree(23, [4])
    with pytest.raises(ValueError, match=r"build it with `tree_levels=\[4\]`"):
        model.set_label_tree(starts, order)
    starts, order = make_tree(23, [8])
    with pytest.raises(ValueError, match="every label once"):
        model.set_label_tree(starts, torch.zeros(23))
    with pytest.raises(ValueError, match="runs of at least one"):
        model.set_label_tree([starts[0].flip(0)], order)
    with pytest.raises(ValueError, match="scores every label"):
        GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"]())).set_label_tree(starts, order)


def test_experts_differ_given_the_way_down():
    """The diversity loss compares what experts make of a label, without the clusters, which they share."""
    fields = {"diversity_weight": 1.0, "diversity_start_epoch": 0, "tree_levels": [8]}
    model = make(MEXMLForMultiLabel, MEXMLConfig, **fields).train()
    before = model(INPUT_IDS, labels=LABELS).loss_terms["diversity"]
    with torch.no_grad():
        model.level_classifiers[0].label_embeddings.bias.add_(1.0)
    assert before < 0
    torch.testing.assert_close(model(INPUT_IDS, labels=LABELS).loss_terms["diversity"], before)
