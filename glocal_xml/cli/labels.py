"""
Labels of a trained model added, removed or renamed; those that stay keep their scores. A new label starts as a copy of
the one with the most similar name, and is learned by `glocal-xml train --model` on texts that have it: give them all
of their labels, and mix in texts without new ones, or old labels are unlearned.

examples:
  glocal-xml labels outputs/tags --add new.txt --output_dir outputs/more-tags
  glocal-xml labels outputs/tags --remove old.txt --rename names.tsv --output_dir outputs/other-tags
  glocal-xml train --model outputs/more-tags --train_file more.jsonl --output_dir outputs/more-tags-trained
"""

import argparse
import logging
from typing import Any

from .command_parser import command_parser, open_model

logger = logging.getLogger("glocal_xml")


def main(argv: list[str]) -> None:
    """Writes a trained model with other labels to a folder of its own."""
    parser = command_parser("labels", __doc__)
    parser.add_argument("model", help="folder or Hub id of a trained model")
    parser.add_argument("--add", metavar="FILE", help="names of new labels, one per line")
    parser.add_argument("--remove", metavar="FILE", help="names of labels to take out, one per line")
    parser.add_argument("--rename", metavar="FILE", help="old and new name with a tab between them, one pair per line")
    parser.add_argument("--output_dir", metavar="FOLDER", required=True, help="folder for the new model")
    args = parser.parse_args(argv)
    from glocal_xml.labels import edit_labels
    from glocal_xml.runs.prepare import read_label_names, trained_label_space

    pipe, label_space = open_to_change(args), trained_label_space(args.model)
    edited, new_space = edit_labels(
        pipe.model,
        label_space,
        pipe.tokenizer,
        add=read_label_names(args.add) or (),
        remove=read_label_names(args.remove) or (),
        rename=read_renames(args.rename),
    )
    edited.save_pretrained(args.output_dir)
    pipe.tokenizer.save_pretrained(args.output_dir)
    new_space.save(args.output_dir)
    if args.add is not None and not edited.branch_heads():
        logger.warning(
            "Without an encoder new labels are found when the model learns texts that have them: give it some by "
            "`glocal-xml memory --add` or `glocal-xml train --model`"
        )
    logger.info("%d labels, before %d: %s", new_space.num_labels, label_space.num_labels, args.output_dir)


def open_to_change(args: argparse.Namespace) -> Any:
    """The pipeline of a trained model, to be saved in another folder, which must not hold a model or a run."""
    from glocal_xml.runs.run import start_logging
    from glocal_xml.runs.run_folder import holds_run

    start_logging()
    if args.output_dir is not None and holds_run(args.output_dir):
        raise ValueError(f"The folder {args.output_dir} holds a model or a run already; choose another one.")
    return open_model(args, "cpu")


def read_renames(path: str | None) -> dict[str, str]:
    """New names by old ones."""
    from glocal_xml.data.text_files import read_strict_lines

    renames: dict[str, str] = {}
    for number, line in () if path is None else read_strict_lines(path):
        if not line.strip():
            continue
        old, *new = (name.strip() for name in line.split("\t"))
        if len(new) != 1 or not old or not new[0] or old in renames:
            raise ValueError(
                f"{path}, line {number}: {line!r} must be an old name, a tab and a new name, and each old name may "
                "occur once."
            )
        renames[old] = new[0]
    return renames
