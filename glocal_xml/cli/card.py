"""
Model card of a trained run, made of its results alone.

examples:
  glocal-xml card outputs/tags
  glocal-xml card outputs/tags/results.json --output model_cards/tags.md
"""

from .command_parser import command_parser


def main(argv: list[str]) -> None:
    """Prints the model card of a run, or writes it to a file."""
    parser = command_parser("card", __doc__)
    parser.add_argument("run", help="folder of the run, or its results.json")
    parser.add_argument("--output", help="file to write the card to; standard output by default")
    args = parser.parse_args(argv)
    from glocal_xml.atomic_file import write_atomically
    from glocal_xml.hub import card_of_run

    _, card = card_of_run(args.run)
    if args.output is None:
        print(card, end="")
    else:
        write_atomically(args.output, card)
