"""
Our models and peers on the same texts, judged by one evaluator.

    python benchmarks/quality/run.py --data debtags --contenders ours-none omikuji-parabel xr-linear
    python benchmarks/quality/run.py --data eurlex57k --contenders ours-minilm auto-model --minutes 5 30
    python benchmarks/quality/figures.py outputs/quality/results.csv outputs/quality

Each peer runs in an environment of its own, made from package names. Label counts, and so propensities and bands, are
those of all training texts, the same for every contender. Predictions, logs and models stay in the output folder.
"""

import argparse
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch
from contenders import CONTENDERS, Contender
from measured_process import ContenderError, environment_python, run_measured
from results_csv import add_rows, markdown, read_rows

from glocal_xml.calibration import ScoredLabels, expected_calibration_error
from glocal_xml.data import LabelSpace
from glocal_xml.data import read_rows as read_texts
from glocal_xml.metrics import pad_label_lists, xmtc_metrics
from glocal_xml.training.run_facts import hardware

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
# Folder, name of the part that judges.
DATA = {
    "debtags": (ROOT / "examples" / "data" / "debtags", "test"),
    "eurlex57k": (SHARED / "eurlex57k", "dev"),
    "llms4subjects-en": (SHARED / "llms4subjects-en", "dev"),
}
HELD_OUT = "held-out train"
TOP_K = 20
_KEPT = ("precision@", "ndcg@", "psp@", "macro_f1@")


@dataclass
class Judge:
    """True labels of the test texts, and the label space of the training texts."""

    space: LabelSpace
    true_labels: np.ndarray

    def metrics(self, ids: np.ndarray, scores: np.ndarray, with_calibration: bool) -> dict[str, float]:
        """All metrics of ranked labels; the calibration error is over the labels that are given, 20 of each text."""
        propensities = self.space.inverse_propensities()
        found = xmtc_metrics(ids, self.true_labels, inverse_propensities=propensities, bands=self.space.bands())
        kept = {name: value for name, value in found.items() if name.startswith(_KEPT)}
        if with_calibration:
            pairs = ScoredLabels.from_rankings(ids, np.clip(scores, 0, 1), self.true_labels, len(propensities))
            kept["calibration_error"] = expected_calibration_error(pairs.scores, pairs.is_true)
        return kept


