# %% [markdown]
# # Tag Debian packages
#
# Each of the 24,212 embedded texts describes a Debian package. People gave each a few of 590 tags, such as
# `devel::library` or `uitoolkit::gtk`. This script trains a model for five minutes, measures it on texts that it has
# not seen, and explains what it predicts. It needs neither a GPU nor the Hub. In a checkout of the repository:
#
#     pip install ".[minilm]"
#     python examples/quickstart.py
#
# `# %%` starts a cell: VS Code, PyCharm and Jupytext open the file as a notebook.

# %%
import json
import logging
import sys
import textwrap
from pathlib import Path

from glocal_xml import explain, fit
from glocal_xml.data import read_rows

DATA = "examples/data/debtags"
FOLDER = "outputs/demo"

# Training reports what it does by logging.
logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO, stream=sys.stdout)

# %% [markdown]
# ## Data
#
# A row has a text and the names of its labels. `read_rows` reads JSON lines, CSV, Parquet and other formats.

# %%
rows = list(read_rows(f"{DATA}/train.jsonl.gz"))
print(len(rows), "texts; the first of them:", textwrap.shorten(rows[0]["text"], 100), rows[0]["labels"])

# %% [markdown]
# ## Training
#
# `fit` takes texts and labels in memory. The model has these parts:
#
# - `global` and `local` are the heads of GlocalXML on MiniLM, a small pretrained encoder: one reads the text as a
#   whole, the other its words. They are trained together with the encoder.
# - `lexical` is a linear model over the words, `memory` looks up training texts with similar words. Both are fitted in
#   a minute or two. With more time there is `dense` too, which looks up training texts with a similar meaning.
#
# At the end, 1,000 training texts that were held out decide how much each part counts. That is the `blend`, whose
# scores are calibrated probabilities. P@k in the tables of the log is the share of true labels among the best k, in
# percent.

# %%
tagger = fit(
    [row["text"] for row in rows],
    [row["labels"] for row in rows],
    encoder="minilm",
    minutes=5,
    # Measured when training is done; never used for training.
    test_file=f"{DATA}/test.jsonl.gz",
    max_test_texts=1000,
    output_dir=FOLDER,
    overwrite_output=True,
)

# %% [markdown]
# ## Predictions
#
# What `fit` returns is a pipeline of Transformers. Without a threshold it gives the best labels, however unlikely;
# the threshold of the blend is the one with the best F1 on the texts that were held out.

# %%
text = "notepad: a small text editor for GNOME, written in C with GTK"
print("\n" + text)
for found in tagger(text, threshold="calibrated"):
    print(f"  {found['score']:.2f} {found['label']}")

# %% [markdown]
# ## Explanations
#
# The score of a label is the sigmoid of its logit. The logit is a sum of what each word adds, the text as a whole,
# similar training texts, and how frequent the label is; `explain` shows the parts. Here are five of the test texts.

# %%
print("\nFive test texts; + marks a predicted label that is true. Below each what the strongest words add to its")
print("logit, and the other parts of it; the sigmoid of the sum is the score.")
with Path(FOLDER, "predictions.jsonl").open(encoding="utf-8") as file:
    tested = [json.loads(next(file)) for _ in range(5)]
for row in tested:
    print("\n" + textwrap.shorten(row["text"], 300, placeholder=" …"))
    print("  true:", ", ".join(row["labels"]))
    explanation = explain(tagger.model, tagger.tokenizer, row["text"], top_k=5, num_words=4)
    for number, item in enumerate(explanation.labels):
        mark = "+" if item.label in row["labels"] else " "
        print(f"  {mark} {item.score:.2f} {item.label:32} {item.branch_summary()}")
        words, others = explanation.addends(number)
        print("         words:", ", ".join(f"{word} {value:+.2f}" for word, value in words))
        parts = ", ".join(f"{name} {value:+.2f}" for name, value in others)
        print(f"         parts: {parts} = logit {item.logit:+.2f}")

# %% [markdown]
# ## What next
#
# The model is in `outputs/demo`, a checkpoint like any other of Transformers:
#
#     glocal-xml demo outputs/demo --open       # the same as a web page
#     glocal-xml predict outputs/demo new.txt   # many texts
#
# Train on your own file by `glocal-xml train --encoder minilm --train_file FILE`; `docs/own_data.md` tells more.
