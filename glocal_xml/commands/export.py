"""`glocal-xml export`: a trained model as a program that needs torch alone."""

from io import BytesIO
from pathlib import Path

from glocal_xml.atomic_file import write_atomically

from .command_parser import command_parser

PROGRAM_FILE = "model.pt2"


def main(argv: list[str]) -> None:
    """Writes the program, the names of its labels and its tokenizer to a folder."""
    parser = command_parser(
        "export",
        f"Write {PROGRAM_FILE}, a program of torch.export with the probabilities of all labels, labels.txt\n"
        f'and the tokenizer. `torch.export.load("{PROGRAM_FILE}").module()(input_ids, attention_mask)` runs it.',
        ["export outputs/tags --output outputs/tags-program"],
    )
    parser.add_argument("model", help="folder or Hub id of a trained model without label tree and experts")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="folder for the program")
    args = parser.parse_args(argv)
    path = Path(args.output, PROGRAM_FILE)
    if path.exists():
        raise ValueError(f"{path} is there already; choose another folder.")
    # What follows takes seconds, which the help need not.
    import torch

    from glocal_xml.export import exported
    from glocal_xml.modeling.configuration_base import write_label_names
    from glocal_xml.trained_model import open_pipeline

    pipe = open_pipeline(args.model, device="cpu")
    program = exported(pipe.model)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    torch.export.save(program, content)
    write_atomically(path, content.getbuffer())
    pipe.tokenizer.save_pretrained(args.output)
    if pipe.model.label_names is not None:
        write_label_names(args.output, pipe.model.label_names)
    print(f"{path}: probabilities of {pipe.model.config.num_labels:,} labels")
