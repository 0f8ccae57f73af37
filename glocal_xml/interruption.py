"""A polite request to stop (SIGTERM) gets the same answer as Ctrl-C, so that what was begun is cleaned up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Within the block SIGTERM raises `KeyboardInterrupt`; SIGINT itself may be ignored in the background."""
    # Python lets the main thread alone decide on signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
