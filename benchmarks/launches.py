"""
Kernel launches and synchronisations of a training step and of a prediction, by head and number of labels and texts.

    python benchmarks/launches.py --json benchmarks/results/launches.json

On an accelerator each operation of a step is a launch of about 5 microseconds, and each value that the host reads back
waits for the whole queue. Both are counted on the CPU, with the chunks of an accelerator: operations that would launch
a kernel (views and allocations left out), and operations that read back. The head alone is counted for training, its
loss and gradients; synchronisations are those of the whole model, encoder included.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import BertConfig

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "modeling")]

from operation_counter import OperationCounter  # noqa: E402

from glocal_xml import GlocalXMLConfig, GlocalXMLForMultiLabel  # noqa: E402
from glocal_xml.modeling import AttentionHead, EvidenceHead, LinearHead  # noqa: E402
from glocal_xml.modeling.fused_loss import ACCELERATOR_CHUNK_BYTES  # noqa: E402

TOKENS, HIDDEN, MLP = 128, 384, 128


def counted(task):
    counter = OperationCounter()
    with counter:
        task()
    return counter.launches, counter.synchronisations


def heads(num_labels):
    """Each head, and what it reads of a text."""
    sizes = (HIDDEN, num_labels, ACCELERATOR_CHUNK_BYTES)
    return {
        "linear": LinearHead(*sizes, bias=True),
        "attention (paper)": AttentionHead(*sizes, (MLP,), bias=True),
        "evidence 384, 128": EvidenceHead(*sizes, 384, 128, bias=True),
        "evidence 384, 384": EvidenceHead(*sizes, bias=True),
    }


def head_launches(head, num_labels, texts):
    """Launches of the loss of one head with its gradients, and of the ten best labels."""
    states = torch.randn(texts, TOKENS, HIDDEN)
    mask = torch.ones(texts, TOKENS, dtype=torch.bool)
    labels = torch.randint(0, num_labels, (texts, 5))

    def scores():
        return head(states[:, 0]) if isinstance(head, LinearHead) else head(states, mask)

    training, training_waits = counted(lambda: scores().loss(labels).backward())
    with torch.no_grad():
        prediction, prediction_waits = counted(lambda: scores().top_k(10))
    return {
        "training_launches": training,
        "training_synchronisations": training_waits,
        "prediction_launches": prediction,
        "prediction_synchronisations": prediction_waits,
    }


def model_synchronisations(scoring, num_labels, texts):
    """What a whole model of both branches reads back in a step and in a prediction."""
    encoder = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = GlocalXMLForMultiLabel(
        GlocalXMLConfig(
            encoder=encoder,
            num_labels=num_labels,
            attention_scoring=scoring,
            label_chunk_bytes=ACCELERATOR_CHUNK_BYTES,
        )
    )
    inputs = {"input_ids": torch.randint(5, 99, (texts, 16)), "attention_mask": torch.ones(texts, 16).long()}
    labels = torch.randint(0, num_labels, (texts, 5))
    _, training = counted(lambda: model.train()(**inputs, labels=labels).loss.backward())
    _, prediction = counted(lambda: model.predict_top_k(**inputs))
    return {"training_synchronisations": training, "prediction_synchronisations": prediction}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[4000, 31000], help="default: 4000 31000")
    parser.add_argument("--texts", type=int, nargs="+", default=[4, 32], help="texts of a batch (default: 4 32)")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    print(f"{'head':20} {'labels':>7} {'texts':>5} {'launches':>9} {'syncs':>5}   prediction: launches, syncs")
    for num_labels in options.labels:
        for name, head in heads(num_labels).items():
            for texts in options.texts:
                row = {"head": name, "labels": num_labels, "texts": texts, **head_launches(head, num_labels, texts)}
                rows.append(row)
                print(
                    f"{name:20} {num_labels:>7} {texts:>5} {row['training_launches']:>9} "
                    f"{row['training_synchronisations']:>5} {row['prediction_launches']:>23} "
                    f"{row['prediction_synchronisations']:>6}"
                )
    models = []
    for scoring in ("evidence", "mlp"):
        for texts in options.texts:
            row = {"model": f"GlocalXML, {scoring}", "labels": options.labels[0], "texts": texts}
            models.append(row | model_synchronisations(scoring, options.labels[0], texts))
            print(
                f"{models[-1]['model']}, {texts} texts: {models[-1]['training_synchronisations']} synchronisations in "
                f"a training step, {models[-1]['prediction_synchronisations']} in a prediction"
            )
    if options.json:
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        content = {"environment": environment, "chunk_bytes": ACCELERATOR_CHUNK_BYTES, "heads": rows, "models": models}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
