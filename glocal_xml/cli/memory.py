"""
Texts that a model finds labels by (experts `memory` and `dense`) added or removed, in seconds and without training.
Labels of added texts that the model does not have become labels of it, and are found from then on where a text is
similar; `glocal-xml train --model` makes more of them. Texts that are remembered already are replaced, with their
labels. Without an option: how much is remembered.

examples:
  glocal-xml memory outputs/tags
  glocal-xml memory outputs/tags --list | head
  glocal-xml memory outputs/tags --add corrected.jsonl --output_dir outputs/tags-2
  glocal-xml memory outputs/tags --remove numbers.txt --output_dir outputs/tags-2
"""

import json
import logging
from typing import Any

from glocal_xml.arguments import DataArguments

from .command_parser import add_fields, command_parser, given
from .labels import open_to_change

logger = logging.getLogger("glocal_xml")

_COLUMNS = ("text_column", "labels_column", "label_delimiter")


def main(argv: list[str]) -> None:
    """Shows the memory of a model, or writes the model with another one to a folder of its own."""
    parser = command_parser("memory", __doc__)
    parser.add_argument("model", help="folder or Hub id of a trained model with the expert `memory` or `dense`")
    parser.add_argument("--add", metavar="FILE", help="texts with their labels, as for `glocal-xml train`")
    add_fields(parser, DataArguments, _COLUMNS)
    parser.add_argument(
        "--remove", metavar="FILE", help="numbers of texts to forget, one per line, as `--list` and explanations tell"
    )
    parser.add_argument("--list", action="store_true", help="print number and labels of each text, as lines of JSON")
    parser.add_argument("--output_dir", metavar="FOLDER", help="folder for the changed model")
    args = parser.parse_args(argv)
    changes = args.add is not None or args.remove is not None
    if changes and (args.output_dir is None or args.list):
        raise ValueError("`--add` and `--remove` need `--output_dir FOLDER` for the changed model, and no `--list`.")
    if args.output_dir is not None and not changes:
        raise ValueError("`--output_dir` is for a changed model: give `--add FILE` or `--remove FILE` too.")
    from glocal_xml.data.sources import read_known_rows
    from glocal_xml.experts import remember, remove_from_memory
    from glocal_xml.labels import edit_labels
    from glocal_xml.runs.prepare import trained_label_space

    numbers = None if args.remove is None else read_numbers(args.remove)
    pipe = open_to_change(args)
    model, tokenizer = pipe.model, pipe.tokenizer
    if model.memory is None and model.dense is None:
        raise ValueError(f"{args.model} has no memory of texts: train it with `--experts lexical memory dense`.")
    if not changes:
        _show(model, args.list)
        return
    label_space = trained_label_space(args.model)
    if numbers is not None:
        found = remove_from_memory(model, numbers)
        logger.info("%d texts removed, of %d numbers given", found, len(numbers))
    if args.add is not None:
        data_args = given(DataArguments, args)
        options = {name: getattr(data_args, name) for name in _COLUMNS}
        rows = list(read_known_rows(args.add, label_space.names, **options))
        texts, labels = [row["text"] for row in rows], [row["labels"] for row in rows]
        new_labels = sorted({name for names in labels for name in names} - set(label_space.names))
        if new_labels:
            model, label_space = edit_labels(model, label_space, tokenizer, add=new_labels)
        label_space = remember(model, label_space, tokenizer, texts, labels)
        logger.info("%d texts added, %d labels of them new", len(texts), len(new_labels))
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    label_space.save(args.output_dir)
    _show(model, False)


def read_numbers(path: str) -> list[int]:
    """Numbers, one per line."""
    from glocal_xml.data.text_files import read_strict_lines

    numbers = []
    for line, text in read_strict_lines(path):
        if text.strip():
            try:
                numbers.append(int(text))
            except ValueError:
                raise ValueError(f"{path}, line {line}: {text!r} must be the number of a text.") from None
    if not numbers:
        raise ValueError(f"{path} holds no numbers: give one per line, as `glocal-xml memory MODEL --list` shows.")
    return numbers


def _show(model: Any, every_text: bool) -> None:
    # Both hold the same texts, but for the names of labels, and for those that no time was left to encode.
    memory, names = model.dense if model.memory is None else model.memory, model.label_names
    rows = memory.text_numbers.tolist()
    if every_text:
        for row, number in enumerate(rows):
            labels = memory.labels_of(row)
            print(json.dumps({"number": number, "labels": [names[i] if names else i for i in labels]}))
        return
    own_names = sum(number < 0 for number in rows)
    known = len(memory.label_ids.unique())
    print(
        f"memory: {len(rows) - own_names:,} texts and {own_names:,} names of labels; "
        f"{known:,} of {memory.num_labels:,} labels have some"
    )
