"""
Write model.pt2, a program of torch.export with the probabilities of all labels, labels.txt and the tokenizer.
`torch.export.load("model.pt2").module()(input_ids, attention_mask)` runs it.

examples:
  glocal-xml export outputs/tags --output_dir outputs/tags-program
  glocal-xml export outputs/tags --output_dir outputs/tags-onnx --onnx --top_k 10
"""

from io import BytesIO
from pathlib import Path

from glocal_xml.atomic_file import write_atomically

from .command_parser import command_parser, open_model

PROGRAM_FILE, ONNX_FILE = "model.pt2", "model.onnx"


def main(argv: list[str]) -> None:
    """Writes the program, the names of its labels and its tokenizer to a folder."""
    parser = command_parser("export", __doc__)
    parser.add_argument("model", help="folder or Hub id of a trained model without experts")
    parser.add_argument("--output_dir", metavar="FOLDER", required=True, help="folder for the program")
    parser.add_argument("--onnx", action="store_true", help=f"write {ONNX_FILE} instead (extra onnx)")
    parser.add_argument("--top_k", type=int, help="ids and probabilities of so many best labels instead of all")
    args = parser.parse_args(argv)
    path = Path(args.output_dir, ONNX_FILE if args.onnx else PROGRAM_FILE)
    if path.exists():
        raise ValueError(f"{path} is there already; choose another folder.")
    import torch

    from glocal_xml.export import exported, onnx_program
    from glocal_xml.modeling.configuration_base import write_label_names

    pipe = open_model(args, "cpu")
    content = BytesIO()
    if args.onnx:
        onnx_program(pipe.model, args.top_k).save(content)
    else:
        torch.export.save(exported(pipe.model, args.top_k), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getbuffer())
    pipe.tokenizer.save_pretrained(args.output_dir)
    if pipe.model.label_names is not None:
        write_label_names(args.output_dir, pipe.model.label_names)
    which = f"{pipe.model.config.num_labels:,} labels" if args.top_k is None else f"the best {args.top_k} labels"
    print(f"{path}: probabilities of {which}")
