"""
Trains GlocalXML from a real encoder on a part of the embedded data, then explains what it predicts.

    python examples/quickstart.py [flags of run_xmtc.py]

Works with neither the Hub nor a GPU, in under ten minutes on two cores.
"""

import json
import sys
import textwrap
from pathlib import Path

from transformers import AutoModel, AutoTokenizer

from glocal_xml import explain
from glocal_xml.cli import main
from glocal_xml.training import parse_arguments

RECIPE = "examples/recipes/debtags/demo.yaml"


def show(model, tokenizer, row: dict) -> None:
    """Prints a text with its true labels, and its predicted ones with all that adds to the logit of each."""
    print("\n" + textwrap.shorten(row["text"], 300, placeholder=" …"))
    print("  true:", ", ".join(row["labels"]))
    explanation = explain(model, tokenizer, row["text"], top_k=5, num_words=4)
    for number, item in enumerate(explanation.labels):
        mark = "+" if item.label in row["labels"] else " "
        print(f"  {mark} {item.score:.2f} {item.label:32} {item.branch_summary()}")
        words, rest = explanation.addends(number)
        print("         words:", ", ".join(f"{word} {value:+.2f}" for word, value in words or item.words))
        if item.logit is not None:
            parts = ", ".join(f"{name} {value:+.2f}" for name, value in rest)
            print(f"         parts: {parts} = logit {item.logit:+.2f}")


if __name__ == "__main__":
    arguments = [RECIPE, *sys.argv[1:]]
    if main(["train", *arguments]):
        sys.exit(2)
    folder = parse_arguments(arguments)[2].output_dir
    model = AutoModel.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    print("\nFive test texts; + marks a predicted label that is true. Below each what the strongest words add to its")
    print("logit, and the other parts of it; the sigmoid of the sum is the score.")
    with Path(folder, "predictions.jsonl").open(encoding="utf-8") as file:
        for _ in range(5):
            show(model, tokenizer, json.loads(next(file)))
