"""Every recipe of a table is reproduced, on tiny data in a public format and with tiny encoders under real names."""

import json
import re

import pytest
from tiny_tables import write_sets

from glocal_xml.analysis.studies import find_study, study_points
from glocal_xml.cli.reproduce import main
from glocal_xml.reproduce.table_recipe import ENSEMBLE, read_table, recipe_names

# Fewer steps and no checkpoints; all else is as in the recipe. AttentionXML holds out hundreds of texts.
QUICK = ["--max_steps", "2", "--save_strategy", "no", "--use_cpu", "--validation_size", "4"]


@pytest.fixture(scope="module")
def workplaces(papers_encoders):
    """Folders in which commands find encoders and data where recipes look for them: twelve layers, and two."""
    folders = {layers: papers_encoders(layers) for layers in (2, 12)}
    for folder in folders.values():
        write_sets(folder)
    return folders


@pytest.mark.parametrize("name", recipe_names())
def test_every_table_is_reproduced(name, workplaces, monkeypatch, capsys):
    recipe = read_table(name)
    # Studies have a point for each layer.
    workplace = workplaces[12 if recipe.study is None else 2]
    monkeypatch.chdir(workplace)
    rows = main([name, *QUICK])
    output = workplace / "outputs" / "reproduce" / name
    if recipe.study is None:
        assert {row.run for row in rows} == {*recipe.members, *([ENSEMBLE] if recipe.ensemble else [])}
        for member in recipe.members:
            results = json.loads((output / member / "results.json").read_text())
            assert results["settings"]["model"]["model_config"] == recipe.settings(member)["model_config"]
            assert "blend" not in results and set(results["test"]).isdisjoint({"lexical", "memory"})
    else:
        study = find_study(recipe.study, recipe.shared["model_type"])
        assert {row.run for row in rows} >= {point.name for point in study_points(study, 2)}
        assert (output / recipe.study / "summary.md").is_file()
    numbers = [row for row in rows if row.metric.startswith("precision@")]
    # Points of an encoder of two layers are not those of twelve, of which numbers are published.
    assert all(0 <= row.measured <= 100 for row in numbers if recipe.study is None or row.published is None)
    shown, page = capsys.readouterr().out, (output / "comparison.md").read_text()
    for row in rows:
        line = r"\| " + r" +\| ".join(map(re.escape, row.cells())) + r" *\|"
        assert re.search(line, page) and re.search(line, shown)
    assert f"{recipe.data.train_texts:,} in the paper" in page and page.count("sha256") >= 2
    assert f"- not the settings of the recipe: {' '.join(QUICK)}\n" in page


@pytest.mark.parametrize("name", recipe_names())
def test_published_numbers_are_of_runs_that_there_are(name):
    recipe = read_table(name)
    if recipe.study is not None:
        study = find_study(recipe.study, recipe.shared["model_type"])
        assert {entry.run for entry in recipe.published} <= {point.name for point in study_points(study, 12)}
    for entry in recipe.published:
        precisions = [value for metric, value in entry.metrics.items() if metric.startswith("precision@")]
        # As of every ranking of texts with several labels.
        assert precisions == sorted(precisions, reverse=True)
        assert all(0 < value < 100 for value in entry.metrics.values())
