"""
What a blend is worth on texts that it was not fitted on.

    python benchmarks/calibration.py outputs/demo examples/data/debtags/test.jsonl.gz --figure reliability.png

One half of the texts, drawn at random, gives weights and threshold; the other half judges them. Beside it stand the
scores as the model has them, at the threshold that it has (0.5 without one), and the mean over heads and experts at
0.5. Take texts that the model has not seen; its run may have fitted the experts on those that it held out. Halves are
drawn `--repeats` times: means, and the least and the greatest value. The figure is that of the first draw.
"""

import argparse
import json
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers

from glocal_xml.calibration import judge_scores, write_figure
from glocal_xml.experts import blend_pairs, fit_blend, log_frequencies
from glocal_xml.modeling.configuration_base import F_KINDS
from glocal_xml.runs.blend import batches
from glocal_xml.runs.model import build_model
from glocal_xml.runs.prepare import load_texts, load_tokenizer, trained_label_space
from glocal_xml.training import parse_arguments
from glocal_xml.training.arguments import ModelArguments


def part_of(pairs, texts):
    """The pairs of some texts, which are counted from 0 again."""
    places = np.full(len(pairs.true_labels), -1)
    places[texts] = np.arange(len(texts))
    kept = places[pairs.texts] >= 0
    names = ("texts", "labels", "logits", "final_logits", "is_true")
    chosen = {name: getattr(pairs, name)[kept] for name in names}
    chosen["texts"] = places[chosen["texts"]]
    return replace(pairs, **chosen, true_labels=[pairs.true_labels[i] for i in texts])


def mean_logits(pairs):
    """Logits of the mean of the probabilities of all branches."""
    mean = (1 / (1 + np.exp(-pairs.logits.astype(np.float64)))).mean(axis=1)
    return np.log(mean) - np.log1p(-mean)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("file", help="texts with labels that it has not seen")
    parser.add_argument("--max_texts", type=int, help="texts to take at most, drawn at random")
    parser.add_argument("--repeats", type=int, default=20, help="how often to draw halves")
    parser.add_argument("--figure", help="picture of the scores before and after")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()

    limit = [] if options.max_texts is None else ["--max_test_texts", str(options.max_texts)]
    flags = ["--model", options.model, "--test_file", options.file, "--output_dir", options.model, *limit]
    _, data_args, args = parse_arguments(flags)
    texts, label_space = load_texts(data_args, trained_label_space(options.model), args.seed)
    model_args = ModelArguments(model=options.model)
    tokenizer = load_tokenizer(model_args, None, {})
    model = build_model(model_args, label_space, tokenizer).to(args.device)
    pairs = blend_pairs(model, batches(texts["test"], tokenizer, bool(model.text_experts())))
    frequencies, num_labels = log_frequencies(label_space), label_space.num_labels + len(label_space.unseen)
    threshold = 0.5 if model.config.blend is None else model.config.blend["threshold"]

    size = len(pairs.true_labels)
    results = {"half": size // 2, "labels": label_space.num_labels, "branches": model.branch_names}
    for f in F_KINDS:
        draws = {"mean of all branches at 0.5": [], "as the model is": [], "fitted on the other half": []}
        for repeat in range(options.repeats):
            order = np.random.default_rng(repeat).permutation(size)
            first, second = (part_of(pairs, np.sort(half)) for half in (order[: size // 2], order[size // 2 :]))
            blend = fit_blend(first, model.branch_names, frequencies, f=f, num_labels=num_labels)
            scored = [
                second.scored(logits, num_labels)
                for logits in (
                    mean_logits(second),
                    second.final_logits,
                    second.blended(blend, model.branch_names, frequencies),
                )
            ]
            for found, judged, cut in zip(draws.values(), scored, (0.5, threshold, blend["threshold"]), strict=True):
                measures = judge_scores(judged, {**blend, "threshold": cut})
                found.append({"threshold": cut, **measures})
            if options.figure and repeat == 0 and f == "micro":
                title = f"{Path(options.model).name}: {size - size // 2} texts that it was not fitted on"
                write_figure(options.figure, scored[1], scored[2], blend, title)
        results[f] = {
            name: {
                number: {"mean": np.mean(values), "least": min(values), "greatest": max(values)}
                for number in found[0]
                for values in [[draw[number] for draw in found]]
            }
            for name, found in draws.items()
        }
        for name, found in results[f].items():
            print(f"\n{f} F1, {name}, on {size - size // 2} texts; {options.repeats} draws")
            for number, value in found.items():
                print(f"  {number:24} {value['mean']:9.5f}  ({value['least']:.5f} to {value['greatest']:.5f})")
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
