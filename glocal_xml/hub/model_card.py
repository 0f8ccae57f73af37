"""The model card of a run: what `results.json` holds, as front matter for the Hub and as text for people."""

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from glocal_xml.data import BAND_LIMITS
from glocal_xml.json_text import read_json_object
from glocal_xml.modeling import TextExpertsConfig
from glocal_xml.modeling.experts import BIAS, FREQUENCY, LEXICAL_BEND, LEXICAL_KNOT, VOTES

from .papers import EXPERT_PAPERS, FAMILY_PAPERS
from .published_files import public_results
from .run_files import BASELINE, CARD_FILE, CARD_MARK, RESULTS_FILE

_PARTS = ("train", "validation", "test")
# Title, metric and lowest rank; nDCG@1 is P@1.
_COLUMNS = (("P", "precision", 1), ("nDCG", "ndcg", 2), ("PSP", "psp", 1), ("R", "recall", 1))
# Weights of a blend that are no branches.
_FURTHER = (LEXICAL_BEND, *VOTES.values(), FREQUENCY, BIAS)
_WEIGHT_NOTES = {
    LEXICAL_BEND: f"`{LEXICAL_BEND}` counts for how far the lexical logit is above {LEXICAL_KNOT:g}",
    **{vote: f"`{vote}` counts for labels that any similar text of `{name}` has" for name, vote in VOTES.items()},
}
_ON_BY_DEFAULT = ("blend", "label_texts", "refit_experts")

Results = dict[str, Any]


def card_of_run(source: str | os.PathLike, *, repo_id: str | None = None) -> tuple[str, str]:
    """
    The name and the model card of a run, from its folder, or from its results kept elsewhere as `<name>.results.json`;
    without an id on the Hub it is named after the folder.
    """
    path = Path(source, RESULTS_FILE) if Path(source).is_dir() else Path(source)
    if not path.is_file():
        raise ValueError(f"{path} does not exist; give the folder of a run, or its {RESULTS_FILE}.")
    results = read_json_object(path)
    if not {"settings", "environment"} <= results.keys():
        raise ValueError(f"{path} is not the results of a run; give the folder of a run or its {RESULTS_FILE}.")
    config = path.with_name("config.json")
    if path.name == RESULTS_FILE and config.is_file():
        fields = read_json_object(config)
        results["config"] = {name: fields.get(name) for name in ("blend", *EXPERT_PAPERS)}
    name = repo_id or card_name(path, results["settings"]["model"]["model_type"])
    return name, render_model_card(results, name=name)


def describe_card(card: str, **facts: Any) -> str:
    """A card with more facts in its front matter, such as `license` or `language`; what is `None` is left alone."""
    try:
        edited = ModelCard(card)
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(f"The front matter of {CARD_FILE} is no YAML: {error}") from error
    for name, value in facts.items():
        if value is not None:
            setattr(edited.data, name, value)
    return str(edited)


