"""
Gives readers of files inputs that atheris (libFuzzer) changes for as long as they reach new lines of the package.

    make fuzz-guided                                                # a long run, in an environment of its own
    python reliability/fuzz_guided.py --runs 500 --targets csv tsv  # fewer inputs, of some formats

Formats, and what a reader may do with a file, are those of `fuzz.py`; the first inputs of each format are made by its
rules. Each format has a process of its own, which atheris ends. Needs the packages atheris and hypothesis.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import atheris

# What is imported here is watched; torch and other libraries are not, or a run would take days.
with atheris.instrument_imports(include=["glocal_xml.data", "glocal_xml.ensembles"]):
    from fuzz_files import Target, targets

from hypothesis import HealthCheck, Phase, given, seed, settings

# Seconds for one input, and its longest size in bytes.
PATIENCE, LONGEST = 60, 4096
FIRST_INPUTS = 100


def write_first_inputs(target: Target, folder: Path, chance: int) -> None:
    """Files that the rules of a format make, for atheris to start from."""

    def keep(content: bytes) -> None:
        if len(content) <= LONGEST:
            (folder / str(len(os.listdir(folder)))).write_bytes(content)

    rules = settings(
        max_examples=FIRST_INPUTS, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    seed(chance)(rules(given(target.content)(keep)))()


def fuzz(target: Target, folder: Path, runs: int, chance: int, counts: dict) -> None:
    """Tries inputs until there were enough or one fails; ends the process either way."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    (first := folder / "first").mkdir()
    write_first_inputs(target, first, chance)
    (place := folder / "files").mkdir()

    def attempt(content: bytes) -> None:
        (place / target.name).write_bytes(content)
        counts["inputs"].value += 1
        counts[target.check(place / target.name, content)].value += 1

    options = [f"-runs={runs}", f"-seed={chance + 1}", f"-max_len={LONGEST}", f"-timeout={PATIENCE}"]
    # Where libFuzzer writes an input that fails.
    options += [f"-artifact_prefix={folder}/failed-", "-verbosity=0", str(first)]
    atheris.Setup([sys.argv[0], *options], attempt)
    atheris.Fuzz()


def main(argv: list[str] | None = None) -> int:
    """Fuzzes what is asked for, one format after the other; 1 where something failed."""
    known = targets()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000, help="inputs of each format (default: 5000)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--targets", nargs="+", choices=known, metavar="FORMAT", help=f"of {', '.join(known)}")
    args = parser.parse_args(argv)
    started, failed = time.monotonic(), 0
    # The processes have what is imported already, and its counters.
    context = multiprocessing.get_context("fork")
    print("| format | inputs | used | refused | failed |\n|---|---|---|---|---|", flush=True)
    for name in args.targets or known:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            counts = {word: context.Value("q", 0, lock=False) for word in ("inputs", "used", "refused")}
            process = context.Process(target=fuzz, args=(known[name], Path(folder), args.runs, args.seed, counts))
            process.start()
            process.join()
            if process.exitcode:
                failed += 1
                for path in Path(folder).glob("failed-*"):
                    print(f"FAILED: {name}, input {path.read_bytes()!r}", flush=True)
            cells = [f"{counts[word].value:,}" for word in ("inputs", "used", "refused")]
            print(f"| {name} | {' | '.join(cells)} | {int(bool(process.exitcode))} |", flush=True)
    print(f"\nseed {args.seed}, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
