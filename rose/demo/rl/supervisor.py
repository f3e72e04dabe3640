"""A program of rose as a process of its own: started again when it dies, and never left behind."""

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

# A line that is longer is no ready line, and no message that anybody reads.
_LINE_BYTES_MAX: Final = 64 << 10
_WINDOW_S: Final = 60.0  # how long a death is held against a program
_BACKOFF_MAX_S: Final = 5.0

OnReady = Callable[[int, dict[str, Any], Connection], None]


class Supervisor:
    """Runs a program until it is stopped.

    The program prints a JSON object in one line when it is ready. It ends by SIGTERM; should this
    process die, however that goes, the kernel kills the program, even one that reads nothing yet.
    It runs in a session of its own, so what the terminal signals to us does not reach it, and
    whatever it started is killed when it ends.

    Of one incarnation, `on_ready` comes before `on_death`; both come from the thread of this
    object. A program that is stopped on purpose has no death.
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
        backoff_s: float = 0.2,
        ready_within_s: float = 120.0,
        stop_s: float = 20.0,
        clock: Clock | None = None,
    ) -> None:
        """Start the program.

        Args:
            make_command: makes the command of an incarnation, counted from 0; every user of the
                machine can read it.
            on_ready: takes the incarnation, what its ready line says, and the other end of its
                standard input, which is a socket.
            on_death: takes why it ended, and whether it is given up: no start follows.
            on_line: takes every other line of its stdout and stderr, as it comes.
            token: the program finds it in ROSE_TOKEN.
            is_background: the program runs in time that nobody else wants. Niceness would not do:
                what serves shares an interpreter lock with what runs on other cores, and a thread
                that waits for a core while it holds that lock holds serving up.
            restarts_max: within a minute; one more death, and the program is given up.
            backoff_s: pause before the first restart, doubled with every death in that minute.
            ready_within_s: a program that is not ready by then is killed, which is a death.
            stop_s: how long it is given to end after SIGTERM, and after SIGKILL.
            clock: where time comes from.
        """
        self._make_command = make_command
        self._on_ready = on_ready
        self._on_death = on_death
        self._on_line = on_line
        self._token = token
        self._is_background = is_background
        self._restarts_max = restarts_max
        self._backoff_s = backoff_s
        self._ready_within_s = ready_within_s
        self._stop_s = stop_s
        self._clock = clock or BootClock()
        self._is_stopping = threading.Event()
        # Guards the process: one is signalled only while its number is still its own.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths_ns: deque[int] = deque()
        self._incarnation = 0
        self._last_line = ""
        self._thread = Thread(self._run, name="rose-supervisor", on_failure=self._broke)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The number of the process that runs now."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """Kill the incarnation that runs now, and whatever it started; the next follows."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """End the program and start it no more.

        Raises:
            DeadlineExceeded: it does not end, or a callback does not return.
        """
        self._is_stopping.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            self._thread.join(timeout=self._stop_s)
            if not self._thread.is_alive():
                return
        raise DeadlineExceeded(f"a program does not end, {self._stop_s:g} s after it was killed")

    def _signal(self, number: signal.Signals) -> None:
        # The lock is held for long only while a dead process is reaped, which needs no signal.
        if self._lock.acquire(timeout=self._stop_s):
            try:
                if self._process is not None:
                    os.killpg(self._process.pid, number)
            finally:
                self._lock.release()

    # ---- the thread -----------------------------------------------------------------------------

    def _broke(self, failure: BaseException) -> None:
        self._on_death(f"its supervisor has ended: {sentence(failure)}", True)

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
                    why = f"it was not ready within {self._ready_within_s} s; "
            finally:
                # Its number is still its own: nobody has asked for its exit code.
                self._signal(signal.SIGKILL)
                with self._lock:
                    code = process.wait()
                    self._process = None
        how = f"it ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"
        said = f"; it last said: {self._last_line}" if self._last_line else ""
        name = " ".join(command[:3]).splitlines()[0]
        return f"'{name}': {why}{how}{said}"

    def _start(
        self, command: Sequence[str], stack: ExitStack
    ) -> tuple[subprocess.Popen[bytes], Connection]:
        """Start the program; what belongs to it is closed with `stack`.

        Raises:
            OSError: there is no such program.
        """
        # Nothing is written to the lifeline. This process alone holds its other end.
        theirs, lifeline = os.pipe()
        stack.callback(os.close, lifeline)
        # Not closed here: another thread may be reading. It closes when nobody has it any more.
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
            # A parent-death signal would come when the thread that started it ends.
            fcntl.fcntl(theirs, fcntl.F_SETOWN, -process.pid)
            fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_ASYNC)
            self._process = process
        if process.stdout is not None:
            stack.enter_context(process.stdout)
        if self._is_background:
            # Its other threads, which come later, do as the first.
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        return process, connection

    def _listen(self, process: subprocess.Popen[bytes], connection: Connection) -> bool:
        """Read what the program says until it is dead; False if it was not ready in time."""
        ready_by_ns = self._clock.now_ns() + int(self._ready_within_s * NS_PER_S)
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
                    self._signal(signal.SIGKILL)  # What it left behind would talk on.
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
        """Take a line; return whether the program is ready."""
        text = line.decode(errors="replace")
        if not is_ready:
            with suppress(ValueError):
                if isinstance(ready := json.loads(text), dict):
                    self._on_ready(self._incarnation, ready, connection)
                    return True
        if text.strip():
            self._last_line = text
        self._on_line(text)
        return is_ready

    def _pause_s(self) -> float | None:
        """Note a death; return how long to wait before the next start, None for no more."""
        now_ns = self._clock.now_ns()
        self._deaths_ns.append(now_ns)
        while now_ns - self._deaths_ns[0] > _WINDOW_S * NS_PER_S:
            self._deaths_ns.popleft()
        deaths = len(self._deaths_ns)
        if deaths > self._restarts_max:
            return None
        return min(self._backoff_s * 2.0 ** (deaths - 1), _BACKOFF_MAX_S)


def _read(pipe: int) -> bytes | None:
    """Return what is in a pipe; empty if nothing is there yet, None at its end."""
    try:
        return os.read(pipe, _LINE_BYTES_MAX) or None
    except BlockingIOError:
        return b""