def license_notice(card: bytes) -> str | None:
    """What a person should know of the licence on a card before it is published, if anything."""
    licenses = ModelCard(card.decode("utf-8"), ignore_metadata_errors=True).data.get("license")
    if not licenses:
        return "The card names no license, so nobody else may use the model: give one, such as `--license apache-2.0`."
    known = yaml.safe_load(Path(__file__).with_name("licenses.yaml").read_text(encoding="utf-8"))
    unknown = [one for one in ([licenses] if isinstance(licenses, str) else licenses) if one not in known]
    if not unknown:
        return None
    close = get_close_matches(str(unknown[0]).lower(), known, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    return f"The license {unknown[0]!r} is not one that the Hub lists: use `--license other` for it.{meant}"


def card_name(results_path: Path, model_type: str) -> str:
    """A name for the repository of a model, from where its results lie."""
    path = results_path.resolve()
    place = path.parent if path.name == RESULTS_FILE else path.with_name(path.name.removesuffix(".json"))
    name = place.name.removesuffix(".results")
    # Named after the family alone it would say nothing about the data.
    if name.startswith(model_type):
        name = f"{place.parent.name}-{name}"
    return "-".join(re.findall(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*", name)) or model_type


def render_model_card(results: Results, *, name: str) -> str:
    """
    A model card in Markdown, with front matter in YAML, of what `results.json` of a run that trained a model holds. It
    has no figure that the results do not have; what they lack, such as a licence, is left out.
    """
    settings = public_results(results["settings"])
    if not {"training", "training_seconds"} & results.keys():
        raise ValueError("The run trained no model; a card is made of the run that did.")
    model_type = settings["model"]["model_type"]
    paper = FAMILY_PAPERS.get(model_type)
    # A model without an encoder is of no family.
    if paper is None and model_type != TextExpertsConfig.model_type:
        raise ValueError(f"No card for {model_type!r}: give the family a row in `hub/papers.yaml`.")
    # Its blend now, which may be another than that of its run.
    blend = results["config"]["blend"] if "config" in results else results.get("blend")
    measured = [row for row in results.get("test", results.get("validation", {})) if row != BASELINE]
    branches = measured if blend is None else [branch for branch in blend["weights"] if branch not in _FURTHER]
    if "config" in results:
        experts = [expert for expert in EXPERT_PAPERS if results["config"][expert] is not None]
    else:
        experts = [expert for expert in EXPERT_PAPERS if expert in branches]
    weights = {} if blend is None else blend["weights"]
    # Heads first; files have them in the order of the alphabet.
    last = [*EXPERT_PAPERS, *_FURTHER]
    ordered = sorted(weights, key=lambda each: last.index(each) if each in last else -1)
    words = None if paper is None else paper.word_branches
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, **options)
    environment.filters |= {"comma": "{:,}".format, "duration": _duration, "percent": percent}
    return environment.get_template("card.md.jinja").render(
        name=name,
        mark=CARD_MARK,
        front_matter=_front_matter(results, settings, name),
        results=results,
        settings=settings,
        recipe=_recipe(settings),
        sources=_sources(results, settings["data"]),
        paper=paper,
        papers=({} if paper is None else {model_type: paper}) | {expert: EXPERT_PAPERS[expert] for expert in experts},
        blend=blend,
        weights={each: f"{weights[each]:.3f}" for each in ordered},
        weight_notes=[note for each, note in _WEIGHT_NOTES.items() if each in weights],
        experts=experts,
        heads=[branch for branch in branches if branch not in experts],
        shows_words=words is not None and any(re.fullmatch(words, branch) for branch in branches),
        **_tables(results, measured),
    )


def _front_matter(results: Results, settings: dict[str, Any], name: str) -> str:
    hub_ids = results.get("hub_ids", {})
    training, data = settings["training"], settings["data"]
    metrics: dict[str, Any] = {}
    if "test" in results:
        final = next(iter(results["test"].values()))
        common = {
            "task_type": "text-classification",
            "task_name": "Extreme multi-label text classification",
            "dataset_type": hub_ids.get("dataset") or "unknown",
            "dataset_name": data["dataset_name"] or data["test_file"] or "unknown",
            "dataset_config": data["dataset_config"],
            "dataset_split": "test",
        }
        propensities = {"a": training["propensity_a"], "b": training["propensity_b"]}
        metrics["model_name"] = name.split("/")[-1]
        metrics["eval_results"] = [
            EvalResult(
                metric_type=metric,
                metric_name=title,
                metric_value=final[metric],
                metric_args=propensities if metric.startswith("psp") else None,
                **common,
            )
            for title, metric in _columns(final).items()
        ]
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="text-classification",
        tags=["extreme-multi-label", "multi-label-classification", settings["model"]["model_type"]],
        base_model=hub_ids.get("base_model"),
        datasets=[hub_ids["dataset"]] if hub_ids.get("dataset") else None,
        **metrics,
    ).to_yaml()


def _recipe(settings: dict[str, Any]) -> str:
    recipe = {
        name: value
        for group in ("model", "data", "training")
        for name, value in settings[group].items()
        if value is not None
        and value != {}
        and name != "predict_file"
        # What is on unless it is turned off has to be told.
        and (value is not False or name in _ON_BY_DEFAULT)
    }
    if recipe["model_type"] == TextExpertsConfig.model_type:
        # Both follow from there being no encoder.
        del recipe["model_type"], recipe["max_length"]
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)


