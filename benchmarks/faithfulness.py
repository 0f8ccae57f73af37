"""
Are explanations faithful: does a label's score fall more when the words that speak most for it are deleted than when
other words are?

    python benchmarks/faithfulness.py outputs/demo examples/data/debtags/test.jsonl.gz
    python benchmarks/faithfulness.py outputs/demo test.jsonl outputs/other other.jsonl --json faithfulness.json

Words rank by their signed contribution, where the model has contributions (a blend with the lexical expert, or
`attention_scoring="evidence"`), else by attention; `--rank_by attention` ranks by attention in any case. Each text is
first cut to what the encoder reads of it, so that no word moves up when others go; without an encoder it stays whole.
For each of its best labels, the k occurrences of words that rank highest are deleted, then k random others (several
times), then k of the lowest: the least read, or those that speak most against the label, without which its score
should rise. The others are of the same kind, word or punctuation, and have as many tokens as far as the text has such.
Deleted is what is gone from the text, which is then tokenised anew. A drop is the probability before less that after,
of the final score and of each branch. "top > random" is the share of pairs of text and label whose drop is larger than
the mean of those by random words; intervals are the middle 95 % of bootstrap samples of the texts.
"""

import argparse
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from glocal_xml import explain
from glocal_xml.data import read_rows
from glocal_xml.explain import Explanation, LabelExplanation, Word

WAYS = ("top", "random", "least")
RANKINGS = ("contributions", "attention")


@dataclass
class Drops:
    """How much each score fell, of shape (pairs of text and label,), by score and way; and which text a pair is of."""

    texts: np.ndarray
    before: dict[str, np.ndarray]
    by_way: dict[tuple[str, str], np.ndarray]


def without(text: str, words: Sequence[Word]) -> str:
    """The text without some words; a space that stood behind one goes with it."""
    for word in sorted(words, key=lambda word: -word.start):
        text = text[: word.start] + text[word.end :].removeprefix(" ")
    return text


def matched(targets: Sequence[int], order: Sequence[int], kinds: Sequence[tuple[bool, int]]) -> list[int]:
    """For each target the first other place in an order that is as much like it as can be had, none twice."""
    left = [place for place in order if place not in set(targets)]
    chosen = []
    for target in targets:
        is_word, tokens = kinds[target]
        best = min(left, key=lambda place: (kinds[place][0] != is_word, abs(kinds[place][1] - tokens)))
        left.remove(best)
        chosen.append(best)
    return chosen


def word_kinds(explanation: Explanation, token_spans: Sequence[tuple[int, int]]) -> list[tuple[bool, int]]:
    """Whether each word has letters or digits, and how many tokens it has."""
    return [
        (
            any(character.isalnum() for character in word.text),
            sum(start < word.end and word.start < end for start, end in token_spans),
        )
        for word in explanation.words
    ]


def rank_values(label: LabelExplanation, rank_by: str | None) -> list[float]:
    """By what words rank: contributions where there are some, else attention; `rank_by` overrides it."""
    if rank_by not in (None, *RANKINGS):
        raise ValueError(f"`rank_by` must be one of {', '.join(RANKINGS)}, got {rank_by!r}.")
    if rank_by == "contributions" and label.word_contributions is None:
        raise ValueError("This model has no contributions of words: leave out `rank_by`, or ask for attention.")
    if rank_by == "attention" and label.word_weights is None:
        raise ValueError("This model has no attention to words: leave out `rank_by`, or ask for contributions.")
    return label.word_weights if rank_by == "attention" else label.word_values


def deletions(
    explanation: Explanation,
    kinds: Sequence[tuple[bool, int]],
    k: int,
    draws: int,
    generator: np.random.Generator,
    rank_by: str | None = None,
) -> Iterator[tuple[int, str, str]]:
    """Yields (row of the label, way, text without k words)."""
    for row, label in enumerate(explanation.labels):
        ascending = np.argsort(rank_values(label, rank_by), kind="stable").tolist()
        top = ascending[::-1][:k]
        orders = [("least", ascending)]
        orders += [("random", generator.permutation(len(kinds)).tolist()) for _ in range(draws)]
        for way, places in [("top", top), *((way, matched(top, order, kinds)) for way, order in orders)]:
            yield row, way, without(explanation.text, [explanation.words[place] for place in places])


def read_part(model, tokenizer, text: str) -> str:
    """What the encoder reads of a text; all of it where the model has none."""
    spans = [(start, end) for start, end in tokenizer(text, truncation=True).encodings[0].offsets if end > start]
    if model.encoder is None or not spans:
        return text
    return text[min(start for start, _ in spans) : max(end for _, end in spans)]


def score_pairs(model, tokenizer, texts: list[str], label_ids: list[int], batch_size: int) -> dict[str, np.ndarray]:
    """Probability of one label for each text, final and by branch."""
    parts: dict[str, list[torch.Tensor]] = {}
    for start in range(0, len(texts), batch_size):
        # A text of nothing is read as one of a space.
        batch = [text or " " for text in texts[start : start + batch_size]]
        # No expert reads more than the encoder: texts are cut already.
        inputs = tokenizer(batch, padding=True, truncation=model.encoder is not None, return_tensors="pt")
        chosen = torch.tensor(label_ids[start : start + batch_size]).unsqueeze(1)  # (texts, 1)
        for name, scores in model.score_labels(chosen, **inputs).items():
            parts.setdefault(name, []).append(scores[:, 0])
    return {name: torch.cat(scores).double().numpy() for name, scores in parts.items()}


