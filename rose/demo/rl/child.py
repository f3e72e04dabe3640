"""A program of rose as a process of its own: started, minded, and never left behind."""

import fcntl
import json
import os
import select
import selectors
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any, Final

from rose.clock import BootClock, Clock
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from rose.thread import Thread, nothing_rests_on_it
from rose.units import NS_PER_S

# A line that is longer is no ready line, and no message that anybody reads.
_LINE_BYTES_MAX: Final = 64 << 10
_LINES_KEPT: Final = 20


class Child:
    """One run of a program that says on stdout, in one line of JSON, when it is ready.

    The program ends when its stdin closes; should this process die, however that goes, the kernel
    kills the program, even one that reads nothing yet. It runs in a session of its own, so what
    the terminal signals to us does not reach it, and whatever it started is killed when it ends.

    A thread of this object reads what it says and calls `on_ready` and, last, `on_end`.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_ready: Callable[[dict[str, Any]], None],
        *,
        on_end: Callable[[str], None],
        ready_within_s: float = 120.0,
        on_line: Callable[[str], None] | None = None,
        first_line: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Start the program.

        Args:
            command: program and arguments; every user of the machine can read them.
            on_ready: takes what the ready line says; must not raise.
            on_end: takes a sentence that says how it ended, when it has; must not raise.
            ready_within_s: a program that is not ready by then is killed.
            on_line: takes every line of its stderr, as it comes; must not raise.
            first_line: goes to its stdin at once: a secret, say; short enough for a pipe.
            clock: where time comes from.

        Raises:
            OSError: there is no such program.
        """
        self._on_ready = on_ready
        self._on_end = on_end
        self._on_line = on_line
        self._ready_within_s = ready_within_s
        self._clock = clock or BootClock()
        self._name = " ".join(command[:3]).splitlines()[0]
        self._said: deque[str] = deque(maxlen=_LINES_KEPT)
        self._kill_reason: str | None = None
        self._is_settled = False  # whether it is ready, or will never be
        # Guards stdin and the kill: a process is signalled only while its number is still its own.
        self._lock = threading.Lock()
        # Nothing is written to it. Only this process holds this end, until the program has ended.
        theirs, self._lifeline = os.pipe()
        with ExitStack() as undo, os.fdopen(theirs):
            undo.callback(os.close, self._lifeline)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,  # What a dead program did not take is not written again at the close.
                pass_fds=(theirs,),
                start_new_session=True,
            )
            # A parent-death signal would come when the thread that started it ends.
            fcntl.fcntl(theirs, fcntl.F_SETOWN, -self._process.pid)
            fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_ASYNC)
            undo.pop_all()
        if first_line is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # Dead already, which the thread will say.
                self._process.stdin.write(first_line.encode() + b"\n")
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        self._thread = Thread(self._mind, name="rose-child", on_failure=nothing_rests_on_it)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, or `on_end` has not been told yet."""
        return self._thread.is_alive()

    def last_lines(self) -> str:
        """Return the last of what it said on stderr."""
        return "\n".join(tuple(self._said))

    def say(self, message: Mapping[str, Any]) -> None:
        """Write a line of JSON to its stdin; does not wait.

        Raises:
            InvalidArgument: the line is longer than what a pipe takes as a whole.
            Unavailable: it has ended, or reads nothing.
        """
        line = (json.dumps(message) + "\n").encode()
        if len(line) > select.PIPE_BUF:
            raise InvalidArgument(f"a line of {len(line)} bytes: the most is {select.PIPE_BUF}")
        with self._lock:
            stdin = self._process.stdin
            if stdin is None or stdin.closed or self._process.returncode is not None:
                raise Unavailable(f"'{self._name}' has ended and hears nothing")
            try:
                os.write(stdin.fileno(), line)
            except (BlockingIOError, BrokenPipeError) as error:
                raise Unavailable(f"'{self._name}' does not read what it is told") from error

    def kill(self, reason: str = "it was killed") -> None:
        """Kill it and whatever it started, at once."""
        self._kill_reason = self._kill_reason or reason
        self._signal(signal.SIGKILL)

    def stop(self, *, patience_s: float = 10.0) -> None:
        """End it: by closing its stdin, else by SIGTERM, else by SIGKILL; then join the thread.

        Args:
            patience_s: how long each of them is given.

        Raises:
            DeadlineExceeded: it does not end even when it is killed, or a callback does not return.
        """
        with self._lock:
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.close()
        for ask in (None, signal.SIGTERM, signal.SIGKILL):
            if ask is not None:
                self._signal(ask)
            if self._thread is threading.current_thread():
                return  # From a callback: the thread that would be waited for is this one.
            self._thread.join(timeout=patience_s)
            if not self._thread.is_alive():
                return
        raise DeadlineExceeded(f"'{self._name}' does not end, {patience_s} s after it was killed")

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)

    # ---- the thread -----------------------------------------------------------------------------

    def _mind(self) -> None:
        streams = {
            self._process.stdout: _Lines(self._take_ready),
            self._process.stderr: _Lines(self._take_line),
        }
        try:
            self._listen({pipe: lines for pipe, lines in streams.items() if pipe is not None})
        finally:
            # Its number is still its own: nobody has asked for its exit code.
            self._signal(signal.SIGKILL)
            with self._lock:
                code = self._process.wait()
                os.close(self._lifeline)
                for end in (self._process.stdin, self._process.stdout, self._process.stderr):
                    if end is not None:
                        end.close()
            # Also when a callback raised: whoever minds it must hear of its end.
            self._on_end(self._sentence(code))

    def _listen(self, streams: Mapping[IO[bytes], "_Lines"]) -> None:
        """Read both pipes until the process is dead and what it had said is read."""
        ready_by_ns = self._clock.now_ns() + int(self._ready_within_s * NS_PER_S)
        died = os.pidfd_open(self._process.pid)
        with ExitStack() as stack:
            stack.callback(os.close, died)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(died, selectors.EVENT_READ)
            for pipe, lines in streams.items():
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, lines)
            is_dead = False
            while not is_dead:
                for key, _ in selector.select(self._patience_s(ready_by_ns)):
                    if key.fileobj == died:
                        is_dead = True
                    elif not key.data.read(key.fileobj):
                        selector.unregister(key.fileobj)
        # Whatever it left behind holds its pipes too; killed, it says no more.
        self._signal(signal.SIGKILL)
        for pipe, lines in streams.items():
            while lines.read(pipe):
                pass

    def _patience_s(self, ready_by_ns: int) -> float | None:
        """Return how long it may still take to be ready; None when that is settled."""
        if self._is_settled:
            return None
        left_ns = ready_by_ns - self._clock.now_ns()
        if left_ns <= 0:
            self.kill(f"it was not ready within {self._ready_within_s} s")
            self._is_settled = True
            return None
        return left_ns / NS_PER_S

    def _take_ready(self, line: str) -> None:
        """Take a line of stdout: the first says that it is ready, the others say nothing."""
        if self._is_settled:
            return
        self._is_settled = True
        try:
            ready = json.loads(line)
        except ValueError:
            ready = None
        if isinstance(ready, dict):
            self._on_ready(ready)
        else:
            self.kill(f"its first line was no JSON object: '{line[:80]}'")

    def _take_line(self, line: str) -> None:
        self._said.append(line)
        if self._on_line is not None:
            self._on_line(line)

    def _sentence(self, code: int) -> str:
        how = f"it ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"
        why = f"{self._kill_reason}; {how}" if self._kill_reason else how
        last = next((line for line in reversed(self._said) if line.strip()), None)
        said = f"; it last said: {last}" if last is not None else ""
        return f"'{self._name}': {why}{said}"


class _Lines:
    """Cuts what comes through a pipe into lines."""

    def __init__(self, take: Callable[[str], None]) -> None:
        """Hand each line to `take`."""
        self._take = take
        self._rest = b""

    def read(self, pipe: IO[bytes]) -> bool:
        """Read what is there; False when there is nothing: the end, or all was read."""
        try:
            piece = os.read(pipe.fileno(), _LINE_BYTES_MAX)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if self._rest and (not piece or len(self._rest) >= _LINE_BYTES_MAX):
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line.decode(errors="replace"))
        return bool(piece)
