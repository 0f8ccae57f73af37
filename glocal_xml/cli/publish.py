"""
Publish a trained model on the Hub in one commit: weights, tokenizer, label names, code, results and card. With the
experts `memory` and `dense`, bags of token ids and embeddings of the training texts and their labels are among the
weights.

examples:
  glocal-xml publish outputs/tags user/tags --dry-run
  glocal-xml publish outputs/tags user/tags --private --license apache-2.0 --language en
  glocal-xml publish outputs/tags user/tags --revision v2 --message 'Two more epochs'
  glocal-xml publish outputs/tags user/tags --space
  glocal-xml publish outputs/tags user/tags --leave_out_memory
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from glocal_xml.atomic_file import write_atomically

from .command_parser import command_parser, show_warnings

_CARDS = Path("model_cards")


def main(argv: list[str]) -> None:
    """Publishes a model and prints its address, or shows what would be published."""
    parser = command_parser("publish", __doc__)
    parser.add_argument("folder", help="folder of the run")
    parser.add_argument("repo_id", help="user/name or organisation/name; made where it does not exist")
    parser.add_argument("--private", action="store_true", help="for the owner's eyes alone")
    parser.add_argument("--revision", help="branch to publish to; main by default")
    parser.add_argument("--token", help="token with write access; by default HF_TOKEN or that of `hf auth login`")
    parser.add_argument("--message", dest="commit_message", metavar="MESSAGE", help="what the history says")
    parser.add_argument("--license", help="licence of the model, for the card: apache-2.0")
    parser.add_argument("--language", help="language of the texts, for the card: en")
    parser.add_argument(
        "--space",
        nargs="?",
        const=True,
        default=False,
        metavar="SPACE_ID",
        help="also make a Space that shows the model; it has the id of the model unless another is given",
    )
    parser.add_argument(
        "--leave_out_memory",
        action="store_true",
        help="publish a copy without the experts `memory` and `dense`, and so without token counts and embeddings of "
        "training texts; its blend is then to be fitted again by `glocal-xml calibrate`",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=f"list the files and write the card to {_CARDS}/NAME.md; no network is touched",
    )
    args = parser.parse_args(argv)
    from huggingface_hub.utils import disable_progress_bars

    from glocal_xml.hub import publish

    options = vars(args)
    if options.pop("dry_run"):
        _show(args)
        return
    show_warnings()
    if not sys.stderr.isatty():
        disable_progress_bars()
    published = publish(**options)
    print(f"{published.url} (commit {published.commit})")
    if published.space_url is not None:
        print(published.space_url)
        if args.private:
            print("The Space needs a secret HF_TOKEN that may read the model: set it in the settings of the Space.")


def _show(args: argparse.Namespace) -> None:
    """Lists what would be published, and writes the card."""
    from glocal_xml.hub import check_space, folder_to_publish, model_files, notices, space_files
    from glocal_xml.hub.run_files import CARD_FILE

    space_id = check_space(args.repo_id, args.space, args.revision)
    with folder_to_publish(args.folder, args.leave_out_memory) as folder:
        files = model_files(folder, args.repo_id, license=args.license, language=args.language)
        _list_files(args.repo_id, files)
        told = notices(files, args.leave_out_memory)
    for notice in told:
        print(notice)
    if space_id is not None:
        _list_files(f"spaces/{space_id}", space_files(args.repo_id, space_id))
    card = _CARDS / f"{args.repo_id.split('/')[1]}.md"
    _CARDS.mkdir(exist_ok=True)
    write_atomically(card, files[CARD_FILE])
    print(f"card: {card}")


def _list_files(repo_id: str, files: dict[str, Any]) -> None:
    print(f"{repo_id}:")
    # Of a folder its sum alone.
    sizes: dict[str, list[int]] = {}
    for name, content in files.items():
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        folder, slash, _ = name.partition("/")
        sizes.setdefault(folder + slash, []).append(size)
    for name, parts in sizes.items():
        print(f"{sum(parts):>15,}  {name}" + (f" ({len(parts)} files)" if name.endswith("/") else ""))
