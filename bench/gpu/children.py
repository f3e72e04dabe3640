"""Child processes with a time limit: a hang on a device costs only its own part of the run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LABORATORY: Final = ROOT / "bench" / "lab"
# Time for a stopped child to write its tracebacks, and for a killed child to end. A child that
# waits in the driver may never end; then it is left behind.
GRACE_S: Final = 2.0
# Bytes kept of each log, at its start and end: together less than a megabyte.
LOG_BYTES_MAX: Final = 1 << 20


class Deadline:
    """The remaining time of the whole run."""

    def __init__(self, total_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end_s = now() + total_s

    def left_s(self) -> float:
        return max(0.0, self._end_s - self._now())

    def less(self, reserve_s: float) -> "Deadline":
        """Return a deadline that is `reserve_s` earlier, to leave that time to others."""
        return Deadline(self._end_s - reserve_s - self._now(), now=self._now)

    def at_most(self, limit_s: float) -> float:
        """Return `limit_s`, or the remaining time if it is shorter."""
        return min(limit_s, self.left_s())


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a child; `status` is None if it was stopped at its limit."""

    status: int | None
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.status == 0

    def reason(self, last_line: str = "") -> str:
        """Return the reason of its failure."""
        if self.status is None and self.seconds == 0:
            return "no time was left for it"
        if self.status is None:
            return f"stopped after {self.seconds:.0f} s"
        how = f"signal {-self.status}" if self.status < 0 else f"status {self.status}"
        return f"{how}: {last_line}" if last_line else how


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child, with this checkout first on its path."""
    paths = [str(ROOT), str(LABORATORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A kernel that loads at its first launch can wait for a parked borrower.
    eager = {"CUDA_MODULE_LOADING": "EAGER"}
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **eager}
    return os.environ | ours | more


def _stop(child: "subprocess.Popen[bytes]") -> None:
    """End a child and all of its descendants."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # it has ended, and left nothing behind
            os.killpg(child.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)


def run_child(
    command: Sequence[str],
    *,
    log: Path,
    limit_s: float,
    more_environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Ending:
    """Run a command in `folder`; append its output to `log`.

    On every exit, also an interrupt, the child and its descendants are ended.
    """
    began_s = time.monotonic()
    if limit_s <= 0:
        return Ending(None, 0.0)
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(command)}\n".encode())
        output.flush()
        # A separate group, so that its descendants end with it.
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**(more_environment or {})),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _stop(child)
    return Ending(status, time.monotonic() - began_s)


def last_line(log: Path) -> str:
    """Return the last nonempty line of a log, shortened."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "")


def shorten(log: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Remove the middle of a log that is too long."""
    if not log.exists() or (size := log.stat().st_size) <= bytes_max:
        return
    half = bytes_max // 2 - 64
    with log.open("rb") as file:
        head = file.read(half)
        file.seek(size - half)
        tail = file.read()
    log.write_bytes(head + f"\n... {size - 2 * half} bytes are left out ...\n".encode() + tail)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
