"""
Kills and starves training runs, resumes them, and compares what comes out with runs that nothing happened to.

    make torture                                          # a long run: 60 kills, then damage of every kind
    python reliability/torture.py --kills 5 --seed 7      # fewer, in another order

Ends with a table: what is promised, how often it was tried, how often it held. Exit code 1 where it did not.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from damage import DAMAGES, damaged_checkpoint, full_disk, read_only_folder
from tiny_runs import KINDS, Ended, Workshop, after_mark, after_time, at_file_operation, different_weights, leftovers

RESUME = ("--resume_from_checkpoint=last",)
ANEW = ("--overwrite_output=true",)
MOMENTS = ("a step", "an evaluation", "an operation on a file", "any time")


class Torture:
    """Runs of every kind, what was tried on them, and what held."""

    def __init__(self, folder: Path, seed: int, kinds: list[str]):
        self.workshop, self.chance, self.kinds = Workshop(folder / "workshop"), random.Random(seed), kinds
        self.folder = folder
        self.tried, self.held, self.failures = Counter(), Counter(), []
        self.whole: dict[str, tuple[Path, Ended, int]] = {}

    def undisturbed(self, name: str) -> tuple[Path, Ended, int]:
        """A run that nothing happens to, made once: its folder, how it ended, and its operations on files."""
        if name not in self.whole:
            output = self.folder / f"whole {len(self.whole)}"
            tally = self.folder / "tally"
            ended = self.workshop.run(KINDS[name], output, prepare=at_file_operation(0, output, tally))
            if any(ended.codes):
                raise RuntimeError(f"{name} fails without being disturbed:\n{ended.log[-3000:]}")
            self.whole[name] = output, ended, tally.stat().st_size
        return self.whole[name]

    def note(self, promise: str, held: bool, case: str, log: str = "") -> None:
        """Counts a promise, and keeps what became of it where it did not hold."""
        self.tried[promise] += 1
        self.held[promise] += held
        if not held:
            self.failures.append((promise, case, log))
            print(
                f"NOT HELD: {promise}\n  {case}\n"
                + "".join(f"  | {line}\n" for line in log.splitlines()[-60:] if line.strip())
            )

    def kill(self, name: str, moment: str) -> None:
        """Kills a run, perhaps again while it resumes, and lets it end."""
        whole, ended, operations = self.undisturbed(name)
        output = self.folder / "killed"
        further: tuple[str, ...] = ()
        case = [f"{name}, {moment}"]
        for _ in range(1 if self.chance.random() < 0.7 else 2):
            disturb = prepare = None
            if moment in MOMENTS[:2]:
                mark, delay = self.chance.choice(ended.marks(moment == MOMENTS[1])), self.chance.uniform(0, 0.01)
                disturb = after_mark(*mark, delay, signal.SIGKILL, self.chance)
                case.append(f"at {mark} + {delay:.4f} s")
            elif moment == MOMENTS[2]:
                number = self.chance.randint(1, operations)
                prepare = at_file_operation(number, output, self.folder / "tally")
                case.append(f"at operation {number} of {operations}")
            else:
                seconds = self.chance.uniform(0, ended.seconds)
                disturb = after_time(seconds, signal.SIGKILL, self.chance)
                case.append(f"after {seconds:.2f} of {ended.seconds:.2f} s")
            killed = self.workshop.run(KINDS[name], output, *further, disturb=disturb, prepare=prepare)
            if signal.SIGKILL not in [-code for code in killed.codes]:
                break
            self.tried["kills"] += 1
            further = RESUME
        promise = f"killed at {moment}: resumes, or says that there is nothing to resume"
        self.finish(promise, name, output, "; ".join(case))

    def stop(self, name: str, kind: signal.Signals) -> None:
        """Asks a run to end, and lets it resume."""
        _, ended, _ = self.undisturbed(name)
        output, mark = self.folder / "stopped", self.chance.choice(ended.marks(evaluation=self.chance.random() < 0.5))
        stopped = self.workshop.run(KINDS[name], output, disturb=after_mark(*mark, 0, kind, self.chance))
        says_how = 130 in stopped.codes and "Traceback" not in stopped.log
        if any(stopped.codes):
            case = f"{name} at {mark}: exit codes {stopped.codes}"
            self.note(f"{kind.name}: exit code 130, no traceback", says_how, case, stopped.log)
        self.finish(f"{kind.name}: resumes", name, output, f"at {mark}")

    def finish(self, promise: str, name: str, output: Path, case: str) -> None:
        """Resumes a run, or starts it anew where there is nothing to resume, and compares it with one undisturbed."""
        resumed = self.workshop.run(KINDS[name], output, *RESUME)
        if any(resumed.codes):
            self.note(promise, resumed.refused and "resume from" in resumed.log, f"{case}; {name}", resumed.log)
            resumed = self.workshop.run(KINDS[name], output, *ANEW)
        else:
            self.note(promise, True, case)
        whole = self.undisturbed(name)[0]
        ended_well = not any(resumed.codes) and (output / "model.safetensors").is_file()
        other = different_weights(whole, output) if ended_well else ["no model"]
        self.note(
            "final weights are those of the undisturbed run, bit by bit",
            not other,
            f"{case}; {name}: {other[:3]}",
            resumed.log,
        )
        self.note("no temporary files stay", not (left := list(leftovers(output))), f"{case}; {name}: {left}")
        shutil.rmtree(output, ignore_errors=True)

    def table(self) -> str:
        """Promise, tried, held."""
        rows = [
            (promise, str(self.tried[promise]), str(self.held[promise]))
            for promise in self.tried
            if promise != "kills"
        ]
        lines = [f"| {promise} | {tried} | {held} |" for promise, tried, held in rows]
        return "\n".join(["| promise | tried | held |", "|---|---|---|", *lines, "", f"{self.tried['kills']} kills"])


def main(argv: list[str] | None = None) -> int:
    """Tortures runs of every kind in turn; 1 where a promise did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="how many processes to kill at least (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="which moments and kinds (default: 0)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="runs to take in turn")
    parser.add_argument("--kills-only", action="store_true", help="leave out signals, full disks and damaged files")
    args = parser.parse_args(argv)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        torture = Torture(Path(folder), args.seed, args.kinds)
        turn = 0
        while torture.tried["kills"] < args.kills:
            name = args.kinds[turn % len(args.kinds)]
            # Every kind meets every moment.
            torture.kill(name, MOMENTS[(turn + turn // len(args.kinds)) % len(MOMENTS)])
            turn += 1
            print(f"{time.monotonic() - started:6.0f} s, {torture.tried['kills']} kills: {name}", flush=True)
        if not args.kills_only:
            for name in args.kinds:
                for kind in (signal.SIGTERM, signal.SIGINT):
                    torture.stop(name, kind)
                for damage in DAMAGES:
                    damaged_checkpoint(torture, name, damage)
                for starve in (full_disk, full_disk, full_disk, read_only_folder):
                    try:
                        starve(torture, name)
                    except PermissionError as error:
                        print(f"SKIPPED, since no disk could be mounted ({error}): {starve.__name__}, {name}")
                print(f"{time.monotonic() - started:6.0f} s, signals, disks and damaged files: {name}", flush=True)
        print(f"\nseed {args.seed}, {time.monotonic() - started:.0f} s\n\n{torture.table()}")
    return 1 if torture.failures else 0


if __name__ == "__main__":
    sys.exit(main())
