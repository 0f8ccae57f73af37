"""
Label-word attention: the fused form of the package against the plain form of the paper, in one run.

    python benchmarks/label_attention.py --labels 4000 31000 --json label_attention.json

Times are medians of interleaved repeats, memory is the peak above the start of a process of its own. The plain twin is
the one the tests compare with (`tests/modeling/plain_label_attention.py`).

The evidence head, with keys and values of several sizes, is another model than the paper's. It runs beside both: its
`speedup` is over the plain twin of the paper's form, `against_paper` over the fused one.
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

from plain_label_attention import plain_attention_logits, plain_linear_logits, plain_loss  # noqa: E402

from glocal_xml import GlocalXMLConfig, GlocalXMLForMultiLabel  # noqa: E402
from glocal_xml.labels import label_tables  # noqa: E402
from glocal_xml.modeling.attention_head import AttentionHead, EvidenceHead  # noqa: E402
from glocal_xml.modeling.fused_loss import CPU_CHUNK_BYTES  # noqa: E402
from glocal_xml.modeling.label_scores import mean_probability  # noqa: E402
from glocal_xml.modeling.modeling_glocal_xml import Shortlist  # noqa: E402

TEXTS, TOKENS, HIDDEN, MLP = 4, 256, 384, 128
# Sizes of keys and values of the evidence head.
EVIDENCE = {"384/384": (384, 384), "384/128": (384, 128), "128/128": (128, 128)}
# The flat-memory measurement, with embeddings that fit small machines.
FLAT_LABELS, FLAT_HIDDEN, FLAT_TEXTS = (31_000, 500_000), 128, 4
FLAT_FORMS = ("fused", "128/128")
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


def make_head(form, num_labels, hidden_size):
    if form in EVIDENCE:
        return EvidenceHead(hidden_size, num_labels, None, *EVIDENCE[form])
    return AttentionHead(hidden_size, num_labels, mlp_sizes=(MLP,))


def training_step(form, num_labels, hidden_size=HIDDEN, texts=TEXTS):
    """A head and its forward and backward pass: "plain" and "fused" are the paper's form, sizes are evidence."""
    torch.manual_seed(0)
    head = make_head(form, num_labels, hidden_size)
    hidden_states = torch.randn(texts, TOKENS, hidden_size, requires_grad=True)
    mask = torch.ones(texts, TOKENS, dtype=torch.bool)
    labels = torch.randint(0, num_labels, (texts, 5))

    def step():
        head.zero_grad()
        hidden_states.grad = None
        if form == "plain":
            loss = plain_loss(plain_attention_logits(head, hidden_states, mask), labels)
        else:
            loss = head(hidden_states, mask).loss(labels)
        loss.backward()

    return head, step


def matrix_product(size):
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: torch.mm(left, right, out=out)


def folded_flops(num_labels):
    """Products of the folded form: three of (labels, tokens, hidden) and three of (labels, tokens, mlp)."""
    projections = 3 * 2 * TEXTS * TOKENS * (2 * HIDDEN * HIDDEN + HIDDEN * MLP)
    return 6 * TEXTS * TOKENS * num_labels * (HIDDEN + MLP) + projections


def evidence_flops(num_labels, key_size, value_size):
    """Products of the evidence head: three of (labels, tokens, key) and three of (labels, tokens, value)."""
    return 6 * TEXTS * TOKENS * (num_labels + HIDDEN) * (key_size + value_size)


def measure_training(num_labels, repeats):
    sizes = (1024, 2048)
    products = {f"product {size}": matrix_product(size) for size in sizes}
    steps = {form: training_step(form, num_labels)[1] for form in ("plain", "fused", *EVIDENCE)}
    times = median_times({**steps, **products}, repeats)
    peak = max(2 * size**3 / times[f"product {size}"] for size in sizes)
    evidence = {
        form: {
            "seconds": times[form],
            "speedup": times["plain"] / times[form],
            "against_paper": times["fused"] / times[form],
            "share_of_gemm_peak": evidence_flops(num_labels, *EVIDENCE[form]) / times[form] / peak,
        }
        for form in EVIDENCE
    }
    return {
        "plain_seconds": times["plain"],
        "fused_seconds": times["fused"],
        "speedup": times["plain"] / times["fused"],
        "gemm_peak_gflops": peak / 1e9,
        "share_of_gemm_peak": folded_flops(num_labels) / times["fused"] / peak,
        "evidence": evidence,
    }


def measure_memory(num_labels):
    plain, fused, *evidence = (
        peak_megabytes(form, num_labels, HIDDEN, TEXTS) for form in ("plain", "fused", *EVIDENCE)
    )
    return {
        "plain_megabytes": plain,
        "fused_megabytes": fused,
        "memory_ratio": fused / plain,
        "evidence_megabytes": dict(zip(EVIDENCE, evidence, strict=True)),
    }


