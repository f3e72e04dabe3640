"""The trainer's process as its parent holds it."""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec
from typing_extensions import Self

from rose.clock import Clock
from rose.demo.rl.messages import FORMAT, Ready
from rose.errors import CorruptData, DeadlineExceeded, Unavailable
from rose.units import NS_PER_S

PROGRAM: Final = "rose.demo.rl.program"
_START_S: Final = 120.0  # importing torch on a busy core takes many seconds
_END_S: Final = 60.0  # a step of training is finished, and a checkpoint written
_LINE_MAX: Final = 1 << 16
_TOKEN_COMES: Final = {False: (), True: ("--weights-token-on-stdin",)}


class TrainerProcess:
    """One incarnation of the trainer; `close` or `kill` ends it.

    Args:
        arguments: of `rose.demo.rl.program`.
        clock: for the deadline.
        folder: to run in; None for the parent's.
        module: what is run.
        weights_token: of an earlier incarnation: with its address among the arguments, receivers
            find this one where they found that. It goes through the pipe, where nobody sees it.
        start_s: how long it may take to be ready.
        popen: what starts it; None for a new interpreter.

    Raises:
        DeadlineExceeded: it was not ready in time; it was killed.
        Unavailable: it ended before it was ready; it has said why on standard error.
        CorruptData: what it said is no `Ready`; it was killed.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        clock: Clock,
        folder: Path | None = None,
        module: str = PROGRAM,
        weights_token: str | None = None,
        start_s: float = _START_S,
        popen: Callable[..., subprocess.Popen] | None = None,
    ) -> None:
        self._process = (popen or subprocess.Popen)(
            [sys.executable, "-m", module, *arguments, *_TOKEN_COMES[weights_token is not None]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
        )
        with contextlib.ExitStack() as undo:
            # Whatever happens before it is ready, an interrupt too, must not leave it behind.
            undo.callback(self.kill)
            if weights_token is not None:
                _write(self._process, weights_token.encode() + b"\n")
            self.ready = _read_ready(self._process, clock, start_s)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def close(self, *, timeout_s: float = _END_S) -> int:
        """Let it finish its step and save, then kill it if it has not ended in time.

        Returns:
            Its exit status; 0 when it saved.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._ended()

    def kill(self) -> int:
        """End it at once; what was not saved is lost."""
        self._process.kill()
        return self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ended(self) -> int:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return self._process.wait()


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Send a line; a process that has ended already is found out when it is read from."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()


def _read_ready(process: subprocess.Popen[bytes], clock: Clock, start_s: float) -> Ready:
    deadline_ns = clock.now_ns() + int(start_s * NS_PER_S)
    line = b""
    while not line.endswith(b"\n"):
        left_s = (deadline_ns - clock.now_ns()) / NS_PER_S
        if left_s <= 0:
            raise DeadlineExceeded(f"the trainer was not ready within {start_s} s")
        if process.stdout is None or not select.select([process.stdout], [], [], left_s)[0]:
            continue
        if not (more := os.read(process.stdout.fileno(), _LINE_MAX)) or len(line) > _LINE_MAX:
            raise Unavailable("the trainer ended before it was ready: see what it said last")
        line += more
    try:
        ready = msgspec.json.decode(line, type=Ready)
    except msgspec.DecodeError as error:
        raise CorruptData(f"the trainer's first line cannot be read: {error}") from error
    if ready.format != FORMAT:
        raise CorruptData(f"the trainer speaks format {ready.format}, this parent {FORMAT}")
    return ready