def prepare(source: Path, part: str, target: Path, max_train: int | None, max_test: int | None, seed: int) -> Judge:
    """Writes train.jsonl, test.jsonl (texts alone) and labels.txt; parts are random, since files may be sorted."""
    random = np.random.default_rng(seed)

    def rows_of(name: str, limit: int | None) -> list[dict]:
        rows = list(read_texts(source / f"{name}.jsonl.gz"))
        return rows if limit is None else [rows[i] for i in random.permutation(len(rows))[:limit]]

    if part == HELD_OUT:
        rows = rows_of("train", None)
        order = random.permutation(len(rows))
        train, test = ([rows[i] for i in ids] for ids in (order[max_test:][:max_train], order[:max_test]))
    else:
        train, test = rows_of("train", max_train), rows_of(part, max_test)
    space = LabelSpace.from_label_lists(row["labels"] for row in train)
    space.save(target)
    for name, rows, columns in (("train", train, ("text", "labels")), ("test", test, ("text",))):
        lines = (json.dumps({column: row[column] for column in columns}, ensure_ascii=False) for row in rows)
        (target / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    space.add_unseen(row["labels"] for row in test)
    return Judge(space, pad_label_lists([space.encode(row["labels"]) for row in test]))


def run_contender(contender: Contender, folder: Path, python: str, task: dict, limit: float | None) -> dict:
    """Trains and predicts; returns facts, with `ids` and `scores`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps(task | {"settings": contender.settings}), encoding="utf-8")
    script = Path(__file__).resolve().with_name("peers") / contender.script
    measured = run_measured([python, script, folder], folder / "log.txt", cores=task["threads"], minutes=limit)
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    model = [path for path in (folder / "model").rglob("*") if path.is_file() and "checkpoint-" not in str(path)]
    facts |= {"model_mb": sum(path.stat().st_size for path in model) / 2**20, "total_seconds": measured.seconds}
    return facts | {"peak_memory_gb": measured.peak_memory_gb, **np.load(folder / "predictions.npz")}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, choices=DATA)
    parser.add_argument("--data_folder", type=Path, help="where its files are, if not at the usual place")
    parser.add_argument(
        "--contenders", required=True, nargs="+", choices=CONTENDERS, metavar="NAME", help=", ".join(CONTENDERS)
    )
    parser.add_argument(
        "--minutes", type=float, nargs="+", default=[5], help="time budgets of neural contenders (default: 5)"
    )
    parser.add_argument("--max_train_texts", type=int, help="a random part of the training texts")
    parser.add_argument("--max_test_texts", type=int, help="a random part of the test texts")
    parser.add_argument("--held_out", type=int, help="judge by so many training texts, to choose settings")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, in place of those of the contenders")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--cores", type=int, default=psutil.cpu_count(), help="cores of each contender (default: all)")
    parser.add_argument(
        "--limit", type=float, help="minutes after which a contender is stopped, which counts as failed"
    )
    parser.add_argument("--note", default="", help="kept with the values, such as `busy machine`")
    parser.add_argument("--output_dir", type=Path, default=ROOT / "outputs" / "quality")
    parser.add_argument("--csv", type=Path, help="where values go (default: results.csv of the output folder)")
    options = parser.parse_args(argv)

    source, part = DATA[options.data]
    source = options.data_folder or source
    size = "all" if options.max_train_texts is None else options.max_train_texts
    folder = options.output_dir.resolve() / f"{options.data}-{size}-seed{options.seed}"
    if options.held_out is not None:
        part, folder = HELD_OUT, folder.with_name(f"{folder.name}-held-out")
    limits = options.max_train_texts, options.held_out or options.max_test_texts
    judge = prepare(source, part, folder / "data", *limits, options.seed)
    names = source / "label_names.tsv.gz"
    task = {
        "data": str(folder / "data"),
        "label_texts_file": str(names.resolve()) if names.is_file() else None,
        "seed": options.seed,
        "threads": options.cores,
        "top_k": TOP_K,
    }
    torch.set_num_threads(options.cores)
    of_all = {
        "benchmark": "quality",
        "data": options.data,
        "part": part,
        "train_texts": judge.space.num_texts,
        "test_texts": len(judge.true_labels),
        "seed": options.seed,
        "cores": options.cores,
        "machine": hardware(torch.device("cpu")),
    }
    table, failed = options.csv or options.output_dir / "results.csv", []
    for name in options.contenders:
        contender = replace(CONTENDERS[name], settings=CONTENDERS[name].settings | options.settings)
        changed = "".join(f", {setting} {value}" for setting, value in options.settings.items())
        for minutes in options.minutes if contender.has_budget else [None]:
            full_name = name + ("" if minutes is None else f", {minutes:g} min") + changed
            row = of_all | {"contender": full_name, "note": options.note}
            try:
                python = environment_python(options.output_dir.resolve() / "environments", contender.packages)
                own_folder = folder / full_name.replace(", ", "-").replace(" ", "")
                found = run_contender(contender, own_folder, python, task | {"minutes": minutes}, options.limit)
            except ContenderError as error:
                print(f"{full_name} failed: {error}", file=sys.stderr)
                failed.append(row | {"metric": "failed", "note": f"{options.note} {error}".strip()})
                add_rows(table, failed[-1:])
                continue
            values = judge.metrics(found.pop("ids"), found.pop("scores"), contender.gives_probabilities)
            row["versions"] = " ".join(f"{package} {number}" for package, number in found.pop("versions").items())
            values |= found
            add_rows(table, [row | {"metric": metric, "value": round(value, 6)} for metric, value in values.items()])
            print(f"{full_name}: P@1 {100 * values['precision@1']:.2f}, P@5 {100 * values['precision@5']:.2f}, "
                  f"PSP@5 {100 * values['psp@5']:.2f}, {values['train_seconds']:.0f} s", flush=True)  # fmt: skip
    run = {name: str(of_all[name]) for name in ("benchmark", "data", "part", "train_texts", "test_texts")}
    print(markdown([row for row in read_rows(table) if run.items() <= row.items()]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
