"""`make torture`, `make fuzz` and `make load` in a short form, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import warm_process

FOLDER = Path(__file__).parents[2] / "reliability"


def run(script, *arguments):
    command = [sys.executable, "-W", "ignore", str(FOLDER / script), *arguments]
    return output_of(subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=FOLDER.parent))


def output_of(done):
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    return done.stdout


def test_killed_runs_end_with_the_same_weights():
    kinds = ["Trainer, dense", "own loop, experts and blend"]
    # With this seed the loop resumes from a state that decides about its weights in the end.
    output = run("torture.py", "--kills", "4", "--seed", "10", "--kinds", *kinds, "--kills-only")
    assert "final weights are those of the undisturbed run, bit by bit" in output


def test_hostile_inputs_are_used_or_refused():
    output = output_of(warm_process.run(FOLDER / "fuzz.py", ["--inputs", "3000", "--seed", "5"], cwd=FOLDER.parent))
    total = next(line for line in output.splitlines() if line.startswith("| all |")).split("|")
    assert int(total[2].replace(",", "")) >= 3000 and int(total[5]) == 0


@pytest.mark.slow
def test_many_clients_get_answers():
    assert " 0 errors, 0 without an answer" in run("load.py", "--clients", "4", "--seconds", "15")


@pytest.mark.slow
def test_signals_full_disks_and_damaged_files():
    run("torture.py", "--kills", "1", "--kinds", "Trainer, tree", "own loop, 2 processes")
