"""Programs that move weights, as processes whose events a test waits for, and checkpoints."""

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from rose.checkpoints.checkpoint import open_checkpoint
from rose.checkpoints.live import create_checkpoint
from tests.checkpoints.mapped import mapped

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 200.0
TOKEN = secrets.token_hex(32)
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "layer.weight": ("BF16", (1100, 2000)),
    "layer.bias": ("F32", (77,)),
    "count": ("I64", (3,)),
}


def make_checkpoint(folder: Path, seed: int, *, base: Path | None = None) -> Path:
    """Make a checkpoint: of noise, or what a base is with few of its elements changed."""
    create_checkpoint(folder, SHAPES)
    rng = np.random.default_rng(seed)
    before = None if base is None else open_checkpoint(base)
    for name, row in mapped(folder).items():
        if before is None:
            row[:] = rng.integers(0, 60_000, row.size)
        else:
            row[:] = before.tensors[name].units(0, row.size)
            row[rng.random(row.size) < 0.01] += 1
            row[0] += 1
    return folder


def are_alike(one: Path, other: Path) -> bool:
    """Return whether two checkpoints have the same bits."""
    mine, its = open_checkpoint(one).tensors, open_checkpoint(other).tensors
    return mine.keys() == its.keys() and all(
        np.array_equal(mine[name].units(0, mine[name].count), its[name].units(0, mine[name].count))
        for name in mine
    )


class Program:
    """`rose ...` as a process; its events are lines of JSON."""

    def __init__(self, *arguments: object, environment: dict[str, str] | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        command = [sys.executable, "-m", "rose.cli.main", *map(str, arguments), "--json"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ROSE_TOKEN": TOKEN, **(environment or {})},
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, event: str, **fields: object) -> dict[str, Any]:
        """Wait for an event with these fields."""
        while True:
            try:
                line = self._lines.get(timeout=LONG_S)
            except queue.Empty:
                raise AssertionError(f"no {event} {fields} came: {self.events}") from None
            assert line is not None, f"it ended without {event} {fields}: {self.events}"
            said = json.loads(line)
            self.events.append(said)
            if said["event"] == event and fields.items() <= said.items():
                return said

    def send(self, number: int) -> None:
        """Signal it."""
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Signal it; return its status and what it wrote on stderr."""
        self.send(number)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for its end."""
        assert self._process.stderr is not None
        error = self._process.stderr.read()
        status = self._process.wait(LONG_S)
        self._thread.join(LONG_S)
        while (line := self._lines.get(timeout=LONG_S)) is not None:
            self.events.append(json.loads(line))
        return status, error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LONG_S)
        self._thread.join(LONG_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
