"""The tables of studies: which models they train."""

import pytest

from glocal_xml.analysis.run_study import plan_study, rates_of_points, real_changes, run_name
from glocal_xml.analysis.studies import STUDIES, Point, find_study, study_points
from glocal_xml.modeling import FAMILIES
from glocal_xml.runs.model import encoder_config
from glocal_xml.training import ModelArguments, parse_arguments


def points(name, family, depth, layers=None):
    return study_points(find_study(name, family), depth, layers)


def test_layers_from_the_embeddings_to_the_last():
    for depth in (6, 12):
        sweep = points("layers", "glocal_xml", depth)
        assert [(point.x, point.changes["local_layer"]) for point in sweep] == [(m, m) for m in range(depth + 1)]
    assert [point.x for point in points("layers", "glocal_xml", 6, [6, 0, 1, 1])] == [0, 1, 6]


def test_second_experts_of_both_kinds():
    sweep = points("experts", "me_xml", 6)
    assert [point.changes["experts"] for point in sweep if point.line == "A-m"] == [
        [f"A-{m}", "D-6"] for m in range(1, 7)
    ]
    # Two equal experts are no pair.
    assert [point.changes["experts"] for point in sweep if point.line == "D-m"] == [
        [f"D-{m}", "D-6"] for m in range(1, 6)
    ]


@pytest.mark.parametrize(("depth", "middle"), [(12, 6), (6, 3), (3, 2)])
def test_table_4_follows_the_depth(depth, middle):
    rows = points("ablations", "me_xml", depth)
    assert len(rows) == 11
    experts = [point.changes["experts"] for point in rows]
    assert experts[0] == [f"D-{depth}"] and experts[3] == [f"D-{depth}+1"]
    assert experts[4] == experts[5] == experts[6] == ["A-1", f"D-{depth}"]
    assert experts[-2:] == [["A-1", f"A-{middle}", f"D-{depth}"], ["A-1", f"D-{middle}", f"D-{depth}"]]
    losses = [(point.changes["training_loss"], point.changes["diversity_weight"]) for point in rows[4:7]]
    assert losses == [("collaborative", 0.0), ("individual", 0.0), ("individual", 0.01)]


def test_a_shallow_encoder_repeats_no_expert():
    for depth in (1, 2):
        for point in points("ablations", "me_xml", depth):
            assert len(set(point.changes["experts"])) == len(point.changes["experts"])


def test_partitions_are_whole():
    for name in ("clusters", "partitions"):
        for point in points(name, "aplc_xlnet", 3):
            assert sum(point.changes["cluster_proportions"]) == pytest.approx(1.0, abs=1e-12)
    assert [point.x for point in points("clusters", "aplc_xlnet", 3)] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: f"{study.name}-{study.model_type}")
def test_points_differ(study):
    sweep = study_points(study, 12)
    assert len({point.name for point in sweep}) == len({run_name(point.changes) for point in sweep}) == len(sweep)


def test_a_study_that_is_not_there_or_not_of_this_family():
    with pytest.raises(ValueError, match="no study 'layer'; the studies are layers, experts, clusters"):
        find_study("layer", "glocal_xml")
    with pytest.raises(ValueError, match=r"is about glocal_xml.*`model_type` is me_xml.*\(experts, ablations\)"):
        find_study("layers", "me_xml")
    with pytest.raises(ValueError, match="leave `--layers` out"):
        points("clusters", "aplc_xlnet", 3, [1])


def test_runs_are_named_by_what_differs_from_the_recipe():
    recipe = ModelArguments(encoder="x", model_config={"use_pooler": True})
    both = Point("", None, {"branches": "both", "local_layer": 1, "use_pooler": False})
    assert run_name(real_changes(both, recipe)) == "local_layer=1--use_pooler=False"
    assert run_name(real_changes(Point("", 1, {"branches": "both"}), recipe)) == "as_recipe"
    names = {"experts": ["A-1", "D-6"], "training_loss": "collaborative", "diversity_weight": 0.0}
    assert run_name(names) == "experts=A-1,D-6--training_loss=collaborative--diversity_weight=0"
    assert run_name({"cluster_proportions": [1 / 3] * 3}) == "cluster_proportions=0.333333,0.333333,0.333333"


def test_each_point_takes_the_rates_it_has_use_for():
    names = [["encoder.a", "global_head.b", "local_head.c"], ["encoder.a", "local_head.c"]]
    rates = {"encoder": 1e-4, "global_head": 1e-3, "local_head": 1e-2}
    assert rates_of_points(rates, names) == [rates, {"encoder": 1e-4, "local_head": 1e-2}]
    with pytest.raises(ValueError, match="'glob_head' decide no parameter of any model"):
        rates_of_points({"glob_head": 1.0}, names)
    with pytest.raises(ValueError, match="no regular expression"):
        rates_of_points({"(": 1.0}, names)


FAMILY_STUDIES = [study for study in STUDIES if study.model_type in {config.model_type for config in FAMILIES}]


@pytest.mark.parametrize("study", FAMILY_STUDIES, ids=lambda study: f"{study.name}-{study.model_type}")
def test_every_point_is_a_model_of_its_family(study, encoder_folder, tmp_path):
    recipe = ["--model_type", study.model_type, "--encoder", encoder_folder, "--train_file", "x", "--use_cpu", "true"]
    recipe += ["--test_file", "y"]
    flags = [*recipe, "--num_train_epochs", "5", "--output_dir", str(tmp_path)]
    if study.model_type == "aplc_xlnet":
        # Six clusters need more width than the tiny encoder has.
        flags += ["--model_config", '{"summary_size": 64}']
    sweep = study_points(study, encoder_config(ModelArguments(encoder=encoder_folder)).num_hidden_layers)
    planned = plan_study(study.name, parse_arguments(flags), seeds=[1, 2])
    assert len({arguments[2].output_dir for _, arguments in planned}) == 2 * len(sweep)
    assert all(arguments[2].metrics_at == [1, 3, 5] for _, arguments in planned)


def test_a_diversity_loss_that_never_sets_in_is_refused(encoder_folder):
    flags = ["--model_type", "me_xml", "--encoder", encoder_folder, "--train_file", "x", "--use_cpu", "true"]
    flags += ["--test_file", "y"]
    late = ["--num_train_epochs", "2", "--model_config", '{"diversity_start_epoch": 2}']
    with pytest.raises(ValueError, match="epoch 2, .*never in 2 epochs: lower `diversity_start_epoch`"):
        plan_study("ablations", parse_arguments([*flags, *late]))
    early = ["--num_train_epochs", "2", "--model_config", '{"diversity_start_epoch": 1}']
    plan_study("ablations", parse_arguments([*flags, *early]))
