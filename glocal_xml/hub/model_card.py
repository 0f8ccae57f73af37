"""The model card of a run: what `results.json` holds, as front matter for the Hub and as text for people."""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from glocal_xml.json_text import read_json_object
from glocal_xml.modeling import TextExpertsConfig

from .card_blend import blend_limit, blend_of_model, blend_section, branches_of_model, experts_of_model
from .card_tables import PARTS, band_limits, measured_branches, percent, ranks, result_columns, result_tables
from .card_training import experts_training_section, training_section
from .expert_papers import EXPERT_PAPERS
from .family_papers import FAMILY_PAPERS, FamilyPaper
from .published_files import public_results
from .run_files import CARD_FILE, CARD_MARK, RESULTS_FILE

_ON_BY_DEFAULT = ("blend", "label_texts", "refit_experts")


def card_of_run(source: str | os.PathLike, *, repo_id: str | None = None) -> tuple[str, str]:
    """
    The name and the model card of a run.

    Args:
        source: Folder of the run, or its results file kept elsewhere as `<name>.results.json`.
        repo_id: Id that the model has on the Hub; without one it is named after the folder.
    """
    path = Path(source, RESULTS_FILE) if Path(source).is_dir() else Path(source)
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


def card_name(results_path: Path, model_type: str) -> str:
    """A name for the repository of a model, from where its results lie."""
    path = results_path.resolve()
    place = path.parent if path.name == RESULTS_FILE else path.with_name(path.name.removesuffix(".json"))
    name = place.name.removesuffix(".results")
    # Named after the family alone it would say nothing about the data.
    if name.startswith(model_type):
        name = f"{place.parent.name}-{name}"
    return "-".join(re.findall(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*", name)) or model_type


def render_model_card(results: dict[str, Any], *, name: str) -> str:
    """
    A model card in Markdown with front matter in YAML.

    It holds no figure that the results do not hold; what they lack, such as a licence, is left out.

    Args:
        results: What `results.json` of a run that trained a model holds.
        name: Name of the model, or its id on the Hub.
    """
    settings = public_results(results["settings"])
    if not {"training", "training_seconds"} & results.keys():
        raise ValueError("The run trained no model; a card is made of the run that did.")
    model_type = settings["model"]["model_type"]
    # A model without an encoder is of no family.
    paper = None if model_type == TextExpertsConfig.model_type else FAMILY_PAPERS.get(model_type)
    if paper is None and model_type != TextExpertsConfig.model_type:
        raise ValueError(f"No card for {model_type!r}: give the family a row in `FAMILY_PAPERS`.")
    papers = {} if paper is None else {model_type: paper}
    papers |= {name: EXPERT_PAPERS[name] for name in experts_of_model(results)}
    blend = blend_section(results)
    training = results.get("training")
    sections = [
        f"---\n{_front_matter(results, settings, name)}\n---\n{CARD_MARK}",
        f"# {name.split('/')[-1]}\n\n{_introduction(results, paper)}",
        f"## Use\n\n{_use(results, name, paper)}",
        f"## Data\n\n{_data(results, settings)}",
        f"## Results\n\n{result_tables(results, settings)}",
        *([] if blend is None else [f"## Experts and probabilities\n\n{blend}"]),
        f"## Training\n\n{experts_training_section(results) if training is None else training_section(training)}",
        f"## Settings\n\n{_settings(results, settings)}",
        f"## Limits\n\n{_limits(results, settings, paper)}",
        "## Citation\n\n```bibtex\n" + "\n\n".join(p.bibtex(key) for key, p in papers.items()) + "\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(results: dict[str, Any], settings: dict[str, Any], name: str) -> str:
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
            for title, metric in result_columns(results["test"]).items()
        ]
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="text-classification",
        tags=["extreme-multi-label", "multi-label-classification", settings["model"]["model_type"]],
        base_model=hub_ids.get("base_model"),
        datasets=[hub_ids["dataset"]] if hub_ids.get("dataset") else None,
        **metrics,
    ).to_yaml()


def _introduction(results: dict[str, Any], paper: FamilyPaper | None) -> str:
    labels = f"{results['data']['labels']:,} labels" if "data" in results else "labels"
    if paper is None:
        return (
            "A model without an encoder for extreme multi-label text classification: experts that read the whole text "
            f"as a bag of tokens rank {labels} for it. It was fitted with the package `glocal-xml`."
        )
    experts = experts_of_model(results)
    heads = [name for name in branches_of_model(results) if name not in experts]
    alone = f" This model has the {heads[0]} branch alone." if heads in (["global"], ["local"]) else ""
    if blend_of_model(results) is not None:
        beside = f" and the experts beside them ({', '.join(experts)})" if experts else ""
        alone += f" In this model, heads{beside} are weighed by a blend in place of a mean."
    return (
        f"{paper.name} for extreme multi-label text classification: the model ranks {labels} for a text. "
        f"In {paper.name}, {paper.summary}{alone}\n\n"
        f"Paper: {paper.reference()}. The model "
        "was trained with the package `glocal-xml`, which implements the paper; it is no checkpoint of the authors."
    )


def _use(results: dict[str, Any], name: str, paper: FamilyPaper | None) -> str:
    comment = "" if "/" in name else "  # the folder of this model, or its id on the Hub"
    lines = [
        "```python",
        "from transformers import pipeline",
        "",
        f'name = "{name}"{comment}',
        'tagger = pipeline("extreme-multi-label-classification", model=name, trust_remote_code=True)',
        'for found in tagger("The text to label", top_k=5):',
        '    print(f"{found[\'score\']:.2f}", found["label"])',
        "```",
        "",
        "`trust_remote_code=True` runs the code that lies beside the weights. Where the package `glocal-xml` is "
        "installed, `import glocal_xml` takes its place"
        + (", and `explain` shows which words each label read:" if _shows_words(results, paper) else "."),
    ]
    if _shows_words(results, paper):
        lines += [
            "",
            "```python",
            "import glocal_xml",
            "",
            'tagger = pipeline("extreme-multi-label-classification", model=name)',
            'print(glocal_xml.explain(tagger.model, tagger.tokenizer, "The text to label", top_k=5).to_text())',
            "```",
        ]
    return "\n".join(lines)


def _data(results: dict[str, Any], settings: dict[str, Any]) -> str:
    data, facts = settings["data"], results.get("data", {})
    texts = facts.get("texts", {})
    lines = []
    for part in PARTS:
        if part != "train" and part not in results:
            continue
        known = data[f"{part}_file"] or data["dataset_name"]
        source = f"`{known}`" if known else "texts that were given in Python"
        # Where nothing is said, a run holds out texts of its training file.
        held_out = data["validation_size"] or (data["train_file"] and not data["dataset_name"])
        if part == "validation" and not data["validation_file"] and held_out:
            source = "held out of the training texts at random"
        elif data.get(f"max_{part}_texts"):
            source += f", at most {data[f'max_{part}_texts']:,} texts of it, drawn at random"
        lines.append(f"- {part}: {source}" + (f" ({texts[part]:,} texts)" if part in texts else ""))
    if facts:
        bands = {**facts["bands"], "unseen": facts["bands"]["unseen"] - facts["evaluation_only"]}
        counts = ", ".join(f"{count:,} with {band_limits(band)}" for band, count in bands.items() if count)
        lines.append(f"- labels: {facts['labels']:,}; by training texts: {counts}")
        if facts["evaluation_only"]:
            lines.append(
                f"- {facts['evaluation_only']:,} more labels occur in evaluation texts only: the model cannot predict "
                "them, and the figures below count them as missed"
            )
    return "\n".join(lines)


def _settings(results: dict[str, Any], settings: dict[str, Any]) -> str:
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
    versions = dict(results["environment"])
    machine, processes = versions.pop("machine"), versions.pop("processes")
    files = settings["data"]["train_file"] or settings["data"]["dataset_name"]
    return (
        f"What decided the result{', as a recipe for `glocal-xml train`' if files else ''}:\n\n"
        f"```yaml\n{yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)}```\n\n"
        f"Versions: {', '.join(f'{package} {version}' for package, version in versions.items())}. "
        f"Machine: {machine}; {processes} process{'es' if processes > 1 else ''}."
    )


def _limits(results: dict[str, Any], settings: dict[str, Any], paper: FamilyPaper | None) -> str:
    data, training = settings["data"], settings["training"]
    limits = []
    if "test" not in results:
        limits.append(
            "There were no test texts: nothing here tells how good the model is on texts it was not chosen by."
        )
    else:
        limits.append("Only the test texts above were tried: no other source, language, style or time.")
    limits.append(
        f"One run with one seed ({training['seed']}): how much the figures vary from seed to seed is not known."
    )
    if "training" not in results:
        pass
    elif "validation" not in results:
        limits.append("There were no validation texts: the model is that of the last step, not of the best.")
    elif training.get("save_strategy") not in (None, "no") and training["metric_for_best_model"]:
        limits.append(
            f"The checkpoint was chosen by `{training['metric_for_best_model']}` on the validation texts: their "
            "figures are too good."
        )
    if "test" in results:
        k = ranks(results["test"])[-1]
        scores = {name: results["test"][name][f"precision@{k}"] for name in measured_branches(results)}
        final = next(iter(scores))
        ahead = [f"{name} ({percent(score)})" for name, score in scores.items() if score > scores[final]]
        if ahead:
            limits.append(
                f"P@{k} on the test texts was better for {' and '.join(ahead)} alone than for {final} "
                f"({percent(scores[final])}), which is what the model predicts."
            )
    limits.append(blend_limit(results))
    if data["max_length"] and paper is not None:
        rest = "only the experts read the rest" if experts_of_model(results) else "the rest is cut off"
        limits.append(f"At most {data['max_length']} tokens of a text are read; {rest}.")
    if _shows_words(results, paper):
        limits.append("Attention tells which words a label read; it is no proof that they caused its score.")
    limits.append("Speed in use, and bias against groups of people or topics were not measured.")
    return "\n".join(f"- {limit}" for limit in limits)


def _shows_words(results: dict[str, Any], paper: FamilyPaper | None) -> bool:
    if paper is None or paper.word_branches is None:
        return False
    return any(re.fullmatch(paper.word_branches, name) for name in branches_of_model(results))
