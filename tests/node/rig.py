"""What the tests of workers in other processes share."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from rose_lab.demo.rl.supervisor import Supervisor
from tests.waiting import wait_for


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    wait_for(lambda: not (set(threading.enumerate()) - before))


class Program:
    """A program that is started once, and what its supervisor told."""

    def __init__(self, command: list[str], **options) -> None:
        self.ready: list[dict] = []
        self.ends: list[str] = []
        self.order: list[str] = []
        self.lines: list[str] = []
        self.supervisor = Supervisor(
            lambda _incarnation: command,
            self._on_ready,
            lambda reason, _is_final: (self.ends.append(reason), self.order.append("end")),
            on_line=self.lines.append,
            **{"restarts_max": 0, **options},
        )

    def _on_ready(self, _incarnation: int, ready: dict, connection: Connection) -> None:
        self.connection = connection
        self.ready.append(ready)
        self.order.append("ready")

    def say(self, message: object) -> None:
        """Write a line to its stdin."""
        os.write(self.connection.fileno(), json.dumps(message).encode() + b"\n")

    def end(self) -> str:
        """Let it end by SIGTERM, and return how it did."""
        os.kill(self.supervisor.pid, signal.SIGTERM)
        wait_for(lambda: self.ends)
        return self.ends[0]
