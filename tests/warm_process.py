"""
Python code in processes of its own that begin with PyTorch and Transformers imported, which takes seconds.

They are forked from a process in which nothing but these imports has happened, and this package is not imported. What
a test says of imports, or of variables that are read while importing, needs a new process instead.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["torch.distributed.tensor", "transformers.trainer", "transformers.pipelines", "sklearn.feature_extraction.text"]
)


class Process:
    """
    A process that runs a script as `python` does.

    Args:
        script: A path, or code.
        arguments: What follows on the command line.
        input: What the script reads.
        cwd: Its folder; this one by default.
        **variables: Of its environment, beside and in the place of those of this process.
    """

    def __init__(self, script, arguments=(), *, input="", cwd=None, **variables):
        self._folder = tempfile.TemporaryDirectory()
        self._streams = [Path(self._folder.name, name) for name in ("input", "output", "errors")]
        for path, content in zip(self._streams, (input, "", ""), strict=True):
            path.write_text(content, encoding="utf-8")
        self._command = [str(script), *map(str, arguments)]
        options = (self._command, list(map(str, self._streams)), str(cwd or Path.cwd()), os.environ | variables)
        self._process = FORKED.Process(target=_run, args=options)
        self._process.start()

    def is_running(self):
        return self._process.is_alive()

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def wait(self):
        """How it ended, as `subprocess.run` says it."""
        # Seconds as a rule; how many depends on what else the machine does.
        self._process.join(900)
        if self.is_running():
            self._process.kill()
            self._process.join()
        _, output, errors = (path.read_text(encoding="utf-8") for path in self._streams)
        self._folder.cleanup()
        return subprocess.CompletedProcess(self._command, self._process.exitcode, output, errors)


def run(script, arguments=(), **options):
    """Runs a script to its end; everything else as in [`Process`]."""
    return Process(script, arguments, **options).wait()


def run_in_several(number, script, arguments, **options):
    """The same in processes that know of each other as those of `torchrun` do; how each ended."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number))
    started = [Process(script, arguments, **shared, **rank, **options) for rank in ranks]
    return [process.wait() for process in started]


def run_function(function, arguments, *, number):
    """A function of a test module, in several processes; it gets the number of its process, and the arguments."""
    torch.multiprocessing.start_processes(function, arguments, nprocs=number, start_method="forkserver")


def _run(command, streams, folder, environment):
    for number, path in enumerate(streams):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    # The process that this one is forked from ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # Collecting garbage would go through all that is imported, and copy it.
    gc.freeze()
    torch.set_num_threads(1)
    sys.argv = command
    if Path(command[0]).suffix == ".py":
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")
    else:
        exec(compile(command[0], "<string>", "exec"), {"__name__": "__main__"})
