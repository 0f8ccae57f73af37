"""Environments of peers, and commands whose time and memory are measured."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

_SECONDS_BETWEEN_LOOKS = 0.1


class Measured(NamedTuple):
    """What a command took; memory is the highest sum of resident sizes of it and its children, ten times a second."""

    seconds: float
    peak_memory_gb: float


class ContenderError(Exception):
    """Why a contender has no result."""


def environment_python(folder: Path, packages: tuple[str, ...]) -> str:
    """The Python of an environment with these packages, made where it is missing; this Python if there are none."""
    if not packages:
        return sys.executable
    folder = folder / re.match(r"[\w-]+", packages[0])[0]
    python, listed = folder / "bin" / "python", folder / "packages.txt"
    wanted = "".join(f"{package}\n" for package in packages)
    if not listed.is_file() or listed.read_text(encoding="utf-8") != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", *packages]):
            run_measured(command, folder / "install.log", cores=psutil.cpu_count())
        listed.write_text(wanted, encoding="utf-8")
    return str(python)


def run_measured(command: list, log: Path, *, cores: int, minutes: float | None = None) -> Measured:
    """
    Runs a command to its end on some cores, in the folder of the file that its output goes to.

    Args:
        command: The command.
        log: The file for its output.
        cores: How many cores it may use.
        minutes: After how many minutes it is ended, which is an error.
    """
    started, peak = time.perf_counter(), 0
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(cores)
    )
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1"}
    if command[0] != sys.executable:
        # Packages of this environment would hide those of the other.
        environment.pop("PYTHONPATH", None)
    with log.open("w", encoding="utf-8") as file:
        options = {"stdout": file, "stderr": subprocess.STDOUT, "env": environment, "cwd": log.parent}
        process = psutil.Popen(list(map(str, command)), **options)
        if cores < psutil.cpu_count() and hasattr(process, "cpu_affinity"):
            # Some peers count the cores of the machine, whatever the environment says.
            process.cpu_affinity(process.cpu_affinity()[-cores:])
        try:
            while process.poll() is None:
                peak = max(peak, sum(map(_resident, _family(process))))
                if minutes is not None and time.perf_counter() - started > 60 * minutes:
                    raise ContenderError(f"stopped after {minutes:g} minutes")
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            for member in _family(process) if process.poll() is None else []:
                member.kill()
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
        raise ContenderError(f"exit code {process.returncode}: {lines[-1].strip()[-300:]} (all in {log.name})")
    return Measured(time.perf_counter() - started, peak / 2**30)


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
