"""
Makes a small XLNet with random weights, and a tokenizer for it from your training texts: an encoder to train from
scratch where no pretrained one can be had.

    python examples/small_xlnet.py examples/data/debtags/train.jsonl.gz outputs/debtags/small_xlnet
    python examples/run_xmtc.py --model_type aplc_xlnet --encoder outputs/debtags/small_xlnet --train_file FILE

The folder holds what `--encoder` and `AutoTokenizer` load. The tokenizer is a Unigram model as XLNet's is: a text ends
in `<sep> <cls>`, and padding is on the left.
"""

import argparse
import json
import sys

import torch
from tokenizers.trainers import UnigramTrainer
from transformers import XLNetConfig, XLNetModel, XLNetTokenizer

from glocal_xml.data import read_rows

SPECIAL_TOKENS = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]


def train_tokenizer(texts, vocabulary_size, lower_case):
    """XLNet's tokenizer with the pieces that suit these texts."""
    backend = XLNetTokenizer(do_lower_case=lower_case).backend_tokenizer
    trainer = UnigramTrainer(
        vocab_size=vocabulary_size, special_tokens=SPECIAL_TOKENS, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    # Built anew, since what was made for an empty vocabulary has the ids of special tokens in it.
    model = json.loads(backend.to_str())["model"]
    pieces = [(piece, score) for piece, score in model["vocab"]]
    return XLNetTokenizer(vocab=pieces, unk_id=model["unk_id"], do_lower_case=lower_case)


def make_encoder(tokenizer, options):
    """An XLNet of the given sizes with random weights."""
    config = XLNetConfig(
        vocab_size=len(tokenizer),
        d_model=options.hidden_size,
        n_layer=options.layers,
        n_head=options.heads,
        d_inner=4 * options.hidden_size,
        dropout=options.dropout,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(options.seed)
    return XLNetModel(config)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_file", help="training texts, in any format that `--train_file` of run_xmtc.py takes")
    parser.add_argument("folder", help="where tokenizer and encoder are written to")
    parser.add_argument("--file_format", help="format of the file; found by content when left out")
    parser.add_argument("--text_column", default="text", help="field or column of the text")
    parser.add_argument("--labels_column", default="labels", help="field or column of the labels")
    parser.add_argument("--vocabulary_size", type=int, default=8000, help="pieces of the tokenizer, at most")
    parser.add_argument("--keep_case", action="store_true", help="tell capitals from small letters")
    parser.add_argument("--hidden_size", type=int, default=256, help="size of the token states")
    parser.add_argument("--layers", type=int, default=2, help="number of layers")
    parser.add_argument("--heads", type=int, default=4, help="attention heads of a layer")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout of the encoder")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    options = parser.parse_args(argv)
    if options.hidden_size % options.heads:
        raise ValueError(f"--hidden_size {options.hidden_size} must be a multiple of --heads {options.heads}")
    rows = read_rows(
        options.train_file,
        file_format=options.file_format,
        text_column=options.text_column,
        labels_column=options.labels_column,
        allow_no_labels=True,
    )
    tokenizer = train_tokenizer((row["text"] for row in rows), options.vocabulary_size, not options.keep_case)
    encoder = make_encoder(tokenizer, options)
    tokenizer.save_pretrained(options.folder)
    encoder.save_pretrained(options.folder)
    print(f"{options.folder}: {len(tokenizer):,} pieces, {encoder.num_parameters():,} parameters")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
