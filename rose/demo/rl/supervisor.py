"""Keeps a program running: starts it again when it dies, and says so when it gives up."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rose.clock import BootClock, Clock
from rose.demo.rl.child import Child
from rose.errors import DeadlineExceeded, InvalidArgument, sentence
from rose.thread import Thread
from rose.units import NS_PER_S

_MOST: Final = 1e6  # A wait of epoll is a number of milliseconds below 2^31.
_RESTARTS_MOST: Final = 1000  # 2.0^count is a number.


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a program that dies is started again.

    Args:
        restarts_max: within `window_s`, at most 1000; one more death, and it is given up.
        window_s: how long a death is held against it, > 0.
        backoff_s: pause before the first restart, doubled with every death in the window, >= 0.
        backoff_max_s: the longest pause, >= 0.
        ready_within_s: a program that is not ready by then is killed, which is a death; > 0.
        stop_s: how long it is given to end of its own accord, and again after SIGTERM, > 0.
    """

    restarts_max: int = 5
    window_s: float = 60.0
    backoff_s: float = 0.2
    backoff_max_s: float = 5.0
    ready_within_s: float = 120.0
    stop_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            InvalidArgument: the sentence names the number.
        """
        count = self.restarts_max
        is_sound = {
            "restarts_max": count in range(_RESTARTS_MOST + 1),
            "window_s": 0 < self.window_s <= _MOST,
            "backoff_s": 0 <= self.backoff_s <= _MOST,
            "backoff_max_s": 0 <= self.backoff_max_s <= _MOST,
            "ready_within_s": 0 < self.ready_within_s <= _MOST,
            "stop_s": 0 < self.stop_s <= _MOST,
        }
        for name, holds in is_sound.items():
            if not holds:
                raise InvalidArgument(
                    f"RestartPolicy({name}={getattr(self, name)}) is out of range"
                )


@dataclass(frozen=True, slots=True)
class Death:
    """A program died.

    Args:
        incarnation: which start of it.
        reason: a sentence.
        is_final: whether it is given up: no start follows.
    """

    incarnation: int
    reason: str
    is_final: bool


_POLICY: Final = RestartPolicy()


class Supervisor:
    """Runs a program until it is stopped.

    Of one incarnation, `on_ready` comes before `on_death`; both come from threads of this object.
    A program that is stopped on purpose has no death.
    """

    def __init__(
        self,
        make_command: Callable[[int], Sequence[str]],
        on_ready: Callable[[int, dict[str, Any]], None],
        on_death: Callable[[Death], None],
        *,
        policy: RestartPolicy = _POLICY,
        on_line: Callable[[str], None] | None = None,
        first_line: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Start the program.

        Args:
            make_command: makes the command of an incarnation, counted from 0.
            on_ready: takes the incarnation and what its ready line says.
            on_death: takes each death.
            policy: when to start again.
            on_line: takes every line of its stderr.
            first_line: goes to the stdin of each incarnation.
            clock: where time comes from.
        """
        self._make_command = make_command
        self._on_ready = on_ready
        self._on_death = on_death
        self._policy = policy
        self._on_line = on_line
        self._first_line = first_line
        self._clock = clock or BootClock()
        self._is_stopping = threading.Event()
        self._changed = threading.Event()  # it is to be stopped, or the child ended
        self._lock = threading.Lock()  # guards the child and why it ended
        self._child: Child | None = None
        self._end: str | None = None
        self._deaths_ns: deque[int] = deque()
        self._incarnation = 0
        self._error: DeadlineExceeded | None = None  # read when the thread has ended
        self._thread = Thread(self._run, name="rose-supervisor", on_failure=self._broke)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The number of the process that runs now."""
        with self._lock:
            return None if self._child is None else self._child.pid

    def kill(self) -> None:
        """Kill the incarnation that runs now, if one does; the next follows."""
        with self._lock:
            child = self._child
        if child is not None:
            child.kill()

    def stop(self) -> None:
        """End the program and start it no more.

        Raises:
            DeadlineExceeded: it does not end, or a callback does not return.
        """
        self._is_stopping.set()
        self._changed.set()
        self._thread.join(timeout=4 * self._policy.stop_s)
        if self._thread.is_alive():
            raise DeadlineExceeded("a program that was to be stopped has not ended")
        if self._error is not None:
            raise self._error

    # ---- the thread -----------------------------------------------------------------------------

    def _broke(self, failure: BaseException) -> None:
        """Leave no child behind that nobody minds."""
        self.kill()
        reason = f"its supervisor has ended: {sentence(failure)}"
        self._on_death(Death(self._incarnation, reason, is_final=True))

    def _run(self) -> None:
        incarnation = 0
        while not self._is_stopping.is_set():
            self._incarnation = incarnation
            try:
                reason = self._run_once(incarnation)
            except DeadlineExceeded as error:
                self._error = error
                if not self._is_stopping.is_set():
                    self._on_death(Death(incarnation, str(error), is_final=True))
                return
            if self._is_stopping.is_set():
                return
            pause_s = self._pause_s()
            if pause_s is None:
                reason += (
                    f"; given up after {len(self._deaths_ns)} deaths in {self._policy.window_s} s"
                )
            self._on_death(Death(incarnation, reason, is_final=pause_s is None))
            if pause_s is None or self._is_stopping.wait(pause_s):
                return
            incarnation += 1

    def _run_once(self, incarnation: int) -> str:
        """Run one incarnation; return why it ended.

        Raises:
            DeadlineExceeded: it does not end; it can still be killed.
        """
        try:
            with self._lock:  # Who is told that it is ready finds it here.
                child = self._child = Child(
                    self._make_command(incarnation),
                    partial(self._on_ready, incarnation),
                    on_end=self._ended,
                    ready_within_s=self._policy.ready_within_s,
                    on_line=self._on_line,
                    first_line=self._first_line,
                    clock=self._clock,
                )
        except OSError as error:
            return f"it cannot be started: {error}"
        self._changed.wait()
        child.stop(patience_s=self._policy.stop_s)
        with self._lock:
            self._child = None
            reason, self._end = self._end, None
        if not self._is_stopping.is_set():
            self._changed.clear()
        return reason or "it was stopped"

    def _ended(self, reason: str) -> None:
        with self._lock:
            self._end = reason
        self._changed.set()

    def _pause_s(self) -> float | None:
        """Note a death; return how long to wait before the next start, None for no more."""
        now_ns = self._clock.now_ns()
        self._deaths_ns.append(now_ns)
        while now_ns - self._deaths_ns[0] > self._policy.window_s * NS_PER_S:
            self._deaths_ns.popleft()
        deaths = len(self._deaths_ns)
        if deaths > self._policy.restarts_max:
            return None
        return min(self._policy.backoff_s * 2.0 ** (deaths - 1), self._policy.backoff_max_s)
