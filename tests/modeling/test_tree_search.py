"""Label trees, candidates and models with a tree against the plain way."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_candidates import children_of, leads_to, make_tree, plain_candidate_loss, plain_candidates
from tiny_encoders import ENCODER_CONFIGS

from glocal_xml.modeling import (
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    GlocalXMLWithLabelTree,
    MEXMLConfig,
    MEXMLForMultiLabel,
    MEXMLWithLabelTree,
)
from glocal_xml.modeling.label_tree import Candidates, CandidateTree, best_nodes, search

INPUT_IDS = torch.tensor([[7, 8, 9, 10], [9, 8, 7, 6], [11, 12, 13, 14]])
LABELS = torch.tensor([[3, 17, 20, -100], [0, 1, 2, 22], [-100, -100, -100, -100]])
SCORINGS = ["mlp", "evidence"]


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


def padded(rows):
    """Candidates from lists of nodes, with the nodes themselves as their paths."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + row[:1] * (longest - len(row)) for row in rows])
    return Candidates(ids, torch.tensor([[i < len(row) for i in range(longest)] for row in rows]), ids.double())


def chosen_of(candidates, text):
    return candidates.ids[text][candidates.mask[text]].tolist()


def assert_padding_repeats_the_first(candidates):
    """So that no row of a label table is touched but those of candidates."""
    assert candidates.mask[:, 0].all()
    assert torch.equal(candidates.ids, torch.where(candidates.mask, candidates.ids, candidates.ids[:, :1]))


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
    some_nodes = st.lists(st.integers(0, tree.level_sizes[level] - 1), min_size=1, max_size=4, unique=True)
    rows = [data.draw(some_nodes) for _ in range(3)]
    nodes = padded(rows)
    below = tree.below(level, nodes)
    for text, row in enumerate(rows):
        expected = [child for node in row for child in children_of(tree, level, node)]
        assert chosen_of(below, text) == expected
        parents = [float(node) for node in row for _ in children_of(tree, level, node)]
        assert below.paths[text][below.mask[text]].tolist() == parents
        assert len(set(expected)) == len(expected), "no candidate twice"
    assert_padding_repeats_the_first(below)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 12), st.data())
def test_best_nodes_keeps_what_is_forced(number, width, data):
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    rows = [torch.randperm(50, generator=random)[: data.draw(st.integers(1, width))].tolist() for _ in range(3)]
    nodes = padded(rows)
    paths = torch.randn(nodes.ids.shape, generator=random)
    forced = torch.tensor([[data.draw(st.booleans()) for _ in row] for row in nodes.ids]) & nodes.mask
    most = max(number, *forced.sum(dim=1).tolist())
    best = best_nodes(nodes, paths, number, most, forced)
    assert best.ids.shape[1] <= most
    assert_padding_repeats_the_first(best)
    for text, row in enumerate(rows):
        way = dict(zip(row, paths[text].tolist(), strict=False))
        wanted = [node for node, is_forced in zip(row, forced[text].tolist(), strict=False) if is_forced]
        others = sorted(set(row) - set(wanted), key=lambda node, way=way: -way[node])
        expected = set(wanted) | set(others[: max(0, number - len(wanted))])
        found = chosen_of(best, text)
        assert set(found) == expected and len(found) == len(expected)
        assert set(found[: len(wanted)]) == set(wanted), "forced ones first"
        assert best.paths[text][best.mask[text]].tolist() == [way[node] for node in found]
    # Without any, the best are there in their order.
    for text, row in enumerate(rows):
        way = dict(zip(row, paths[text].tolist(), strict=False))
        alone = best_nodes(nodes, paths, number, number)
        assert chosen_of(alone, text) == sorted(row, key=lambda node, way=way: -way[node])[:number]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_candidates_among_labels_and_their_loss(data):
    """The mean over the candidates of a text, then over texts; padding counts nowhere, on either side."""
    rows = [data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)) for _ in range(3)]
    wanted = data.draw(padded_ids(10, 3))
    candidates, losses = padded(rows), []
    logits = torch.randn(candidates.ids.shape, dtype=torch.float64, requires_grad=True)
    is_true = candidates.are_among(wanted)
    for text, row in enumerate(rows):
        expected = [node in wanted[text].tolist() for node in row]
        assert is_true[text].tolist() == expected + [False] * (is_true.shape[1] - len(row))
        target = torch.tensor(expected).double()
        losses.append(torch.nn.functional.binary_cross_entropy_with_logits(logits[text, : len(row)], target))
    loss = candidates.cross_entropy(logits, is_true)
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    (gradient,) = torch.autograd.grad(loss, logits)
    assert (gradient[~candidates.mask] == 0).all()


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


def scores_of(model):
    return model(INPUT_IDS, output_scores=True).scores