def measure(
    model,
    tokenizer,
    texts: Sequence[str],
    *,
    ks: Sequence[int] = (1, 3, 5),
    labels: int = 3,
    draws: int = 5,
    batch_size: int = 64,
    seed: int = 0,
    rank_by: str | None = None,
) -> dict[int, Drops]:
    """Drops by k, over the texts with at least 2k words."""
    generator = np.random.default_rng(seed)
    ids = {name: i for i, name in enumerate(model.label_names)}
    found: dict[int, dict] = {k: {"texts": [], "before": {}, "by_way": {}} for k in ks}
    for number, text in enumerate(tqdm(texts, disable=None)):
        text = read_part(model, tokenizer, text)
        explanation = explain(model, tokenizer, text, top_k=labels)
        spans = tokenizer(text).encodings[0].offsets
        kinds = word_kinds(explanation, spans)
        label_ids = [ids[label.label] for label in explanation.labels]
        for k in ks:
            if len(explanation.words) < 2 * k:
                continue
            rows, ways, shorter = zip(*deletions(explanation, kinds, k, draws, generator, rank_by), strict=True)
            rows, ways = np.array(rows), np.array(ways)
            after = score_pairs(model, tokenizer, list(shorter), [label_ids[row] for row in rows], batch_size)
            for row, label in enumerate(explanation.labels):
                found[k]["texts"].append(number)
                # A single branch is the final score.
                branches = label.branch_scores if len(label.branch_scores) > 1 else {}
                for name, before in {"final": label.score, **branches}.items():
                    found[k]["before"].setdefault(name, []).append(before)
                    for way in WAYS:
                        drop = before - after[name][(rows == row) & (ways == way)].mean()
                        found[k]["by_way"].setdefault((name, way), []).append(drop)
    return {
        k: Drops(
            np.array(kept["texts"]),
            {name: np.array(values) for name, values in kept["before"].items()},
            {key: np.array(values) for key, values in kept["by_way"].items()},
        )
        for k, kept in found.items()
    }


def bootstrap(values: np.ndarray, texts: np.ndarray, samples: int = 2000, seed: int = 0) -> list[float]:
    """The middle 95 % of the means of bootstrap samples; whole texts are drawn, since labels of a text are alike."""
    _, places = np.unique(texts, return_inverse=True)
    sums, counts = np.bincount(places, weights=values), np.bincount(places)
    drawn = np.random.default_rng(seed).integers(len(counts), size=(samples, len(counts)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return np.quantile(means, [0.025, 0.975]).tolist()


def summary(drops: Drops) -> list[dict]:
    """A row of figures for each score."""
    rows = []
    for name, before in drops.before.items():
        top, random, least = (drops.by_way[name, way] for way in WAYS)
        wins = (top > random).astype(float)
        rows.append(
            {
                "score": name,
                "pairs": len(before),
                "texts": len(set(drops.texts.tolist())),
                "before": before.mean(),
                "top": top.mean(),
                "random": random.mean(),
                "least": least.mean(),
                "top - random": (top - random).mean(),
                "top - random, 95 %": bootstrap(top - random, drops.texts),
                "top > random": wins.mean(),
                "top > random, 95 %": bootstrap(wins, drops.texts),
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", help="folder of a trained model and a file of texts, as often as wanted")
    parser.add_argument("--number", type=int, default=200, help="texts to take from the start of each file")
    parser.add_argument("--labels", type=int, default=3, help="best labels of a text to look at")
    parser.add_argument("--draws", type=int, default=5, help="how often random words are drawn")
    parser.add_argument("--rank_by", choices=RANKINGS, help="contributions where the model has some by default")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    if len(options.pairs) % 2:
        parser.error("give a file of texts with every model")
    transformers.utils.logging.disable_progress_bar()
    figures = []
    for folder, file in zip(options.pairs[::2], options.pairs[1::2], strict=True):
        model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        texts = [row["text"] for _, row in zip(range(options.number), read_rows(file), strict=False)]
        rank_by = options.rank_by or explain(model, tokenizer, texts[0], top_k=1).measure
        drops = measure(model, tokenizer, texts, labels=options.labels, draws=options.draws, rank_by=rank_by)
        rows = [{"k": k, **row} for k, kept in drops.items() for row in summary(kept)]
        name = f"{type(model).__name__}, {model.config.num_labels:,} labels, {len(texts)} texts of {Path(file).name}"
        figures.append({"model": name, "ranked by": rank_by, "rows": rows})
        print(f"{name}, words ranked by {rank_by}")
        print(f"{'k':>2} {'score':10} {'before':>6} {'top':>7} {'random':>7} {'least':>7}  top > random")
        for row in rows:
            falls = " ".join(f"{row[way]:>7.3f}" for way in WAYS)
            low, high = row["top > random, 95 %"]
            wins = f"{100 * row['top > random']:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
            print(f"{row['k']:>2} {row['score']:10} {row['before']:>6.3f} {falls}  {wins}")
    if options.json:
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
        content = {"environment": environment, "labels": options.labels, "draws": options.draws, "models": figures}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
