"""The trainer's process as its parent holds it."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import msgspec

from rose.config import environment_with
from rose.errors import Unavailable
from rose_lab.demo.rl.messages import Reply, submit
from rose_lab.demo.rl.settings import TrainerOptions, TrainerSettings
from rose_lab.demo.rl.trajectory import Trajectory

ROOT = Path(__file__).resolve().parents[4]
TOKEN = "5e" * 32


def options(model: Path, folder: Path, **changes) -> TrainerOptions:
    """Options of a trainer that publishes each lesson at once."""
    settings = TrainerSettings(lr=1e-3, batch=4, publish_every_s=0.0, checkpoint_every=2)
    plain = TrainerOptions(str(model), 0, "test", str(folder / "checkpoint"), 4, settings)
    return replace(plain, **changes)


class TrainerProcess:
    """One incarnation of the trainer; `close` or `kill` ends it."""

    def __init__(
        self,
        options: TrainerOptions,
        *,
        popen: Callable[..., subprocess.Popen] = subprocess.Popen,
    ) -> None:
        words = msgspec.json.encode(options).decode()
        self._connection, stdin = Pipe()
        with stdin:
            self._process = popen(
                [sys.executable, "-m", "rose_lab.demo.rl.program", words],
                stdin=stdin.fileno(),
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env=environment_with(TOKEN),
            )
        if not (line := self._process.stdout.readline()):
            self.kill()
            raise Unavailable("the trainer ended before it was ready")
        self.ready = SimpleNamespace(**msgspec.json.decode(line))
        self.pid = self._process.pid

    def submit(self, trajectories: Sequence[Trajectory]) -> Reply:
        return submit(self._connection, trajectories)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit status."""
        status = self._process.wait(200.0)
        self._process.stdout.close()
        self._connection.close()
        return status

    def close(self) -> int:
        """Close its standard input, and wait until it has saved and ended."""
        self._connection.close()
        return self.wait()

    def kill(self) -> int:
        """End it at once; what was not saved is lost."""
        self._process.kill()
        return self.wait()
