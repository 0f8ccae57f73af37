"""
Runs the snippets of a Markdown file one after the other in the current folder: `python run_guide.py GUIDE.md`.

Without a file it reads lines with a guide and a folder each, and prints how each ended. Every guide has a process of
its own, forked when all that takes seconds is imported.

Blocks marked `python` share their names, as in a notebook. Of blocks marked `bash`, plain `glocal-xml` commands run in
this process, which saves their start; whatever needs a shell runs in one. Other blocks are data or output. What
installs the package, or takes minutes by design, is not for a test of snippets: `SKIPPED`.
"""

import gc
import json
import os
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path

from glocal_xml.cli import main

SKIPPED = ("pip install", "make ", "torchrun --nproc_per_node 2 examples/", "accelerate launch", "python benchmarks/")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"[|<>;&$`]|^for ")


def snippets(path: Path) -> list[tuple[str, str, int]]:
    """Language, code and line number of every snippet that can be run."""
    text = path.read_text(encoding="utf-8")
    found = [(match[1], match[2], text[: match.start()].count("\n") + 2) for match in _FENCE.finditer(text)]
    return [item for item in found if item[0] in ("python", "bash")]


def commands(code: str) -> list[str]:
    """The commands of a block: continued lines joined, comments left out, a loop as one."""
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    joined: list[str] = []
    for line in lines:
        if joined and (line.startswith((" ", "done"))):
            joined[-1] += f"\n{line}"
        else:
            joined.append(line)
    return joined


def run_command(command: str) -> None:
    """Runs one command; one that fails ends everything."""
    if command.startswith(SKIPPED):
        return
    outside_quotes = re.sub(r"'[^']*'|\"[^\"]*\"", "", command)
    if command.startswith("glocal-xml ") and not _SHELL.search(outside_quotes):
        code = main(shlex.split(command, comments=True)[1:])
    else:
        code = subprocess.run(["bash", "-euo", "pipefail", "-c", command]).returncode
    if code:
        raise SystemExit(f"exit code {code}: {command}")


def run_guide(guide: Path) -> None:
    """Runs all snippets of a guide."""
    names: dict = {"__name__": "__main__"}
    for language, code, line in snippets(guide):
        print(f"--- {guide.name}, line {line}", flush=True)
        if language == "python":
            # Empty lines before it, so that a traceback names the line of the guide.
            exec(compile("\n" * (line - 1) + code, str(guide), "exec"), names)
        else:
            for command in commands(code):
                print(f"$ {command}", flush=True)
                run_command(command)


def run_forked(guide: str, folder: str) -> int:
    """Runs a guide in a process and folder of its own, with `guide.log` for what it prints; returns its exit code."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.chdir(folder)
        log = os.open("guide.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        run_guide(Path(guide))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_guide(Path(sys.argv[1]))
    else:
        import glocal_xml.runs  # noqa: F401

        # Processes would go through all that is imported, and copy it, when they collect garbage.
        gc.freeze()
        for line in sys.stdin:
            print(run_forked(*json.loads(line)), flush=True)