def measure_prediction(num_labels, repeats):
    """The five best labels from token states: both branches, with and without a shortlist, the encoder left out."""
    encoder = BertConfig(vocab_size=32, hidden_size=HIDDEN, num_hidden_layers=1, intermediate_size=32)
    paper = {"attention_scoring": "mlp", "label_bias": False, "mlp_size": MLP}
    config = GlocalXMLConfig(encoder=encoder, num_labels=num_labels, top_k=5, **paper)
    torch.manual_seed(0)
    model = GlocalXMLForMultiLabel(config).eval()
    hidden_states, mask = torch.randn(TEXTS, TOKENS, HIDDEN), torch.ones(TEXTS, TOKENS, dtype=torch.bool)
    document = hidden_states[:, 0]

    def plain():
        local = plain_attention_logits(model.local_head, hidden_states, mask)
        probabilities = (local.sigmoid() + plain_linear_logits(model.global_head, document).sigmoid()) / 2
        return probabilities.topk(5).indices

    def package(shortlist):
        branches = {"global": model.global_head(document), "local": model.local_head(hidden_states, mask)}
        scores = mean_probability(branches)
        return (scores if shortlist is None else Shortlist(scores, shortlist)).top_k(5).ids

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
    paper, evidence = (
        [peak_megabytes(form, labels, FLAT_HIDDEN, FLAT_TEXTS) for labels in FLAT_LABELS] for form in FLAT_FORMS
    )
    return {
        "labels": FLAT_LABELS,
        "hidden_size": FLAT_HIDDEN,
        "texts": FLAT_TEXTS,
        "megabytes": paper,
        "ratio": paper[1] / paper[0],
        "evidence": {"megabytes": evidence, "ratio": evidence[1] / evidence[0]},
    }


def peak_megabytes(*case):
    """Peak memory of one step beyond parameters and gradients, in a process of its own."""
    # Forked while this process has no threads yet: as fresh as a new interpreter, without importing all again.
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(step_peak, case)


def step_peak(form, num_labels, hidden_size, texts):
    # A small step first, so that what libraries allocate once is not counted.
    training_step(form, 50, hidden_size, texts)[1]()
    head, step = training_step(form, num_labels, hidden_size, texts)
    gradients = sum(4 * table.weight.numel() for table in label_tables(head))
    before = memory_now("VmRSS")
    # Resets the peak to what is in use now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    step()
    return (memory_now("VmHWM") - before - gradients) / 1e6


def memory_now(field):
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: memory is measured on Linux only.")


def print_table(results):
    rows = [
        ("forward + backward, plain (s)", "{:.3f}", "plain_seconds"),
        ("forward + backward, fused (s)", "{:.3f}", "fused_seconds"),
        ("  speed-up", "{:.2f}x", "speedup"),
        ("  matrix-product peak (GFLOPS)", "{:.0f}", "gemm_peak_gflops"),
        ("  share of it that fused reaches", "{:.0%}", "share_of_gemm_peak"),
        ("extra memory, plain (MB)", "{:.0f}", "plain_megabytes"),
        ("extra memory, fused (MB)", "{:.0f}", "fused_megabytes"),
        ("  fused / plain", "{:.2f}", "memory_ratio"),
        ("top-5 prediction, plain (s)", "{:.3f}", "prediction_plain_seconds"),
        ("  speed-up, exact", "{:.2f}x", "prediction_speedup"),
        (f"  speed-up, shortlist of {SHORTLIST}", "{:.1f}x", "prediction_shortlist_speedup"),
    ]
    for form in EVIDENCE:
        rows += [
            (f"evidence {form}, forward + backward (s)", "{:.3f}", "evidence", form, "seconds"),
            ("  speed-up over the plain paper's form", "{:.2f}x", "evidence", form, "speedup"),
            ("  over the fused paper's form", "{:.2f}x", "evidence", form, "against_paper"),
            ("  share of the matrix-product peak", "{:.0%}", "evidence", form, "share_of_gemm_peak"),
            ("  extra memory (MB)", "{:.0f}", "evidence_megabytes", form),
        ]
    print(f"{'labels':42}" + "".join(f"{labels:>12}" for labels in results))
    for title, form, *path in rows:
        print(f"{title:42}" + "".join(f"{form.format(find(values, path)):>12}" for values in results.values()))


def find(values, path):
    for name in path:
        values = values[name]
    return values


def print_flat(title, figures):
    few, many = (
        f"{megabytes:.0f} MB at {labels:,} labels"
        for megabytes, labels in zip(figures["megabytes"], FLAT_LABELS, strict=True)
    )
    sizes = f"hidden {FLAT_HIDDEN}, texts {FLAT_TEXTS}"
    print(f"extra memory, {title}, {sizes}: {few}, {many} ({figures['ratio']:.2f}x)")


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
    print_flat("fused", flat)
    print_flat("evidence", flat["evidence"])
    if arguments.json:
        machine = {"platform": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()}
        versions = {name.__name__: name.__version__ for name in (torch, transformers)}
        versions["python"] = platform.python_version()
        sizes = {"texts": TEXTS, "tokens": TOKENS, "hidden_size": HIDDEN, "mlp_size": MLP}
        # What heads take by default.
        sizes["chunk_bytes"] = CPU_CHUNK_BYTES
        report = {"machine": machine, "versions": versions, "sizes": sizes, "labels": results, "flat_memory": flat}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
