"""Tiny training runs in forked processes: one costs what it computes, and not the seconds of its imports."""

import faulthandler
import gc
import json
import os
import random
import re
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
# Every step and every batch of an evaluation is a line of the log, by which it can be found.
os.environ |= {"TQDM_MININTERVAL": "0", "TQDM_MINITERS": "1"}

import torch
from safetensors.torch import load_file
from tqdm import tqdm
from transformers import AutoModel, BertConfig, BertTokenizerFast

# What takes seconds to import, and commands import when they begin: here before processes are forked.
import glocal_xml.runs  # noqa: F401
from glocal_xml.cli import main as command

# That of tqdm is shared with forked processes: one that is killed while it holds it would stop all that follow.
tqdm.set_lock(threading.RLock())

SCRIPT = Path(__file__).parents[1] / "examples" / "run_xmtc_no_trainer.py"
WORDS = [
    *("apple", "banana", "cherry", "dog", "elephant", "fox", "green", "house", "ice"),
    *("jungle", "kite", "lemon", "moon", "night", "ocean", "paper", "queen"),
]
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_TREE = ["--label_tree", '{"cluster_size": 2}', "--model_config", '{"training_beam": 2, "beam": 3, "top_k": 4}']
_HEADS = ["--experts", "none", "--blend", "false"]
# A bar of steps has no name; that of an evaluation may have one.
_BAR = re.compile(r"(?:^|[\r\n])(evaluating: )? *\d+%\|[^|]*\| (\d+/(\d+) \[)")
# Longer than any of these runs takes.
PATIENCE = 120
# In the place of an exit code.
HANGS = 1000


@dataclass(frozen=True)
class Kind:
    """A kind of training: which program, with which flags, in how many processes."""

    program: str
    flags: tuple[str, ...]
    processes: int = 1


KINDS = {
    "Trainer, dense": Kind("train", (*_HEADS,)),
    "Trainer, tree": Kind("train", (*_HEADS, *_TREE)),
    "Trainer, experts and blend": Kind("train", ()),
    "Trainer, 2 processes": Kind("train", (*_HEADS,), 2),
    "own loop, dense": Kind("loop", (*_HEADS,)),
    "own loop, tree": Kind("loop", (*_HEADS, *_TREE)),
    "own loop, experts and blend": Kind("loop", ()),
    "own loop, 2 processes": Kind("loop", (*_HEADS,), 2),
    "own loop, labels split over 2 processes": Kind("loop", (*_HEADS, "--label_shards", "2"), 2),
}


@dataclass
class Ended:
    """How a run ended: one exit code per process (negative: the signal), what it printed, and how long it took."""

    codes: list[int]
    log: str
    seconds: float

    @property
    def refused(self) -> bool:
        """Whether it ended in one line that says why, as mistakes and full disks must."""
        # Bars move up a line before it.
        lines = [line for line in self.log.splitlines() if re.search(r"(^|\r|\x1b\[A)(glocal-xml: )?error: ", line)]
        if len(self.codes) > 1:
            # What the others say, whose partner is gone, is not theirs to choose.
            return bool(lines) and 2 in self.codes
        return len(lines) == 1 and self.codes == [2] and "Traceback" not in self.log

    def marks(self, evaluation: bool) -> list[tuple[str, int]]:
        """What the bars print when a step or a batch of an evaluation is done: `3/13 [`, and for which time."""
        bars = [(mark, int(total), bool(name)) for name, mark, total in _BAR.findall(self.log)]
        # There are more steps in a training than batches in an evaluation.
        steps = max(total for _, total, name in bars if not name)
        found = [mark for mark, total, name in bars if (name or total != steps) == evaluation]
        return [(mark, found[: i + 1].count(mark)) for i, mark in enumerate(found)]