@pytest.mark.parametrize(
    ("model_class", "config_class", "tree_class"),
    [
        (GlocalXMLForMultiLabel, GlocalXMLConfig, GlocalXMLWithLabelTree),
        (MEXMLForMultiLabel, MEXMLConfig, MEXMLWithLabelTree),
    ],
)
def test_a_tree_in_the_configuration_makes_the_class_with_a_tree(model_class, config_class, tree_class):
    assert type(make(model_class, config_class)) is tree_class
    assert type(make(tree_class, config_class)) is tree_class
    config = config_class(encoder=ENCODER_CONFIGS["bert"](), num_labels=23)
    plain = model_class(config)
    assert type(plain) is model_class
    assert all(type(head.label_embeddings).__name__ == "LabelTable" for head in plain.branch_heads().values())


@pytest.mark.parametrize("levels", [[8], [3, 8], [2, 5, 11]])
@pytest.mark.parametrize(
    ("branches", "scoring"),
    [("both", "mlp"), ("both", "evidence"), ("global", "mlp"), ("local", "mlp"), ("local", "evidence")],
)
def test_loss_and_gradients_equal_the_plain_form(levels, branches, scoring):
    model = make(tree_levels=levels, branches=branches, attention_scoring=scoring).train()
    parameters = dict(model.named_parameters())
    loss = model(INPUT_IDS, labels=LABELS).loss
    loss.backward()
    ours = {name: parameter.grad for name, parameter in parameters.items()}
    # All tables but that of the first level, of which every node is scored.
    tables = [name for name in parameters if "label_embeddings" in name or "label_outputs" in name]
    tables = [name for name in tables if not name.startswith("level_classifiers.0.")]
    assert len(tables) >= 2 and all(ours[name].is_sparse for name in tables)

    scores = scores_of(model)
    labels = [[i for i in row if i >= 0] for row in LABELS.tolist()]

    def of_labels(text, candidates, is_label):
        return sum(
            torch.nn.functional.binary_cross_entropy_with_logits(own.all()[text, candidates], is_label)
            for own in scores.own.values()
        )

    expected = plain_candidate_loss(model, scores, labels, of_labels)
    torch.testing.assert_close(loss, expected)
    twins = torch.autograd.grad(expected, list(parameters.values()), allow_unused=True)
    for name, twin in zip(parameters, twins, strict=True):
        gradient = ours[name]
        if gradient is None or twin is None:
            assert gradient is None and twin is None, name
            continue
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        torch.testing.assert_close(gradient, twin, rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("scoring", SCORINGS)
def test_only_rows_in_play_have_gradients(scoring):
    model = make(tree_levels=[8], training_beam=2, attention_scoring=scoring).train()
    # A label of each of three clusters, though only two are asked for: none is dropped.
    labels = torch.tensor([[children_of(model.label_tree, 0, cluster)[1] for cluster in (0, 3, 5)]])
    model(INPUT_IDS[:1], labels=labels).loss.backward()
    expected = sorted(label for cluster in (0, 3, 5) for label in children_of(model.label_tree, 0, cluster))
    tables = [model.global_head.label_embeddings, model.local_head.label_embeddings]
    weights = [*(table.weight for table in tables), *(table.bias_table.weight for table in tables)]
    if scoring == "evidence":
        weights.append(model.local_head.label_outputs.weight)
    for weight in weights:
        assert weight.grad.coalesce().indices()[0].tolist() == expected


def test_negatives_follow_the_clusters_that_score_highest_now():
    model = make(tree_levels=[8], training_beam=3).train()

    def candidates_now():
        terms, candidates = search(model.label_tree, scores_of(model).levels, 3, LABELS)
        assert terms.keys() == {"clusters"}
        return candidates

    before = candidates_now()
    with torch.no_grad():
        model.level_classifiers[0].label_embeddings.weight.neg_()
        model.level_classifiers[0].label_embeddings.bias.neg_()
    after = candidates_now()
    assert before.are_among(LABELS).sum() == after.are_among(LABELS).sum() == 7
    assert set(chosen_of(before, 2)).isdisjoint(chosen_of(after, 2))


def test_levels_that_are_not_trained():
    """A level before those has no loss but is searched, and the search ends before a level that comes later."""
    model = make(tree_levels=[2, 5, 11])
    levels = scores_of(model).levels
    assert list(levels) == ["level 1", "level 2", "clusters"]
    every, _ = search(model.label_tree, levels, 2, LABELS)
    assert list(every) == list(levels)
    for trained, names in {
        range(0, 1): ["level 1"],
        range(1, 2): ["level 2"],
        range(0, 3): list(levels),
        range(2, 4): ["clusters"],
        range(3, 4): [],
    }.items():
        terms, candidates = search(model.label_tree, levels, 2, LABELS, trained)
        assert list(terms) == names
        torch.testing.assert_close(terms, {name: every[name] for name in names})
        if trained.stop < 3:
            wanted = model.label_tree.true_nodes(LABELS)[trained.stop - 1]
            assert candidates.are_among(wanted).sum() == (wanted >= 0).sum()
            assert candidates.ids.max() < model.config.tree_levels[trained.stop - 1]
        else:
            assert candidates.are_among(LABELS).sum() == 7
    assert search(model.label_tree, levels, 2)[0] == {}, "no loss without labels"


@pytest.mark.parametrize("levels", [[8], [3, 8]])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_prediction_ranks_the_labels_of_the_beam(levels, beam, scoring):
    model = make(tree_levels=levels, beam=beam, attention_scoring=scoring).eval()
    output = model.predict_top_k(INPUT_IDS, top_k=2)
    with torch.no_grad():
        probabilities = model(INPUT_IDS, output_logits=True).logits.sigmoid()
        branches = model.score_labels(torch.arange(23), INPUT_IDS)
        for text, (_, candidates, _) in enumerate(plain_candidates(model, scores_of(model), beam=beam)):

            def best_of(matrix, text=text, candidates=candidates):
                return sorted(candidates, key=lambda label: (-matrix[text, label].item(), label))[:2]

            best = best_of(probabilities)
            assert output.top_k_ids[text].tolist() == best
            torch.testing.assert_close(output.top_k_scores[text].double(), probabilities[text, best])
            for name, ids in zip(model.branch_names, output.branch_top_k_ids[text].tolist(), strict=True):
                assert ids == best_of(branches[name])


@pytest.mark.parametrize("levels", [[8], [3, 8], [2, 5, 11]])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_the_probability_of_a_label_is_the_product_of_those_on_its_way(levels, scoring):
    model = make(tree_levels=levels, attention_scoring=scoring).eval()
    with torch.no_grad():
        scores = scores_of(model)
        nodes = [level.all().sigmoid() for level in scores.levels.values()]
        way = torch.ones(3, 23, dtype=torch.float64)
        for level, probabilities in enumerate(nodes):
            for node in range(levels[level]):
                below = [label for label in range(23) if leads_to(model.label_tree, level, node, [label])]
                way[:, below] *= probabilities[:, node : node + 1]
        own = {name: branch.all().sigmoid() for name, branch in scores.own.items()}
        torch.testing.assert_close(scores.all().sigmoid(), way * sum(own.values()) / 2)
        for name, branch in scores.branches.items():
            expected = way * own[name]
            torch.testing.assert_close(branch.all().sigmoid(), expected)
            torch.testing.assert_close(branch.run(5, 12).sigmoid(), expected[:, 5:12])
            chosen = torch.randint(0, 23, (3, 6))
            torch.testing.assert_close(branch.chosen(chosen[0]).sigmoid(), expected[:, chosen[0]])
            torch.testing.assert_close(branch.chosen(chosen).sigmoid(), expected.gather(1, chosen))


def test_a_beam_too_narrow_for_top_k_is_widened():
    model = make(tree_levels=[8], beam=1).eval()
    assert model.predict_top_k(INPUT_IDS, top_k=10).top_k_ids.shape == (3, 10)
    everything = model.predict_top_k(INPUT_IDS, top_k=23).top_k_ids
    assert torch.equal(everything.sort(dim=1).values, torch.arange(23).expand(3, -1))


@pytest.mark.parametrize("scoring", SCORINGS)
def test_label_bias_starts_at_the_log_odds_of_each_label(scoring):
    model = make(tree_levels=[3, 8], attention_scoring=scoring).eval()
    with torch.no_grad():
        for head in (*model.branch_heads().values(), *model.level_heads().values()):
            head.label_embeddings.weight.zero_()
        silent = model.local_head.label_outputs if scoring == "evidence" else model.local_head.mlp_output
        for parameter in silent.parameters():
            parameter.zero_()
    odds = torch.linspace(-9, 2, 23)
    model.start_label_bias(odds)
    logits = model(INPUT_IDS, output_logits=True).logits
    torch.testing.assert_close(logits, odds.double().expand(3, -1), rtol=1e-5, atol=1e-5)


def test_the_weights_of_another_tree_bring_it_along():
    trees = []
    for starts in ([0, 3, 6], [0, 1, 6]):
        trees.append(CandidateTree(6, [2]))
        trees[-1].set_tree([torch.tensor(starts)], torch.arange(6))
    trees[0].load_state_dict(trees[1].state_dict())
    trees[0].check()
    assert trees[0].family_sizes == trees[1].family_sizes == [(1, 5)]


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
