r"""
What a blend weighs beside the logits of heads and experts, and how many labels of each the fit looks at.

    glocal-xml train --encoder none --train_file train.jsonl --validation_size 3000 --refit_experts false \
        --output_dir outputs/terms
    python benchmarks/blend_terms.py --model outputs/terms --train_file train.jsonl \
        --json benchmarks/results/blend_terms.json

The texts that the run held out are split four times into 1,000 that a blend is fitted on and the others, which judge
it; no test texts are needed. Printed are means over the four splits. The calibration error is that of the 20 best
labels of each branch, however many the fit looked at.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from transformers import AutoModel, AutoTokenizer

import glocal_xml  # noqa: F401
from glocal_xml.calibration import best_threshold, expected_calibration_error, measures_at
from glocal_xml.data import LabelSpace, load_xmtc_dataset, split_validation
from glocal_xml.experts import blend_pairs, log_frequencies
from glocal_xml.experts.fit_blend import BlendPairs, fitted_weights
from glocal_xml.modeling.experts import LEXICAL, LEXICAL_BEND, MEMORY, VOTES
from glocal_xml.runs.blend import batches

SPLITS, FITTED, JUDGED_CANDIDATES = 4, 1000, 20
MEMORY_VOTE = VOTES[MEMORY]
# Further terms, candidates.
VARIANTS = [((), 20), ((LEXICAL_BEND,), 20), ((MEMORY_VOTE,), 20)]
VARIANTS += [((LEXICAL_BEND, MEMORY_VOTE), number) for number in (20, 15, 10, 5)]


def of_texts(pairs, texts):
    """The pairs of some texts, numbered anew."""
    places = np.full(len(pairs.true_labels), -1)
    places[texts] = np.arange(len(texts))
    kept = places[pairs.texts] >= 0
    columns = (pairs.labels, pairs.logits, pairs.final_logits, pairs.is_true)
    true_labels = [pairs.true_labels[text] for text in texts]
    return BlendPairs(places[pairs.texts[kept]], *(column[kept] for column in columns), true_labels)


def best_ranks(pairs):
    """The best rank that a pair has in any branch."""
    ranks = np.empty(pairs.logits.shape, dtype=np.int64)
    for column, logits in enumerate(pairs.logits.T):
        order = np.lexsort((pairs.labels, -logits, pairs.texts))
        sorted_texts = pairs.texts[order]
        ranks[order, column] = np.arange(len(order)) - np.searchsorted(sorted_texts, sorted_texts)
    return ranks.min(axis=1)


def precisions(pairs, logits):
    """P@1, P@3 and P@5."""
    order = np.lexsort((pairs.labels, -logits, pairs.texts))
    places = np.arange(len(order)) - np.searchsorted(pairs.texts[order], pairs.texts[order])
    is_true = pairs.is_true[order]
    return [is_true[places < k].sum() / k / len(pairs.true_labels) for k in (1, 3, 5)]


def weights_of(pairs, names, further, candidates, frequencies):
    near = best_ranks(pairs) < candidates
    features = pairs.features(names)
    if LEXICAL_BEND in features and LEXICAL_BEND not in further:
        # The two pieces of one slope.
        features[LEXICAL] = features[LEXICAL] + features.pop(LEXICAL_BEND)
    if MEMORY_VOTE not in further:
        features.pop(MEMORY_VOTE, None)
    features = {name: values[near] for name, values in features.items()}
    return fitted_weights(features, frequencies[pairs.labels[near]], pairs.is_true[near])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a run with `--refit_experts false`")
    parser.add_argument("--train_file", required=True, help="the training texts of that run")
    parser.add_argument("--max_train_texts", type=int, help="as in that run")
    parser.add_argument("--validation_size", type=int, default=3000, help="as in that run (default: 3000)")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    model, tokenizer = AutoModel.from_pretrained(options.model), AutoTokenizer.from_pretrained(options.model)
    texts = load_xmtc_dataset({"train": options.train_file}, label_space=None)[0]["train"]
    if options.max_train_texts is not None:
        texts = texts.shuffle(seed=42).select(range(options.max_train_texts))
    _, held_out = split_validation(texts, fraction_or_size=options.validation_size, seed=42)
    space, names = LabelSpace.load(options.model), model.branch_names
    frequencies = log_frequencies(space)
    pairs = blend_pairs(model, batches(held_out, tokenizer, bool(model.text_experts())), JUDGED_CANDIDATES)
    num_labels = 1 + max(int(pairs.labels.max()), *(int(labels.max(initial=0)) for labels in pairs.true_labels))
    rng, splits = np.random.default_rng(0), []
    for _ in range(SPLITS):
        order = rng.permutation(len(held_out))
        splits.append((of_texts(pairs, order[:FITTED]), of_texts(pairs, order[FITTED:])))

    def judge(fitted, judged, logits_of):
        logits = logits_of(judged)
        scored = judged.scored(logits, num_labels)
        threshold = best_threshold(fitted.scored(logits_of(fitted), num_labels))
        error = expected_calibration_error(scored.scores, scored.is_true)
        return [*precisions(judged, logits), error, measures_at(scored, threshold)["f"]]

    def with_weights(weights):
        return lambda part: part.blended({"weights": weights}, names, frequencies)

    rows = {}
    for column, name in enumerate(names):
        rows[f"{name} alone"] = [judge(*split, lambda part, i=column: part.logits[:, i]) for split in splits]
    for further, candidates in VARIANTS:
        rows[f"blend{''.join(f', {name}' for name in further)}, best {candidates}"] = [
            judge(fitted, judged, with_weights(weights_of(fitted, names, further, candidates, frequencies)))
            for fitted, judged in splits
        ]
    rows = {name: np.mean(values, axis=0).round(5).tolist() for name, values in rows.items()}
    for name, values in rows.items():
        shown = [100 * value for value in values]
        print(f"{name:48} {shown[0]:6.2f} {shown[1]:6.2f} {shown[2]:6.2f}   error {values[3]:.4f}   F1 {shown[4]:.2f}")
    if options.json:
        columns = ["p@1", "p@3", "p@5", "calibration_error", "micro_f1"]
        content = {name: dict(zip(columns, values, strict=True)) for name, values in rows.items()}
        before = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        before[Path(options.model).name] = {"held_out_texts": len(held_out), **content}
        options.json.write_text(json.dumps(before, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
