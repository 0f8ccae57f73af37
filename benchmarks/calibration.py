"""
What calibration is worth on texts that it was not fitted on.

    python benchmarks/calibration.py outputs/demo examples/recipes/debtags/demo.yaml --figure reliability.png

The texts are the validation texts of the recipe that the model was trained by, or its test texts where it has none.
One half of them, drawn at random, gives temperature and threshold; the other half judges both, and so do the test
texts. Beside it stands what a threshold of 0.5 gives on scores as they are. Halves are drawn `--repeats` times: means,
and the least and the greatest value. The figure is that of the first draw, on the half that judges.
"""

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch
import transformers

from glocal_xml.calibration import ScoredLabels, fit_calibration, judge_calibration, measures_at, write_figure
from glocal_xml.modeling.configuration_base import F_KINDS
from glocal_xml.training import XMTCTrainingArguments, parse_arguments
from glocal_xml.training.calibration_of_run import CANDIDATES, rank_texts
from glocal_xml.training.prepare import load_texts, trained_label_space

MEASURES = ("f", "precision", "recall", "labels_per_text", "texts_without_labels")


def judge(fitted, other, f):
    """What a calibration from one part reaches on another, as flat numbers."""
    calibration = fit_calibration(fitted, f)
    judged, plain = judge_calibration(other, calibration), measures_at(other, 0.5, f)
    qualities = {f"{name}, {when}": judged[when][name] for name in judged["before"] for when in ("before", "after")}
    numbers = {"temperature": calibration["temperature"], "threshold": calibration["threshold"], **qualities}
    numbers |= {name: judged[name] for name in MEASURES}
    return calibration, numbers | {f"{name}, at 0.5 as they are": plain[name] for name in MEASURES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("recipe", help="the recipe that it was trained by")
    parser.add_argument("--max_texts", type=int, help="texts of each part to take at most, the first ones")
    parser.add_argument("--repeats", type=int, default=20, help="how often to draw halves")
    parser.add_argument("--figure", help="picture of the scores before and after")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()

    _, data_args, args = parse_arguments([options.recipe])
    label_space = trained_label_space(options.model)
    # The parts as the run had them: drawn by its seed from all training texts.
    texts, drawn = load_texts(data_args, None, args.seed)
    if (drawn.names, drawn.counts) != (label_space.names, label_space.counts):
        raise SystemExit(f"{options.model} was trained on other texts than those that {options.recipe} draws")
    parts = {name: part for name, part in texts.items() if name in ("validation", "test")}
    if options.max_texts is not None:
        parts = {name: part.select(range(min(options.max_texts, len(part)))) for name, part in parts.items()}
    # Not the folder of the recipe, which the model may have left.
    args = XMTCTrainingArguments(output_dir=options.model)
    ranked = {
        name: (*rank_texts(options.model, part, drawn, args, data_args=data_args), list(part["labels"]))
        for name, part in parts.items()
    }
    num_labels = drawn.num_labels + len(drawn.unseen)

    def scored(name, rows):
        ids, scores, labels = ranked[name]
        return ScoredLabels.from_rankings(ids[rows], scores[rows], [labels[i] for i in rows], num_labels)

    name = next(name for name in ("validation", "test") if name in parts)
    size = len(parts[name])
    results = {"half": size // 2, "part": name, "labels": drawn.num_labels, "candidates": CANDIDATES}
    for f in F_KINDS:
        rows = {"the other half": []} | ({"test": []} if name != "test" and "test" in parts else {})
        for repeat in range(options.repeats):
            order = np.random.default_rng(repeat).permutation(size)
            first, second = (scored(name, np.sort(half)) for half in (order[: size // 2], order[size // 2 :]))
            calibration, numbers = judge(first, second, f)
            rows["the other half"].append(numbers)
            if "test" in rows:
                rows["test"].append(judge(first, scored("test", range(len(parts["test"]))), f)[1])
            if options.figure and repeat == 0 and f == "micro":
                title = (
                    f"{Path(options.model).name}: {len(second.true_per_text)} {name} texts that it was not fitted on"
                )
                write_figure(options.figure, second, calibration, title)
        results[f] = {
            part: {
                number: {"mean": np.mean(values), "least": min(values), "greatest": max(values)}
                for number in found[0]
                for values in [[draw[number] for draw in found]]
            }
            for part, found in rows.items()
        }
        for part, found in results[f].items():
            print(f"\n{f} F1, fitted on {size // 2} {name} texts, judged on {part}; {options.repeats} draws")
            for number, value in found.items():
                print(f"  {number:42} {value['mean']:9.5f}  ({value['least']:.5f} to {value['greatest']:.5f})")
    if options.json:
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        content = {"environment": versions, "repeats": options.repeats, **results}
        options.json.write_text(json.dumps(content, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
