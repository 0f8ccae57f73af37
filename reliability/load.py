"""
Many people at once on the page of `glocal-xml demo`, on this machine alone, with texts of all lengths.

    make load                                                # 32 clients for 5 minutes, and a figure of the memory
    python reliability/load.py --clients 4 --seconds 10      # a short form, without figure

Every request must be answered, and the memory of the server must level off: in the last third of the time it is at
most a tenth above what it was in the second. Exit code 1 where one does not hold.
"""

import argparse
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
from gradio_client import Client, handle_file
from tiny_runs import KINDS, WORDS, Workshop

LONGEST = 1_000_000


class Clients:
    """Clients of one page, and what became of their requests."""

    def __init__(self, url: str, seed: int):
        self.url, self.seed = url, seed
        self.counts, self.errors, self.seconds = Counter(), [], []
        self.lengths: list[int] = []
        self.ready, self.over = threading.Semaphore(0), threading.Event()
        self._lock = threading.Lock()

    def work(self, number: int, rows: Path) -> None:
        """Asks until the time is over."""
        chance = random.Random(self.seed + number)
        client = Client(self.url, verbose=False)
        self.ready.release()
        while not self.over.is_set():
            length = min(LONGEST, round(10 ** chance.uniform(0, 6.05)))
            text = make_text(length, chance)
            kind = chance.choices(["predict", "explain", "tag_file"], [8, 1, 1])[0]
            started = time.monotonic()
            try:
                if kind == "predict":
                    answer = client.predict(text, api_name="/predict")
                    good = all(
                        item["label"].startswith("is ") and 0 <= item["score"] <= 1 for item in labels_of(answer)
                    )
                elif kind == "explain":
                    good = bool(client.predict(text, ["is apple"], api_name="/explain"))
                else:
                    good = bool(client.predict(handle_file(str(rows)), "text", 3, 0.0, "", api_name="/tag_file"))
                error = None if good else f"{kind}: an answer that is none"
            except Exception as problem:
                error = f"{kind}, {length} characters: {type(problem).__name__}: {problem}"
            with self._lock:
                self.counts[kind] += 1
                self.lengths.append(length)
                self.seconds.append(time.monotonic() - started)
                if error is not None:
                    self.errors.append(error)


def labels_of(answer: object) -> list[dict]:
    """The labels of an answer, which has them as a list or under a name."""
    return (
        answer if isinstance(answer, list) else answer["predictions"] if "predictions" in answer else answer["labels"]
    )


def make_text(length: int, chance: random.Random) -> str:
    """Words, up to a number of characters."""
    words = " ".join(chance.choices(WORDS, k=min(length, 2000)))
    return (words * (length // len(words) + 1))[:length]


def memory(process: psutil.Process) -> float:
    """Megabytes of a process and of those that it started."""
    return sum(part.memory_info().rss for part in [process, *process.children(recursive=True)]) / 2**20


def figure(curve: list[tuple[float, float]], clients: int, path: str) -> None:
    """Draws the memory of the server over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    axes.plot(*zip(*curve, strict=True), color="#1f6f8b")
    axes.set(xlabel="seconds", ylabel="memory of the server (MB)", ylim=(0, None))
    axes.set_title(f"The page under {clients} clients, texts of 1 to {LONGEST:,} characters", fontsize=10)
    axes.grid(alpha=0.3)
    pyplot.savefig(path, dpi=120)


def main(argv: list[str] | None = None) -> int:
    """Serves a tiny model, asks it, and tells what was seen; 1 where a promise did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32, help="how many ask at once (default: 32)")
    parser.add_argument("--seconds", type=float, default=300, help="for how long (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="which texts (default: 0)")
    parser.add_argument("--figure", help="file for a figure of the memory")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        workshop = Workshop(Path(folder, "workshop"))
        if any(workshop.run(KINDS["Trainer, experts and blend"], Path(folder, "model")).codes):
            raise RuntimeError("no model to serve")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = [sys.executable, "-m", "glocal_xml", "demo", f"{folder}/model", "--port", str(port)]
        server = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().split()[4]
            held = ask(server, url, Path(folder, "workshop", "validation.jsonl"), args)
        finally:
            server.terminate()
            errors = server.communicate(timeout=60)[1]
        if "Traceback" in errors:
            print(f"The server printed a traceback:\n{errors[-3000:]}")
    return 0 if held and "Traceback" not in errors else 1


def ask(server: subprocess.Popen, url: str, rows: Path, args: argparse.Namespace) -> bool:
    """Lets all clients ask and watches the memory."""
    clients = Clients(url, args.seed)
    threads = [threading.Thread(target=clients.work, args=(i, rows), daemon=True) for i in range(args.clients)]
    for thread in threads:
        thread.start()
    for _ in threads:
        clients.ready.acquire()
    started, process = time.monotonic(), psutil.Process(server.pid)
    curve = [(0.0, memory(process))]
    while curve[-1][0] < args.seconds:
        time.sleep(min(1.0, args.seconds / 20))
        curve.append((time.monotonic() - started, memory(process)))
    clients.over.set()
    for thread in threads:
        # Whoever has asked gets an answer.
        thread.join(timeout=300)
    waiting = sum(thread.is_alive() for thread in threads)
    thirds = [max(size for moment, size in curve if i <= 3 * moment / args.seconds < i + 1) for i in range(3)]
    for error in clients.errors[:10]:
        print(error[:500])
    requests, times = sum(clients.counts.values()), sorted(clients.seconds)
    asked = f"{args.clients} clients, {args.seconds:.0f} s: {requests} requests {dict(clients.counts)}"
    print(f"{asked}, {len(clients.errors)} errors, {waiting} without an answer")
    sizes = (
        f"texts of {min(clients.lengths):,} to {max(clients.lengths):,} characters, {sum(clients.lengths):,} in all"
    )
    print(f"{sizes}; median answer {times[len(times) // 2]:.2f} s, slowest {times[-1]:.2f} s")
    print("largest memory in each third: " + ", ".join(f"{size:.0f} MB" for size in thirds))
    if args.figure:
        figure(curve, args.clients, args.figure)
    return not clients.errors and not waiting and thirds[2] <= 1.1 * thirds[1]


if __name__ == "__main__":
    sys.exit(main())
