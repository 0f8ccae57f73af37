"""
A web page for a trained model: the labels of a text, what led to them, and whole files tagged. On this machine only,
it offers test texts of the run as examples. Programs can use its API (predict, explain, tag_file).

examples:
  glocal-xml demo outputs/tags --open
  glocal-xml demo user/model --host 0.0.0.0 --port 8000
"""

import argparse
import os
import socket
from tempfile import TemporaryDirectory
from typing import Any

from .command_parser import command_parser


def main(argv: list[str]) -> None:
    """Serves the page until it is interrupted."""
    parser = command_parser("demo", __doc__)
    parser.add_argument("model", help="folder or Hub id of the model")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="127.0.0.1 (default) serves this machine only, 0.0.0.0 the whole network",
    )
    parser.add_argument("--port", type=int, help="by default 7860 or the next one that is free")
    parser.add_argument(
        "--share", action="store_true", help="also a public address for a week, through a tunnel of Gradio's servers"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    args = parser.parse_args(argv)
    if args.port is not None and not 1 <= args.port <= 65535:
        raise ValueError(f"`--port` must lie in 1 to 65535, got {args.port}.")
    try:
        socket.getaddrinfo(args.host, None)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"There is no host {args.host!r}; give 127.0.0.1 or 0.0.0.0.") from error
    from glocal_xml.demo import build_page, example_texts

    # Test texts may be private: they are shown on this machine only.
    is_local = args.host in ("127.0.0.1", "::1", "localhost") and not args.share
    with TemporaryDirectory(prefix="glocal-xml-") as folder:
        # Files that people send, and the same with labels, are gone when the page is.
        os.environ["GRADIO_TEMP_DIR"] = folder
        _serve(build_page(args.model, example_texts(args.model) if is_local else ()), args)


def _serve(page: Any, args: argparse.Namespace) -> None:
    options = {"server_name": args.host, "server_port": args.port, "share": args.share, "inbrowser": args.open}
    try:
        _, url, _ = page.launch(**options, quiet=True, prevent_thread_lock=True)
    except OSError as error:
        where = args.host if args.port is None else f"{args.host}:{args.port}"
        raise ValueError(f"The page cannot be served at {where}; give another `--port` or `--host`.") from error
    print(f"The page is at {url} (Ctrl-C ends it).", flush=True)
    try:
        page.block_thread()
    finally:
        page.close(verbose=False)
