"""Cards: what a reader of the Hub sees, and what a machine reads there, are what the run measured."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id

from glocal_xml.cli import main as command
from glocal_xml.cli.train import main
from glocal_xml.hub import card_of_run, render_model_card
from glocal_xml.hub.model_card import card_name
from glocal_xml.hub.papers import FAMILY_PAPERS
from glocal_xml.hub.run_files import CARD_MARK, write_card
from glocal_xml.modeling import FAMILIES
from glocal_xml.runs.run_folder import clear_run_folder
from glocal_xml.training import parse_arguments

ROOT = Path(__file__).parents[2]
DEBTAGS = ROOT / "examples" / "recipes" / "debtags" / "glocal_xml.results.json"


@pytest.fixture(scope="module")
def run_folder(encoder_folder, text_file, tmp_path_factory):
    """What a tiny run leaves; its paths are absolute."""
    folder = tmp_path_factory.mktemp("outputs") / "tiny"
    main(
        [
            *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 8, "top_k": 4}', "--use_cpu", "true"),
            *("--encoder_options", '{"token": "hf_secret", "hidden_dropout_prob": 0.0}'),
            *("--train_file", text_file("train.jsonl", 40), "--test_file", text_file("test.jsonl", 8, first=40)),
            *("--validation_size", "8", "--metrics_at", "1", "2", "--num_train_epochs", "1"),
            *("--logging_steps", "1", "--output_dir", str(folder)),
        ]
    )
    return folder


@pytest.fixture
def debtags():
    return json.loads(DEBTAGS.read_text(encoding="utf-8"))


def code_blocks(card, language):
    return re.findall(rf"```{language}\n(.*?)```", card, flags=re.DOTALL)


def test_a_run_leaves_its_card(run_folder, encoder_folder, capsys):
    card = (run_folder / "README.md").read_text(encoding="utf-8")
    assert card == card_of_run(run_folder)[1]
    assert command(["card", str(run_folder)]) == 0
    assert capsys.readouterr().out == card
    results = json.loads((run_folder / "results.json").read_text(encoding="utf-8"))
    assert "- train: `train.jsonl` (32 texts)" in card and "- test: `test.jsonl` (8 texts)" in card
    assert "held out of the training texts at random (8 texts)" in card
    assert f"the model ranks {results['data']['labels']} labels" in card
    assert "chosen by `precision@2`" in card
    # Neither where the files lie on this machine, nor what opens the Hub.
    assert str(run_folder.parent) not in card and str(Path(encoder_folder).parent) not in card
    assert not re.search(r"[\s`'\"(]/\w", card)
    assert "hf_secret" not in card + json.dumps(results)
    # An encoder from a folder is nothing that the Hub could link to.
    assert ModelCard(card).data.base_model is None


def test_front_matter_reads_back_as_the_results(debtags):
    data = ModelCard(render_model_card(debtags, name="debtags")).data
    assert data.library_name == "transformers" and data.pipeline_tag == "text-classification"
    assert {"extreme-multi-label", "glocal_xml"} <= set(data.tags)
    assert data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert data.license is None and data.datasets is None
    final = debtags["test"]["both"]
    assert {result.metric_type: result.metric_value for result in data.eval_results} == {
        name: value for name, value in final.items() if re.match(r"(precision|psp|recall)@|ndcg@[35]", name)
    }
    (psp,) = (result for result in data.eval_results if result.metric_type == "psp@5")
    assert psp.metric_args == {"a": 0.55, "b": 1.5} and psp.metric_name == "PSP@5" and psp.dataset_split == "test"


def test_tables_hold_every_branch_and_band(debtags):
    card = render_model_card(debtags, name="debtags")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line[:1] == "|"]
    titles, bands = (next(row for row in rows if row[0].startswith(start)) for start in ("test texts", "training"))
    for branch, metrics in debtags["test"].items():
        shown = dict(zip(titles, next(row for row in rows if row[0] == branch), strict=True))
        for title, metric in {"P@1": "precision@1", "nDCG@5": "ndcg@5", "PSP@3": "psp@3", "R@5": "recall@5"}.items():
            assert shown[title] == f"{100 * metrics[metric]:.2f}"
        for limits, band in {"1-20": "_few", "21-100": "_medium", "101 or more": "_many", "all labels": ""}.items():
            shown = dict(zip(bands, next(row for row in rows if row[0] == limits), strict=True))
            expected = (metrics[f"macro_{name}@5{band}"] for name in ("precision", "recall", "f1"))
            assert shown[branch] == " / ".join(f"{100 * value:.2f}" for value in expected)
    assert "A = 0.55, B = 1.5" in card
    assert "better for global (49.44) alone than for both (49.28)" in card


def test_no_figure_beyond_the_results(debtags):
    """Without what older results lack, and without test texts, a card says less and invents nothing."""
    for name in ("hub_ids", "data"):
        debtags.pop(name)
    card = render_model_card(debtags, name="debtags")
    assert "24,212" not in card and "590" not in card
    assert ModelCard(card).data.base_model is None
    debtags.pop("test")
    card = render_model_card(debtags, name="debtags")
    assert ModelCard(card).data.eval_results is None
    assert "no test texts" in card and "neither validation nor test" in card and "explain" not in card


def test_one_branch(debtags):
    debtags["test"] = {name: debtags["test"][name] for name in ("global", "label frequency")}
    card = render_model_card(debtags, name="debtags")
    assert "has the global branch alone" in card and "explain" not in card and "Attention" not in card
    assert "alone than for" not in card


def test_the_code_of_the_card_works(run_folder, monkeypatch, capsys):
    """Both blocks in a row, from the folder; `tests/hub` tries them by id, and where the package is absent."""
    first, second = code_blocks((run_folder / "README.md").read_text(encoding="utf-8"), "python")
    monkeypatch.chdir(run_folder.parent)
    exec(first + second, {})
    lines = capsys.readouterr().out.strip().splitlines()
    assert all(re.fullmatch(r"[01]\.\d\d is \w+", line) for line in lines[:5])
    assert lines[5] == "The text to label" and lines[0].split(" ", 1)[1] in lines[6]


def test_training_is_told_as_far_as_it_is_known(run_folder, debtags):
    text = (run_folder / "README.md").read_text(encoding="utf-8").split("## Training\n\n")[1].split("\n\n")[0]
    results = json.loads((run_folder / "results.json").read_text(encoding="utf-8"))
    facts = results["training"]
    done, loss, best, hardware = text.splitlines()
    assert (
        done.startswith(f"- {facts['steps']} steps, 1 epoch in ") and f"{facts['texts_per_second']:.1f} texts" in done
    )
    assert loss.count("(") == len(facts["loss_curve"]) == facts["steps"]
    # Chosen by the heads alone, before there was a blend.
    value = facts["best"]["value"]
    assert facts["best"] == {"step": facts["steps"], "metric": "precision@2", "value": value}
    assert f"precision@2 {100 * value:.2f} on" in best and facts["hardware"] in hardware
    results["training"]["resumed_at_step"] = 1
    assert "1 epoch of which those after step 1, where the run was resumed, in " in render_model_card(
        results, name="x"
    )
    # Of a run that kept less, less.
    card = render_model_card(debtags, name="debtags")
    assert (
        "## Training\n\n- 2 epochs in 84 min, 9.6 texts a second, evaluations and checkpoints included\n\n##" in card
    )


def section(card, title):
    return card.split(f"## {title}\n\n")[1].split("\n## ")[0]


def table_below(text, start):
    """The rows of the table whose head begins so, as dictionaries."""
    lines = text[text.index(f"| {start} |") :].split("\n\n")[0].splitlines()
    titles, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(titles, row, strict=True)) for row in rows]


def test_experts_and_weights_are_told(run_folder):
    results = json.loads((run_folder / "results.json").read_text(encoding="utf-8"))
    card = card_of_run(run_folder)[1]
    text = section(card, "Experts and probabilities")
    assert "- lexical: a linear classifier per label" in text and "10.1145/3178876.3185998" in text
    assert "- memory: the training texts most similar" in text and "ML-KNN" in text
    assert "among them) of 40 texts, and embeddings of 40 texts; and their labels" in text
    assert "--leave_out_memory" in text and "- dense: the training texts most similar" in text
    weights = results["blend"]["weights"]
    (shown,) = table_below(text, "global")
    assert shown == {name: f"{weight:.3f}" for name, weight in weights.items()} and list(shown) == list(weights)
    # Eight texts are too few to fit it.
    assert "which were not fitted" in text and "were not fitted on held-out texts" in section(card, "Limits")
    assert "heads and the experts beside them (lexical, memory, dense) are weighed by a blend" in card
    assert "fitted again with these texts" in text
    judged = {row.pop("texts"): row for row in table_below(text, "texts")}
    for name, values in {"test": results["probabilities"]}.items():
        assert judged[name]["Brier"] == f"{values['brier']:.4f}"
        assert judged[name]["micro F1"] == f"{100 * values['f']:.2f}"
    assert len(judged) == 2 and "only the experts read the rest" in card
    assert {"blend", "global", "local", "lexical", "memory", "dense"} <= {
        row["test texts"] for row in table_below(card, "test texts")
    }
    assert (
        "@inproceedings{lexical," in card
        and "@misc{memory," in card
        and "@inproceedings{dense," in card
        and "@misc{glocal_xml," in card
    )


def test_another_blend_than_that_of_the_run_is_told(run_folder, tmp_path):
    folder = shutil.copytree(run_folder, tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = {**config["blend"]["weights"], "global": 0.125}
    config["blend"] |= {"weights": weights, "threshold": 0.3, "f": "macro", "texts": 1200}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    card = card_of_run(folder)[1]
    text = section(card, "Experts and probabilities")
    assert table_below(text, "global")[0]["global"] == "0.125" and "fitted on 1,200 held-out texts" in text
    assert "has the best macro F1 on these texts" in text and "Brier" not in text
    assert "The blend was fitted again after the run" in text
    assert "threshold (0.3, given by `threshold='calibrated'`) come from 1,200 texts" in card
    config["blend"] = None
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    card = card_of_run(folder)[1]
    assert "Probabilities were not calibrated" in card and "are weighed by a blend" not in card


@pytest.mark.parametrize("experts", [["lexical", "memory"], ["lexical"]])
def test_a_model_without_an_encoder_has_a_card(experts, text_file, tmp_path, monkeypatch, capsys):
    flags = [
        *("--encoder", "none", "--experts", *experts, "--validation_size", "60", "--use_cpu", "true"),
        *("--train_file", text_file("train.jsonl", 200), "--test_file", text_file("test.jsonl", 8, first=40)),
        *("--metrics_at", "1", "2", "--output_dir", str(tmp_path / "none")),
    ]
    results = main(flags)
    card = (tmp_path / "none" / "README.md").read_text(encoding="utf-8")
    assert card == card_of_run(tmp_path / "none")[1] and "A model without an encoder" in card
    assert f"rank {results['data']['labels']} labels" in card and ModelCard(card).data.base_model is None
    assert "nothing is trained by gradient descent" in section(card, "Training")
    text = section(card, "Experts and probabilities")
    assert ("- memory:" in text) == ("token counts" in text) == ("memory" in experts)
    assert "fitted on 60 held-out texts" in text and "validation, which they were fitted on" in text
    limits = section(card, "Limits")
    assert "last step" not in limits and "tokens of a text are read" not in limits and "checkpoint" not in limits
    (recipe,) = code_blocks(card, "yaml")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    model_args, data_args, args = parse_arguments([str(tmp_path / "recipe.yaml")])
    assert model_args.encoder == "none" and model_args.experts == experts and data_args.max_length is None
    (code,) = code_blocks(card, "python")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(code, {})
    assert len(capsys.readouterr().out.strip().splitlines()) == 5


def test_what_was_turned_off_is_in_the_recipe(debtags):
    debtags["settings"]["training"] |= {"blend": False, "refit_experts": False}
    (recipe,) = code_blocks(render_model_card(debtags, name="debtags"), "yaml")
    recipe = yaml.safe_load(recipe)
    assert recipe["blend"] is False and recipe["refit_experts"] is False and "streaming" not in recipe


def test_settings_are_a_recipe(debtags, tmp_path):
    (recipe,) = code_blocks(render_model_card(debtags, name="debtags"), "yaml")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    for arguments, group in zip(
        parse_arguments([str(tmp_path / "recipe.yaml")]), ("model", "data", "training"), strict=True
    ):
        for name, value in debtags["settings"][group].items():
            assert getattr(arguments, name) == value, name


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/me/secret/train.jsonl", "train.jsonl"),
        ("~/secret/train.jsonl", "train.jsonl"),
        (r"C:\secret\train.jsonl", "train.jsonl"),
        ("data/train.jsonl", "data/train.jsonl"),
    ],
)
def test_absolute_paths_are_cut(debtags, path, shown):
    debtags["settings"]["data"]["train_file"] = path
    card = render_model_card(debtags, name="debtags")
    assert f"- train: `{shown}`" in card and "secret" not in card
    assert yaml.safe_load(code_blocks(card, "yaml")[0])["train_file"] == shown


def test_a_dataset_of_the_hub_is_named(debtags):
    debtags["settings"]["data"] |= {"train_file": None, "test_file": None, "dataset_name": "org/tags"}
    debtags["hub_ids"]["dataset"] = "org/tags"
    data = ModelCard(render_model_card(debtags, name="debtags")).data
    assert data.datasets == ["org/tags"] and data.eval_results[0].dataset_type == "org/tags"


def test_what_has_no_card_is_named(debtags, tmp_path, capsys):
    other = copy.deepcopy(debtags)
    other["settings"]["model"]["model_type"] = "bert"
    with pytest.raises(ValueError, match="No card for 'bert'"):
        render_model_card(other, name="other")
    del debtags["training"]
    with pytest.raises(ValueError, match="trained no model"):
        render_model_card(debtags, name="evaluation")
    (tmp_path / "results.json").write_text("{}", encoding="utf-8")
    assert command(["card", str(tmp_path)]) == 2
    assert "not the results of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("outputs/tickets/results.json", "tickets"),
        ("outputs/debtags/glocal_xml/results.json", "debtags-glocal_xml"),
        ("recipes/debtags/glocal_xml.results.json", "debtags-glocal_xml"),
        ("outputs/v1.5 -- final/results.json", "v1.5-final"),
        ("outputs/ярлыки/results.json", "glocal_xml"),
    ],
)
def test_names_are_neutral_and_fit_the_hub(path, name):
    assert card_name(Path("/somewhere", path), "glocal_xml") == name
    validate_repo_id(name)


def test_a_readme_of_a_person_stays(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("mine", encoding="utf-8")
    assert write_card(tmp_path, f"{CARD_MARK} new") is None
    clear_run_folder(tmp_path)
    assert path.read_text(encoding="utf-8") == "mine"
    path.unlink()
    assert write_card(tmp_path, f"{CARD_MARK} old") == path
    assert write_card(tmp_path, f"{CARD_MARK} new") == path
    assert path.read_text(encoding="utf-8") == f"{CARD_MARK} new"
    clear_run_folder(tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("model_type", sorted(config.model_type for config in FAMILIES))
def test_every_family_has_its_paper(model_type, debtags):
    debtags["settings"]["model"]["model_type"] = model_type
    card, paper = render_model_card(debtags, name="debtags"), FAMILY_PAPERS[model_type]
    (entry,) = code_blocks(card, "bibtex")
    assert entry.startswith("@") and entry.count("{") == entry.count("}") and f"title = {{{{{paper.title}}}}}" in entry
    reference = card.split("Paper: ")[1].split(". The model was")[0]
    assert paper.title in reference and paper.venue in reference
    assert paper.url is None or (paper.url in entry and paper.url in reference)
    assert "None" not in entry + reference


def test_kept_cards_are_those_of_the_kept_results():
    """`glocal-xml card RESULTS --output model_cards/NAME.md` renders one again."""
    rendered = dict(card_of_run(path) for path in ROOT.glob("examples/recipes/*/*.results.json"))
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "model_cards").glob("*.md")}
    assert kept == rendered