@dataclass
class Workshop:
    """A folder with an encoder and texts, in which runs are made."""

    folder: Path
    flags: list[str] = field(init=False)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        encoder = self.folder / "encoder"
        encoder.mkdir(parents=True)
        vocabulary = encoder / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
        tokenizer = BertTokenizerFast(vocab=str(vocabulary), model_max_length=32)
        tokenizer.save_pretrained(encoder)
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **_SIZES)
        AutoModel.from_config(config).save_pretrained(encoder)
        self._write("train.jsonl", range(44))
        self._write("validation.jsonl", range(44, 57))
        files = [f"--{part}_file={self.folder}/{part}.jsonl" for part in ("train", "validation")]
        self.flags = [
            *(
                f"--encoder={encoder}",
                *files,
                "--metrics_at",
                "1",
                "--per_device_train_batch_size=4",
                "--use_cpu=true",
            ),
            *("--per_device_eval_batch_size=1", "--num_train_epochs=3", "--learning_rate=1e-2", "--logging_steps=1"),
            *("--disable_tqdm=false", "--save_total_limit=2", "--encoder_dropout=true"),
        ]
        # Or every process would go through all that is imported, and copy it, when it collects garbage.
        gc.freeze()

    def _write(self, name: str, numbers: range) -> None:
        rows = []
        for i in numbers:
            words = [WORDS[i % 8], WORDS[(3 * i + 1) % 8], WORDS[8 + i % 9]]
            rows.append({"text": " ".join(words), "labels": sorted({f"is {word}" for word in words[:2]})})
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(
        self,
        kind: Kind,
        output: Path,
        *further: str,
        disturb: Callable[[list[int], Path], None] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Ended:
        """
        Trains to the end, or as far as it gets.

        Args:
            kind: What to train.
            output: Folder of the run.
            further: Further flags.
            disturb: Called with the processes and the file of their log while they run.
            prepare: Called in each process before it begins.
        """
        log = self.folder / f"{output.name}.log"
        log.write_bytes(b"")
        started, port = time.monotonic(), _free_port()
        flags = [*self.flags, *kind.flags, f"--output_dir={output}", *further]
        pids = [_fork(kind, flags, log, rank, port, prepare) for rank in range(kind.processes)]
        if disturb is not None:
            disturb(pids, log)
        codes = _wait(pids, started + PATIENCE)
        return Ended(codes, log.read_text(errors="replace"), time.monotonic() - started)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _fork(kind: Kind, flags: list[str], log: Path, rank: int, port: int, prepare: Callable[[], None] | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        target = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(target, 1)
        os.dup2(target, 2)
        # What a terminal gives, also where this was started in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1)
        if kind.processes > 1:
            # As `torchrun` does it.
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": kind.processes, "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in places.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"}
        if prepare is not None:
            prepare()
        if kind.program == "train":
            code = command(["train", *flags])
        else:
            sys.argv = [str(SCRIPT), *flags]
            runpy.run_path(str(SCRIPT), run_name="__main__")
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pids: list[int], deadline: float) -> list[int]:
    """Exit codes; once a process has failed, the others are ended, as `torchrun` does."""
    codes: dict[int, int] = {}
    grace = deadline
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in set(pids) - codes.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
                if codes[pid]:
                    grace = min(grace, time.monotonic() + 2)
        if time.monotonic() > grace:
            for pid in set(pids) - codes.keys():
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    # A run that hangs: where it stands is added to its log.
    for pid in set(pids) - codes.keys():
        os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [codes.get(pid, HANGS) for pid in pids]


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended stays to be waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def until(reached: Callable[[], bool], pids: list[int]) -> None:
    """Waits until something is so, or a process has ended, or hangs."""
    deadline = time.monotonic() + PATIENCE
    while all(map(is_running, pids)) and not reached() and time.monotonic() < deadline:
        time.sleep(0.001)


def send(pids: list[int], kind: signal.Signals, chance: random.Random) -> None:
    """One process gets a signal that kills; all get one that asks, as from `torchrun` or a terminal."""
    for pid in [chance.choice(pids)] if kind == signal.SIGKILL else pids:
        os.kill(pid, kind)


def after_mark(mark: str, times: int, delay: float, kind: signal.Signals, chance: random.Random) -> Callable:
    """A disturbance: a signal when the log holds this so many times, and a moment later."""

    def disturb(pids: list[int], log: Path) -> None:
        until(lambda: log.read_bytes().count(mark.encode()) >= times, pids)
        time.sleep(delay)
        send(pids, kind, chance)

    return disturb


def after_time(seconds: float, kind: signal.Signals, chance: random.Random) -> Callable:
    """A disturbance: a signal after a time."""

    def disturb(pids: list[int], log: Path) -> None:
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end, pids)
        send(pids, kind, chance)

    return disturb


def at_file_operation(number: int, folder: Path, tally: Path) -> Callable[[], None]:
    """
    What a process does first: watch its operations on files of a folder, and kill itself before one of them.

    Args:
        number: Which operation; with 0 none.
        folder: Where files are watched.
        tally: A file with one byte for each operation so far.
    """
    events = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}

    def prepare() -> None:
        counter = os.open(tally, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        seen = 0

        def watch(event: str, arguments: tuple) -> None:
            nonlocal seen
            if event in events and str(folder) in str(arguments[0]):
                seen += 1
                os.write(counter, b".")
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)

    return prepare


def different_weights(one: Path, two: Path) -> list[str]:
    """Names of tensors that are not the same in two models, bit by bit."""
    first, second = (load_file(folder / "model.safetensors") for folder in (one, two))
    names = sorted(first.keys() ^ second.keys())
    return names + [name for name in first.keys() & second.keys() if not _same(first[name], second[name])]


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.numpy().tobytes() == two.numpy().tobytes()


def leftovers(folder: Path) -> Iterator[str]:
    """Temporary files that a finished run must not leave."""
    for path in folder.rglob("*"):
        if re.search(r"\.[0-9a-f]{32}$|\.new$|\.old$|\.tmp$|state\.start$", path.name):
            yield str(path.relative_to(folder))