def _sources(results: Results, data: dict[str, Any]) -> dict[str, str]:
    """Where the texts of each part come from."""
    sources = {}
    for part in (part for part in _PARTS if part == "train" or part in results):
        known = data[f"{part}_file"] or data["dataset_name"]
        sources[part] = f"`{known}`" if known else "texts that were given in Python"
        # Where nothing is said, a run holds out texts of its training file.
        held_out = data["validation_size"] or (data["train_file"] and not data["dataset_name"])
        if part == "validation" and not data["validation_file"] and held_out:
            sources[part] = "held out of the training texts at random"
        elif data.get(f"max_{part}_texts"):
            sources[part] += f", at most {data[f'max_{part}_texts']:,} texts of it, drawn at random"
    return sources


def _tables(results: Results, measured: list[str]) -> dict[str, Any]:
    """
    Rows of tables, titles first: the metrics of every branch on every part, and macro averages by band on the last;
    labels by their training texts; the final ranking and the branches that were better on test texts.
    """
    tables, bands, ahead, k = {}, [], [], None
    for part in (part for part in _PARTS if part in results):
        rows = results[part]
        final = next(iter(rows.values()))
        columns, k = _columns(final), ranks(final)[-1]
        tables[part] = [[f"{part} texts", *columns]]
        tables[part] += [[row, *(percent(of.get(metric)) for metric in columns.values())] for row, of in rows.items()]
        bands = [["training texts of the label", *rows]]
        for title, suffix in [*((band_limits(band), f"_{band}") for band in BAND_LIMITS), ("all labels", "")]:
            metrics = [f"macro_{measure}@{k}{suffix}" for measure in ("precision", "recall", "f1")]
            if metrics[-1] in final:
                bands.append([title, *(" / ".join(percent(of.get(each)) for each in metrics) for of in rows.values())])
    if "test" in results:
        scores = {row: results["test"][row][f"precision@{k}"] for row in measured}
        best = [row for row in measured if row == measured[0] or scores[row] > scores[measured[0]]]
        ahead = [f"{row} ({percent(scores[row])})" for row in best] if len(best) > 1 else []
    counts = dict(results["data"]["bands"]) if "data" in results else {}
    if counts:
        counts["unseen"] -= results["data"]["evaluation_only"]
    label_counts = [f"{count:,} with {band_limits(band)}" for band, count in counts.items() if count]
    return {"tables": tables, "bands": bands, "k": k, "ahead": ahead, "label_counts": label_counts}


def _columns(metrics: dict[str, float]) -> dict[str, str]:
    """Titles of the columns of a table of results, and the metrics below them."""
    columns = {f"{title}@{k}": f"{name}@{k}" for title, name, least in _COLUMNS for k in ranks(metrics) if k >= least}
    return {title: metric for title, metric in columns.items() if metric in metrics}


def ranks(metrics: dict[str, float]) -> list[int]:
    """The k of P@k and the others, ascending."""
    return sorted(int(name.removeprefix("precision@")) for name in metrics if name.startswith("precision@"))


def percent(value: float | None) -> str:
    """A share as people read it."""
    return "-" if value is None else f"{100 * value:.2f}"


def band_limits(band: str) -> str:
    """Training texts of the labels of a band, in words."""
    lowest, highest = BAND_LIMITS[band]
    if lowest == highest:
        return f"{lowest}"
    return f"{lowest}-{highest}" if highest < float("inf") else f"{lowest} or more"


def _duration(seconds: float) -> str:
    """Seconds as people say it: `1 h 24 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
