"""What a program of the circle hears of its parent, and when it is to end."""

import os
import select
import signal
import sys
import threading
from typing import Final

LOOK_S: Final = 0.5  # how long the end of standard input may go unnoticed


def heed_signals() -> threading.Event:
    """Return what SIGTERM sets from now on; for the main thread."""
    stop = threading.Event()
    # Control-C reaches the whole group of processes; the parent decides what it means for us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())  # noqa: ARG005
    return stop


def input_has_ended() -> bool:
    """Whether the parent is gone; looks for a while. What comes in before that says nothing."""
    source = sys.stdin.fileno()
    ready, _, _ = select.select([source], [], [], LOOK_S)
    return bool(ready) and not os.read(source, 1 << 12)
