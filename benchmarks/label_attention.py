"""
Label-word attention: the fused form of the package against the plain form of the paper, in one run.

    python benchmarks/label_attention.py --labels 4000 31000 --json label_attention.json

Times are medians of interleaved repeats, memory is the peak above the start of a process of its own. The plain twin is
the one the tests compare with (`tests/modeling/plain_label_attention.py`).
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import BertConfig

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "modeling")]

from plain_label_attention import plain_attention_logits, plain_classifier_logits, plain_loss  # noqa: E402

from glocal_xml import GlocalXMLConfig, GlocalXMLForMultiLabel  # noqa: E402
from glocal_xml.modeling.label_attention import LabelAttention  # noqa: E402

TEXTS, TOKENS, HIDDEN, MLP = 4, 256, 384, 128
# The flat-memory measurement, with embeddings that fit small machines.
FLAT_LABELS, FLAT_HIDDEN, FLAT_TEXTS = (31_000, 500_000), 128, 4
CHUNK_BYTES = GlocalXMLConfig(encoder=BertConfig()).label_chunk_bytes
SHORTLIST = 512


def median_times(tasks, repeats):
    """Median seconds of each task, one after the other in every repeat; a first round warms up."""
    times = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            started = time.perf_counter()
            task()
            if repeat:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def attention_case(num_labels, hidden_size, texts):
    torch.manual_seed(0)
    head = LabelAttention(hidden_size, num_labels, CHUNK_BYTES, MLP)
    hidden_states = torch.randn(texts, TOKENS, hidden_size, requires_grad=True)
    labels = torch.randint(0, num_labels, (texts, 5))
    return head, hidden_states, torch.ones(texts, TOKENS, dtype=torch.long), labels


def training_tasks(num_labels, hidden_size=HIDDEN, texts=TEXTS):
    """Forward and backward pass of both forms on the same head."""
    head, hidden_states, mask, labels = attention_case(num_labels, hidden_size, texts)

    def step(loss):
        head.zero_grad()
        hidden_states.grad = None
        loss().backward()

    return {
        "plain": lambda: step(lambda: plain_loss(plain_attention_logits(head, hidden_states, mask), labels)),
        "fused": lambda: step(lambda: head.loss(head.features(hidden_states, mask), labels)),
    }


def matrix_product(size):
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: torch.mm(left, right, out=out)


def folded_flops(num_labels):
    """Products of the folded form: three of (labels, tokens, hidden) and three of (labels, tokens, mlp)."""
    projections = 3 * 2 * TEXTS * TOKENS * (2 * HIDDEN * HIDDEN + HIDDEN * MLP)
    return 6 * TEXTS * TOKENS * num_labels * (HIDDEN + MLP) + projections


def measure_training(num_labels, repeats):
    sizes = (1024, 2048)
    products = {f"product {size}": matrix_product(size) for size in sizes}
    times = median_times({**training_tasks(num_labels), **products}, repeats)
    peak = max(2 * size**3 / times[f"product {size}"] for size in sizes)
    return {
        "plain_seconds": times["plain"],
        "fused_seconds": times["fused"],
        "speedup": times["plain"] / times["fused"],
        "gemm_peak_gflops": peak / 1e9,
        "share_of_gemm_peak": folded_flops(num_labels) / times["fused"] / peak,
    }


def measure_memory(num_labels):
    plain, fused = (peak_megabytes(form, num_labels, HIDDEN, TEXTS) for form in ("plain", "fused"))
    return {"plain_megabytes": plain, "fused_megabytes": fused, "memory_ratio": fused / plain}


def measure_prediction(num_labels, repeats):
    """The five best labels from token states: both branches, with and without a shortlist, the encoder left out."""
    encoder = BertConfig(vocab_size=32, hidden_size=HIDDEN, num_hidden_layers=1, intermediate_size=32)
    config = GlocalXMLConfig(encoder=encoder, num_labels=num_labels, mlp_size=MLP, top_k=5)
    torch.manual_seed(0)
    model = GlocalXMLForMultiLabel(config).eval()
    hidden_states, mask = torch.randn(TEXTS, TOKENS, HIDDEN), torch.ones(TEXTS, TOKENS, dtype=torch.long)
    document = hidden_states[:, 0]

    def plain():
        local = plain_attention_logits(model.local_head, hidden_states, mask)
        probabilities = (local.sigmoid() + plain_classifier_logits(model.global_head, document).sigmoid()) / 2
        return probabilities.topk(5).indices

    def package(shortlist):
        model.config.shortlist = shortlist
        features = {"global": (document,), "local": model.local_head.features(hidden_states, mask)}
        return model.scan_labels(features, output_logits=False).top_k_ids

    with torch.no_grad():
        tasks = {"plain": plain, "fused": lambda: package(None), "shortlist": lambda: package(SHORTLIST)}
        times = median_times(tasks, repeats)
    return {
        "prediction_plain_seconds": times["plain"],
        "prediction_speedup": times["plain"] / times["fused"],
        "prediction_shortlist_speedup": times["plain"] / times["shortlist"],
    }


def measure_flat_memory():
    """Extra memory beyond parameters and gradients, which a step needs in any form."""
    few, many = (peak_megabytes("fused", labels, FLAT_HIDDEN, FLAT_TEXTS) for labels in FLAT_LABELS)
    sizes = {"labels": FLAT_LABELS, "hidden_size": FLAT_HIDDEN, "texts": FLAT_TEXTS}
    return {**sizes, "megabytes": [few, many], "ratio": many / few}


def peak_megabytes(*case):
    """Peak memory of one step beyond parameters and gradients, in a process of its own."""
    # Forked while this process has no threads yet: as fresh as a new interpreter, without importing all again.
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(step_peak, case)


def step_peak(form, num_labels, hidden_size, texts):
    # A small step first, so that what libraries allocate once is not counted.
    training_tasks(50, hidden_size, texts)[form]()
    tasks = training_tasks(num_labels, hidden_size, texts)
    gradients = 4 * num_labels * hidden_size
    before = memory_now("VmRSS")
    # Resets the peak to what is in use now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    tasks[form]()
    return (memory_now("VmHWM") - before - gradients) / 1e6


def memory_now(field):
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: memory is measured on Linux only.")


def print_table(results):
    rows = [
        ("forward + backward, plain (s)", "plain_seconds", "{:.3f}"),
        ("forward + backward, fused (s)", "fused_seconds", "{:.3f}"),
        ("  speed-up", "speedup", "{:.2f}x"),
        ("  matrix-product peak (GFLOPS)", "gemm_peak_gflops", "{:.0f}"),
        ("  share of it that fused reaches", "share_of_gemm_peak", "{:.0%}"),
        ("extra memory, plain (MB)", "plain_megabytes", "{:.0f}"),
        ("extra memory, fused (MB)", "fused_megabytes", "{:.0f}"),
        ("  fused / plain", "memory_ratio", "{:.2f}"),
        ("top-5 prediction, plain (s)", "prediction_plain_seconds", "{:.3f}"),
        ("  speed-up, exact", "prediction_speedup", "{:.2f}x"),
        (f"  speed-up, shortlist of {SHORTLIST}", "prediction_shortlist_speedup", "{:.1f}x"),
    ]
    print(f"{'labels':36}" + "".join(f"{labels:>12}" for labels in results))
    for title, field, form in rows:
        print(f"{title:36}" + "".join(f"{form.format(values[field]):>12}" for values in results.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[4000, 31000], help="numbers of labels")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats, of which the median is taken")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    flat = measure_flat_memory()
    results = {labels: measure_memory(labels) for labels in arguments.labels}
    for labels, figures in results.items():
        figures.update(measure_training(labels, arguments.repeats))
        figures.update(measure_prediction(labels, arguments.repeats))
    print(f"texts {TEXTS}, tokens {TOKENS}, hidden {HIDDEN}, MLP {MLP}, fp32, {torch.get_num_threads()} threads")
    print_table(results)
    few, many = (f"{megabytes:.0f} MB" for megabytes in flat["megabytes"])
    print(
        f"extra memory, fused, hidden {FLAT_HIDDEN}, texts {FLAT_TEXTS}: {few} at {FLAT_LABELS[0]:,} labels,", end=" "
    )
    print(f"{many} at {FLAT_LABELS[1]:,} ({flat['ratio']:.2f}x)")
    if arguments.json:
        machine = {"platform": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()}
        versions = {name.__name__: name.__version__ for name in (torch, transformers)}
        versions["python"] = platform.python_version()
        sizes = {"texts": TEXTS, "tokens": TOKENS, "hidden_size": HIDDEN, "mlp_size": MLP, "chunk_bytes": CHUNK_BYTES}
        report = {"machine": machine, "versions": versions, "sizes": sizes, "labels": results, "flat_memory": flat}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
