"""What a model card says of experts, of the weights that they and the heads have, and of the probabilities."""

from typing import Any

from glocal_xml.modeling.experts import BIAS, FREQUENCY, LEXICAL_BEND, LEXICAL_KNOT, MEMORY_VOTE

from .card_tables import measured_branches, percent, table, table_row
from .expert_papers import EXPERT_PAPERS

_QUALITY = {
    "calibration error": "calibration_error",
    "Brier": "brier",
    "cross-entropy": "cross_entropy",
}
# Weights that are no branches.
_FURTHER = [LEXICAL_BEND, MEMORY_VOTE, FREQUENCY, BIAS]
_MEASURES = {"F": "f", "precision": "precision", "recall": "recall"}


def branches_of_model(results: dict[str, Any]) -> list[str]:
    """Heads and experts, as far as results tell; where branches are not weighed, the final ranking among them."""
    if (blend := blend_of_model(results)) is None:
        return measured_branches(results)
    return [name for name in blend["weights"] if name not in _FURTHER]


def experts_of_model(results: dict[str, Any]) -> list[str]:
    """The experts that the model has."""
    if "config" in results:
        return [name for name in EXPERT_PAPERS if results["config"][name] is not None]
    return [name for name in EXPERT_PAPERS if name in branches_of_model(results)]


def blend_of_model(results: dict[str, Any]) -> dict[str, Any] | None:
    """The blend that the model has now, which may be another than that of its run."""
    return results["config"]["blend"] if "config" in results else results.get("blend")


def is_blend_of_run(results: dict[str, Any]) -> bool:
    """Whether the figures of a run are those of the blend that the model has now."""
    blend, judged = blend_of_model(results), results.get("blend")
    return blend is None or judged is None or blend["weights"] == judged["weights"]


def blend_section(results: dict[str, Any]) -> str | None:
    """Experts, weights, threshold and how good the probabilities are; nothing where there is neither."""
    experts, blend = experts_of_model(results), blend_of_model(results)
    if not experts and blend is None:
        return None
    lines = [f"- {name}: {EXPERT_PAPERS[name].summary} {EXPERT_PAPERS[name].reference()}" for name in experts]
    if "memory" in experts:
        lines += ["", _memory_notice(results)]
    if blend is not None:
        lines += ["", *_weights(blend)]
        training = results["settings"]["training"]
        if experts and "validation" in results and training.get("refit_experts") and training.get("minutes") is None:
            lines.append("After that, the experts were fitted again with these texts among the training texts.")
        lines += ["", *(_quality(results, blend) if is_blend_of_run(results) else [_another_blend(results)])]
    return "\n".join(lines).strip()


def blend_limit(results: dict[str, Any]) -> str:
    """What has to be known of the probabilities."""
    blend = blend_of_model(results)
    if blend is None:
        return "Probabilities were not calibrated: they rank labels; choose a threshold on texts of your own."
    if not blend.get("texts"):
        return (
            "The weights of the blend were not fitted on held-out texts: scores rank labels and are no probabilities. "
            "`glocal-xml calibrate` fits them on texts of your own."
        )
    return (
        f"Weights and threshold ({blend['threshold']:.3g}, given by `threshold='calibrated'`) come from "
        f"{blend['texts']:,} texts: for texts of another kind `glocal-xml calibrate` fits others."
    )


def _memory_notice(results: dict[str, Any]) -> str:
    texts = f" {results['config']['memory']['texts']:,}" if "config" in results else ""
    return (
        f"**The memory travels with the model:** token counts of the{texts} training texts (names of labels that were "
        "such texts among them), without the order of the tokens, and their labels. Whoever has the model can read "
        "them. `glocal-xml publish --leave_out_memory` leaves them out."
    )


def _weights(blend: dict[str, Any]) -> list[str]:
    weights = blend["weights"]
    # Heads first; files have them in the order of the alphabet.
    last = [*EXPERT_PAPERS, *_FURTHER]
    names = [name for name in weights if name not in last] + [name for name in last if name in weights]
    beside = {
        LEXICAL_BEND: f"`{LEXICAL_BEND}` counts for how far the lexical logit is above {LEXICAL_KNOT:g}",
        MEMORY_VOTE: f"`{MEMORY_VOTE}` counts for labels that any similar text has",
    }
    notes = [note for name, note in beside.items() if name in weights]
    fitted = f"fitted on {blend['texts']:,} held-out texts" if blend.get("texts") else "which were not fitted"
    return [
        "The logit of a label is the weighted sum of its logits in heads and experts, of its log frequency in "
        f"training, and a bias. The weights, {fitted}:",
        "",
        *table(names, "---:"),
        table_row([f"{weights[name]:.3f}" for name in names]),
        "",
        *([f"{'; '.join(notes)}.", ""] if notes else []),
        f"Labels are given from a probability of {blend['threshold']:.3f} on"
        + (f", which has the best {_measure(blend)} on these texts." if blend.get("texts") else "."),
    ]


def _quality(results: dict[str, Any], blend: dict[str, Any]) -> list[str]:
    validation = results.get("blend", {}).get("validation")
    judged = {"validation, which they were fitted on": validation, "test": results.get("probabilities")}
    judged = {name: values for name, values in judged.items() if values is not None}
    if not judged:
        return ["How good the probabilities are was not measured."]
    measures = {_measure(blend) if title == "F" else title: name for title, name in _MEASURES.items()}
    lines = [
        "Probabilities of the best labels of each branch, and the labels from the threshold on (in percent):",
        "",
        *table(["texts", *_QUALITY, *measures, "labels per text"]),
    ]
    for name, values in judged.items():
        cells = [f"{values[key]:.4f}" for key in _QUALITY.values()]
        cells += [percent(values[key]) for key in measures.values()]
        lines.append(table_row([name, *cells, f"{values['labels_per_text']:.2f}"]))
    return lines


def _another_blend(results: dict[str, Any]) -> str:
    weights, judged = blend_of_model(results)["weights"], results["blend"]["weights"]
    if "memory" in judged and "memory" not in weights:
        return (
            "The figures of this card are those of the model with its memory, which was left out of this copy: its "
            "scores are others, and no probabilities until `glocal-xml calibrate` has fitted the weights again."
        )
    return (
        "The blend was fitted again after the run (`glocal-xml calibrate`): the figures of `blend` in this card are "
        "those of the one before."
    )


def _measure(blend: dict[str, Any]) -> str:
    beta = blend.get("beta", 1.0)
    return f"{blend['f']} F{'1' if beta == 1 else f' (beta {beta:g})'}"
