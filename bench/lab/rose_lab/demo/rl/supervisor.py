"""Runs a program of rose as a child process, restarts it when it dies, and never orphans it."""

import fcntl
import json
import os
import selectors
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

from rose.clock import BootClock, Clock
from rose.config import environment_with
from rose.errors import DeadlineExceeded, sentence
from rose.thread import Thread
from rose.units import NS_PER_S

# Longer lines are cut; neither a ready line nor a useful message is longer.
_LINE_BYTES_MAX: Final = 64 << 10
_LISTENING: Final = "listening:"
_WINDOW_S: Final = 60.0  # period over which deaths are counted
_BACKOFF_S: Final = 0.2  # pause before the first restart; doubles with each death in the period
_BACKOFF_MAX_S: Final = 5.0
_READY_WITHIN_S: Final = 120.0  # time limit for the ready line; a program that misses it is killed
_STOP_S: Final = 20.0  # time limit to end after SIGTERM, and again after SIGKILL

OnReady = Callable[[int, dict[str, Any], Connection], None]


class Supervisor:
    """Runs a program until it is stopped.

    When it is ready, the program prints a JSON object in one line, or `listening: URL`, which
    counts as an object with the field `url`. It ends on SIGTERM. If this process dies for any
    reason, the kernel kills the program, even if the program has not begun to read its input. The
    program runs in its own session: the terminal's signals do not reach it, and its children are
    killed when it ends.

    For each incarnation, `on_ready` comes before `on_death`; both run in this object's thread. A
    program that is stopped on purpose reports no death.
    """

    def __init__(
        self,
        make_command: Callable[[int], Sequence[str]],
        on_ready: OnReady,
        on_death: Callable[[str, bool], None],
        *,
        on_line: Callable[[str], None] = lambda _: None,
        token: str | None = None,
        is_background: bool = False,
        restarts_max: int = 5,
        clock: Clock | None = None,
    ) -> None:
        """Start the program.

        Args:
            make_command: returns the command of an incarnation, counted from 0; every user of the
                machine can read the command, so it must hold no secret.
            on_ready: gets the incarnation, its ready line, and our end of the socket that serves as
                the program's standard input.
            on_death: gets the reason, and whether the program is given up.
            on_line: gets every other line of stdout and stderr.
            token: value of ROSE_TOKEN for the program.
            is_background: whether the program runs under SCHED_IDLE. Niceness is not enough:
                threads of serving's process share the program's cores, and a thread that waits for
                a core while it holds the interpreter lock delays serving.
            restarts_max: maximum restarts within a minute; after one more death the program is
                given up.
            clock: time source; None for the boot clock.
        """
        self._make_command = make_command
        self._on_ready = on_ready
        self._on_death = on_death
        self._on_line = on_line
        self._token = token
        self._is_background = is_background
        self._restarts_max = restarts_max
        self._clock = clock or BootClock()
        self._is_stopping = threading.Event()
        # Guards the process, so that no signal goes to a reused process number.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths_ns: deque[int] = deque()
        self._incarnation = 0
        self._last_line = ""
        self._thread = Thread(self._run, name="rose-supervisor", on_failure=self._broke)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Number of the running process; None between incarnations."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """Kill the running incarnation and its children; the next incarnation then starts."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the program for good.

        Raises:
            DeadlineExceeded: the program does not end, or a callback does not return.
        """
        self._is_stopping.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            self._thread.join(timeout=_STOP_S)
            if not self._thread.is_alive():
                return
        raise DeadlineExceeded(f"the program still runs {_STOP_S:g} s after it was killed")

    def _signal(self, number: signal.Signals) -> None:
        # Another thread holds the lock for long only while it reaps a dead process, which needs no
        # signal.
        if self._lock.acquire(timeout=_STOP_S):
            try:
                if self._process is not None:
                    os.killpg(self._process.pid, number)
            finally:
                self._lock.release()

    # ---- the thread -----------------------------------------------------------------------------

    def _broke(self, failure: BaseException) -> None:
        self._on_death(f"the thread that supervises it has failed: {sentence(failure)}", True)

    def _run(self) -> None:
        for self._incarnation in count():
            reason = self._run_once()
            if self._is_stopping.is_set():
                return
            pause_s = self._pause_s()
            if pause_s is None:
                reason += f"; given up after {len(self._deaths_ns)} deaths in {_WINDOW_S:g} s"
            self._on_death(reason, pause_s is None)
            if pause_s is None or self._is_stopping.wait(pause_s):
                return

    def _run_once(self) -> str:
        """Run one incarnation; return why it ended."""
        command = self._make_command(self._incarnation)
        self._last_line = why = ""
        with ExitStack() as stack:
            try:
                process, connection = self._start(command, stack)
            except OSError as error:
                return f"it cannot be started: {error}"
            try:
                if not self._listen(process, connection):
                    why = f"it was not ready within {_READY_WITHIN_S} s; "
            finally:
                # The process is not reaped yet, so its number is not reused.
                self._signal(signal.SIGKILL)
                with self._lock:
                    code = process.wait()
                    self._process = None
        how = f"it ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"
        last_words = f"; its last output: {self._last_line}" if self._last_line else ""
        name = " ".join(command[:3]).splitlines()[0]
        return f"'{name}': {why}{how}{last_words}"

    def _start(
        self, command: Sequence[str], stack: ExitStack
    ) -> tuple[subprocess.Popen[bytes], Connection]:
        """Start the program; `stack` closes its resources.

        Raises:
            OSError: the program cannot be started.
        """
        # Nothing is written to the lifeline, and only this process holds its write end.
        theirs, lifeline = os.pipe()
        stack.callback(os.close, lifeline)
        # `connection` is not closed here, since another thread may be reading from it; it closes
        # with its last reference.
        connection, stdin = Pipe()
        with os.fdopen(theirs), stdin, self._lock:
            process = subprocess.Popen(
                command,
                stdin=stdin.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env=environment_with(self._token),
                pass_fds=(theirs,),
                start_new_session=True,
            )
            # When this process dies, the pipe closes, and the kernel kills the program and its
            # children. PR_SET_PDEATHSIG would kill the program when the thread that starts it ends.
            fcntl.fcntl(theirs, fcntl.F_SETOWN, -process.pid)
            fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_ASYNC)
            self._process = process
        if process.stdout is not None:
            stack.enter_context(process.stdout)
        if self._is_background:
            # Threads that the program starts later inherit the policy.
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        return process, connection

    def _listen(self, process: subprocess.Popen[bytes], connection: Connection) -> bool:
        """Read the output until the program is dead; return False if it was not ready in time."""
        ready_by_ns = self._clock.now_ns() + int(_READY_WITHIN_S * NS_PER_S)
        is_ready, rest = False, b""
        with ExitStack() as stack:
            died = os.pidfd_open(process.pid)
            stack.callback(os.close, died)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(died, selectors.EVENT_READ)
            pipe = process.stdout.fileno() if process.stdout is not None else died
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ)
            if self._is_stopping.is_set():
                return True  # `stop` may have come before there was a process to signal.
            while True:
                left_s = None if is_ready else (ready_by_ns - self._clock.now_ns()) / NS_PER_S
                if left_s is not None and left_s <= 0:
                    return False
                keys = {key.fd for key, _ in selector.select(left_s)}
                if died in keys:
                    self._signal(signal.SIGKILL)  # Living children could keep the pipe open.
                if not keys:
                    continue
                while piece := _read(pipe):
                    *lines, rest = (rest + piece).split(b"\n")
                    rest = rest[-_LINE_BYTES_MAX:]
                    for line in lines:
                        is_ready = self._take(line, connection, is_ready=is_ready)
                    if died not in keys:
                        break
                if died in keys:
                    if rest:
                        self._take(rest, connection, is_ready=True)
                    return True
                if piece is None:
                    selector.unregister(pipe)

    def _take(self, line: bytes, connection: Connection, *, is_ready: bool) -> bool:
        """Process a line of output; return whether the program is ready."""
        text = line.decode(errors="replace")
        if not is_ready:
            ready = _ready(text)
            if ready is not None:
                self._on_ready(self._incarnation, ready, connection)
                return True
        if text.strip():
            self._last_line = text
        self._on_line(text)
        return is_ready

    def _pause_s(self) -> float | None:
        """Count a death; return the pause in seconds before the next start, None to give up."""
        now_ns = self._clock.now_ns()
        self._deaths_ns.append(now_ns)
        while now_ns - self._deaths_ns[0] > _WINDOW_S * NS_PER_S:
            self._deaths_ns.popleft()
        deaths = len(self._deaths_ns)
        if deaths > self._restarts_max:
            return None
        return min(_BACKOFF_S * 2.0 ** (deaths - 1), _BACKOFF_MAX_S)


def _ready(line: str) -> dict[str, Any] | None:
    """Return the object of a ready line; None for any other line."""
    word, _, url = line.partition(" ")
    if word == _LISTENING:
        return {"url": url.split()[0]} if url.split() else None
    with suppress(ValueError):
        if isinstance(ready := json.loads(line), dict):
            return ready
    return None


def _read(pipe: int) -> bytes | None:
    """Read a pipe without blocking; return b"" if nothing is there yet, None at the end."""
    try:
        return os.read(pipe, _LINE_BYTES_MAX) or None
    except BlockingIOError:
        return b""
