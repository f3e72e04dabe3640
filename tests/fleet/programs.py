"""Programs of a fleet at fixed addresses, which faults end and which come back there."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import LONG_S


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Program:
    """A program of rose that can be killed, stopped and started again with the same arguments.

    Args:
        name: name of its log in `folder`.
        arguments: arguments of Python.
        folder: folder of the log.
        port: port at which it listens; None if it listens at none.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], folder: Path, *, port: int | None
    ) -> None:
        self.name, self.port = name, port
        self._arguments, self._log = arguments, folder / f"{name}.log"
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def wait_listening(self) -> None:
        end_s = time.monotonic() + LONG_S
        while True:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end_s, self.log()
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LONG_S)

    def log(self) -> str:
        return f"{self.name}: {self._log.read_text(errors='replace')[-2000:]}"
