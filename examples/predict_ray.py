"""
Tags the texts of Parquet files on a Ray cluster (`RAY_ADDRESS`), or in several processes of this machine.

    python examples/predict_ray.py outputs/tags texts.parquet --output tagged.parquet --workers 4
    python examples/predict_ray.py user/model s3://bucket/texts --output tagged.parquet --workers 8 --gpus 1

Every worker loads the model once and tags batch after batch. Rows keep their order and all their columns, and get
`predictions`: names and scores of their best labels, as by `glocal-xml predict`. Needs `pip install glocal-xml[ray]`.
"""

import argparse
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from transformers import AutoConfig, pipeline

from glocal_xml import ExtremeMultiLabelPipeline

PREDICTIONS = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float64())]))


class Tagger:
    """A worker: holds the model, and is called with one batch of rows after the other."""

    def __init__(self, model, device, text_column, **options):
        # With its class, which makes the worker import the package: that registers the models.
        task, kind = "extreme-multi-label-classification", ExtremeMultiLabelPipeline
        self.pipe = pipeline(task, model=model, device=device, pipeline_class=kind)
        self.text_column, self.options = text_column, options

    def __call__(self, table):
        texts = table[self.text_column].to_pylist()
        # Texts of similar length share a batch, so that little is padded.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found = dict(zip(order, self.pipe([texts[i] for i in order], **self.options), strict=True))
        return table.append_column("predictions", pa.array([found[i] for i in range(len(texts))], PREDICTIONS))


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or Hub id of the model")
    parser.add_argument("texts", help="Parquet file or folder of such files, here or in a store that Ray reads")
    parser.add_argument("--output", required=True, help="new Parquet file, on this machine")
    parser.add_argument("--text_column", default="text", help="column of the text (default: text)")
    parser.add_argument("--top_k", type=int, default=5, help="most labels of a text (default: 5)")
    parser.add_argument("--threshold", type=float, help="leave out labels that score less")
    parser.add_argument("--batch_size", type=int, default=32, help="texts in the model at once (default: 32)")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with the model (default: 2)")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of a worker (default: 0)")
    args = parser.parse_args(argv)
    if os.path.exists(args.output):
        raise ValueError(f"{args.output} is there already; name a new file")
    # Ray would start workers that cannot load it again and again.
    AutoConfig.from_pretrained(args.model)

    if "RAY_ADDRESS" not in os.environ:
        # Here, with a place for reading and writing beside the workers.
        ray.init(address="local", num_cpus=args.workers + 1, include_dashboard=False)
    # Rows come out as they went in, which Ray leaves open otherwise.
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rows = ray.data.read_parquet(args.texts)
    if args.text_column not in rows.schema().names:
        raise ValueError(f"no column is called {args.text_column!r}; there are {', '.join(rows.schema().names)}")
    tagged = rows.map_batches(
        Tagger,
        fn_constructor_kwargs={
            # Workers have folders of their own.
            "model": os.path.abspath(args.model) if os.path.isdir(args.model) else args.model,
            # Ray shows each worker its own GPU alone.
            "device": "cuda:0" if args.gpus else "cpu",
            "text_column": args.text_column,
            "batch_size": args.batch_size,
            "top_k": args.top_k,
            "threshold": args.threshold,
        },
        # More than the model takes at once: texts are sorted by length among them.
        batch_size=16 * args.batch_size,
        batch_format="pyarrow",
        num_gpus=args.gpus,
        compute=ray.data.ActorPoolStrategy(size=args.workers),
    )
    # Written here, since writers of Ray Data shuffle the rows of a file.
    schema = rows.schema().base_schema.append(pa.field("predictions", PREDICTIONS))
    with pq.ParquetWriter(f"{args.output}.part", schema) as writer:
        for table in tagged.iter_batches(batch_size=None, batch_format="pyarrow"):
            writer.write_table(table)
    # The file is there when it is whole.
    os.replace(f"{args.output}.part", args.output)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
