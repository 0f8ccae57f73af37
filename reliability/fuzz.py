"""
Gives every reader, the model loader and the command line files that were damaged or made to do harm.

    make fuzz                                               # a long run: 200,000 inputs
    python reliability/fuzz.py --inputs 2000 --seed 7       # fewer, others
    python reliability/fuzz.py --targets csv "model folder" # some of them

Each input is used, or refused with an error that names its file (and line, for a row). A row that is neither, another
error, a wrong prediction or an input that takes longer than a minute fails. Ends with counts per format.
"""

import argparse
import logging
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

from fuzz_commands import command_targets
from fuzz_files import Broken, Target, damaged_copies, targets
from fuzz_models import model_targets
from hypothesis import HealthCheck, Phase, given, seed, settings

# Seconds for one input, which takes milliseconds.
PATIENCE = 60
# Inputs after which Hypothesis starts afresh, so that what it remembers stays small.
_TURN = 2000
_CHECKS = list(HealthCheck)


def _hangs(*_: object) -> None:
    raise Broken(f"no answer after {PATIENCE} s")


def fuzz(target: Target, folder: Path, number: int, chance: int, counts: Counter[str]) -> None:
    """Tries inputs on a target; raises what went wrong with the smallest input that shows it."""
    path = folder / target.name

    def attempt(content: bytes) -> None:
        for copy in damaged_copies(content) if target.is_damaged else [content]:
            path.write_bytes(copy)
            counts["inputs"] += 1
            signal.alarm(PATIENCE)
            try:
                counts[target.check(path, copy)] += 1
            except Exception as error:
                error.add_note(f"input: {copy[:2000]!r}")
                raise
            finally:
                signal.alarm(0)

    while counts["inputs"] < number:
        options = {"database": None, "deadline": None, "suppress_health_check": _CHECKS, "print_blob": False}
        attempts = math.ceil((number - counts["inputs"]) / (16 if target.is_damaged else 1))
        limited = settings(max_examples=min(_TURN, attempts), phases=(Phase.generate, Phase.shrink), **options)
        limited = limited(given(target.content)(attempt))
        seed(chance + counts["inputs"])(limited)()


def main(argv: list[str] | None = None) -> int:
    """Fuzzes what is asked for; 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=200_000, help="how many in all, about (default: 200000)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--targets", nargs="+", help="formats to try (default: all)")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGALRM, _hangs)
    sys.stdout.reconfigure(errors="backslashreplace")
    # Readers warn of what they mend.
    logging.disable(logging.WARNING)
    started, failures = time.monotonic(), []
    table: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        # Each with how many inputs of the others one of it costs.
        weighted = [(found, 1) for found in (targets(),)] + [
            (model_targets(Path(folder, "models")), 60),
            (command_targets(Path(folder, "commands")), 60),
        ]
        known = {name: (target, cost) for found, cost in weighted for name, target in found.items()}
        wanted = args.targets or list(known)
        if unknown := set(wanted) - known.keys():
            parser.error(f"there is no target {sorted(unknown)}; there are {list(known)}")
        share = args.inputs / sum(1 / known[name][1] for name in wanted)
        for name in wanted:
            target, cost = known[name]
            counts = table[name] = Counter()
            (place := Path(folder, "files")).mkdir(exist_ok=True)
            try:
                fuzz(target, place, max(10, round(share / cost)), args.seed, counts)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures.append(name)
                counts["failed"] += 1
                print(f"FAILED: {name}\n" + "".join(traceback.format_exception(error))[-3000:], flush=True)
            print(f"{time.monotonic() - started:6.0f} s  {name}: {dict(counts)}", flush=True)
    print(f"\nseed {args.seed}, {time.monotonic() - started:.0f} s, "
          f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MB\n")  # fmt: skip
    print("| format | inputs | used | refused | failed |\n|---|---|---|---|---|")
    total: Counter[str] = sum(table.values(), Counter())
    for name, counts in [*table.items(), ("all", total)]:
        print(f"| {name} | {counts['inputs']:,} | {counts['used']:,} | {counts['refused']:,} | {counts['failed']} |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
