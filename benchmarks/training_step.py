"""
One training step of GlocalXML beside LibMultiLabel's BERT-LWAN and a plain Transformers classifier, same encoder.

    python -m venv lml && lml/bin/pip install -c constraints.txt torch "libmultilabel[nn]" transformers
    python benchmarks/training_step.py --labels 4000 22000 --peer_python lml/bin/python --json training_step.json

Each contender is a process of its own (LibMultiLabel in an environment of its own) that takes one step when told to;
the steps are interleaved and medians are compared. A step is forward, backward and AdamW, in fp32 without dropout. The
encoder is common to all, so the table also gives the limit that a free head would reach: the time of a contender
divided by that of the encoder alone, and the share of that limit which GlocalXML reaches. GlocalXML is there as it is
by default and in the paper's form (an MLP instead of evidence, no biases).
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time

CONTENDERS = {
    "encoder alone": "ours",
    "GlocalXML": "ours",
    "GlocalXML, paper's form": "ours",
    "GlocalXML, global branch": "ours",
    "Transformers classifier": "ours",
    "BERT-LWAN, one head": "peer",
    "BERT-LWAN, eight heads": "peer",
}


def make_step(name, encoder, num_labels, texts, tokens):
    """A function that takes one training step and gives the time it took."""
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    torch.manual_seed(0)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    input_ids = torch.randint(1000, 20000, (texts, tokens))
    labels = torch.randint(0, num_labels, (texts, 5))
    target = torch.zeros(texts, num_labels).scatter_(1, labels, 1.0)
    if name == "encoder alone":
        model = AutoModel.from_pretrained(encoder, **no_dropout)
        model.pooler = None

        def loss():
            return model(input_ids).last_hidden_state.square().mean()
    elif name.startswith("GlocalXML"):
        from glocal_xml import GlocalXMLForMultiLabel

        fields = {"branches": "global"} if name.endswith("global branch") else {}
        if name.endswith("paper's form"):
            fields = {"attention_scoring": "mlp", "label_bias": False, "mlp_size": 128}
        model = GlocalXMLForMultiLabel.from_encoder(
            encoder, num_labels=num_labels, encoder_options=no_dropout, **fields
        )

        def loss():
            return model(input_ids, labels=labels).loss
    elif name == "Transformers classifier":
        model = AutoModelForSequenceClassification.from_pretrained(
            encoder, num_labels=num_labels, problem_type="multi_label_classification", **no_dropout
        )

        def loss():
            return model(input_ids, labels=target).loss
    else:
        from libmultilabel.nn.networks import BERTAttention

        kind = "singlehead" if name.endswith("one head") else "multihead"
        model = BERTAttention(num_labels, 0.0, 0.0, lm_weight=encoder, attention_type=kind)
        model.lm.pooler = None

        def loss():
            logits = model({"text": input_ids})["logits"]
            return torch.nn.functional.binary_cross_entropy_with_logits(logits, target)

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step():
        started = time.perf_counter()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    return step


def work(options):
    """A contender: takes a step for every line on standard input and answers with its seconds."""
    step = make_step(options.worker, options.encoder, options.labels[0], options.texts, options.tokens)
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(step(), flush=True)


def measure(options, num_labels):
    """Median seconds of a step of each contender."""
    workers = {}
    for name, environment in CONTENDERS.items():
        python = sys.executable if environment == "ours" else options.peer_python
        if python is None:
            continue
        command = [python, __file__, "--worker", name, "--encoder", options.encoder, "--labels", str(num_labels)]
        command += ["--texts", str(options.texts), "--tokens", str(options.tokens)]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # One after the other, so that start-up does not overlap.
        if worker.stdout.readline().strip() != "ready":
            raise SystemExit(f"{name} did not start with {python}")
        workers[name] = worker
    seconds = {name: [] for name in workers}
    for _ in range(options.repeats):
        for name, worker in workers.items():
            worker.stdin.write("step\n")
            worker.stdin.flush()
            seconds[name].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(num_labels, medians):
    """Rows of the table: how many times faster GlocalXML is, the limit of a free head, and the share of it."""
    encoder, ours, paper = (medians[name] for name in ("encoder alone", "GlocalXML", "GlocalXML, paper's form"))
    rows = []
    titles = f"{'seconds':>10}{'GlocalXML is':>15}{'limit':>9}{'share':>9}{'in paper form':>15}"
    print(f"\n{num_labels} labels{'':20}{titles}")
    for name, value in medians.items():
        row = {"labels": num_labels, "contender": name, "seconds": value}
        line = f"{name:30}{value:10.3f}"
        if name.startswith("BERT-LWAN"):
            row |= {"speed_up": value / ours, "limit": value / encoder, "share_of_limit": encoder / ours}
            row["paper_speed_up"] = value / paper
            line += f"{value / ours:14.2f}x{value / encoder:8.2f}x{encoder / ours:9.0%}{value / paper:14.2f}x"
        rows.append(row)
        print(line)
    if "Transformers classifier" in medians:
        ratio = medians["Transformers classifier"] / medians["GlocalXML, global branch"]
        rows.append({"labels": num_labels, "contender": "global branch against the classifier", "speed_up": ratio})
        print(f"the global branch alone is {ratio:.2f}x as fast as the Transformers classifier")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[4000], help="sizes of the label space")
    parser.add_argument("--texts", type=int, default=4, help="texts in a batch")
    parser.add_argument("--tokens", type=int, default=256, help="tokens in a text")
    parser.add_argument("--repeats", type=int, default=7, help="steps of each contender")
    parser.add_argument("--encoder", help="folder of a BERT; the extra `minilm` by default")
    parser.add_argument(
        "--peer_python", help="interpreter of an environment with libmultilabel; without it no BERT-LWAN"
    )
    parser.add_argument("--json", help="file to write the figures to")
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)

    from importlib.metadata import version

    from glocal_xml import minilm_path
    from glocal_xml.atomic_file import write_atomically

    options.encoder = options.encoder or minilm_path()
    print(f"a step of {options.texts} texts of {options.tokens} tokens, fp32, median of {options.repeats}")
    rows = [row for num_labels in options.labels for row in report(num_labels, measure(options, num_labels))]
    if options.json:
        facts = {name: version(name) for name in ("torch", "transformers")} | {"machine": platform.machine()}
        settings = {"texts": options.texts, "tokens": options.tokens, "repeats": options.repeats}
        write_atomically(options.json, json.dumps({**facts, **settings, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
