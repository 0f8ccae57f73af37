"""`glocal-xml train`: one run from files to results."""

import sys
from typing import Any

from glocal_xml.runs.run import quieten, run, start_logging
from glocal_xml.training import parse_arguments


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs what the arguments ask for and returns what `results.json` holds."""
    start_logging()
    model_args, data_args, args = parse_arguments(sys.argv[1:] if argv is None else argv, prog="glocal-xml train")
    quieten(args)
    return run(model_args, data_args, args)
