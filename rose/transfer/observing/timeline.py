"""A timeline of an update, as JSON for Perfetto and Chrome.

Times are CLOCK_BOOTTIME, shared by all processes of a machine, so that their files can be merged.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rose.clock import BootClock, Clock

SPANS_MAX: Final = 1 << 16
CLOCK: Final = "CLOCK_BOOTTIME"
_NS_PER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """A period of work.

    Args:
        name: kind of work: pack, append, wire, stage, barrier, commit, pause, ...
        begin_ns: start on CLOCK_BOOTTIME.
        end_ns: end, not before the start.
        thread: native id of the thread.
        arguments: JSON values to show with the span.
    """

    name: str
    begin_ns: int
    end_ns: int
    thread: int
    arguments: dict[str, Any]


class Timeline:
    """Keeps the latest spans of this process. Any thread may add spans.

    Args:
        process: name under which the viewer shows this process.
        clock: source of times; CLOCK_BOOTTIME by default.
    """

    def __init__(self, process: str, *, clock: Clock | None = None) -> None:
        self._process, self._pid = process, os.getpid()
        self.clock = BootClock() if clock is None else clock
        self._lock = threading.Lock()  # guards the spans
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)

    @contextmanager
    def span(self, name: str, **arguments: Any) -> Iterator[None]:
        """Add the body of a `with` statement as a span, even if the body raises."""
        begin_ns = self.clock.now_ns()
        try:
            yield
        finally:
            self.add(name, begin_ns, **arguments)

    def add(self, name: str, begin_ns: int, end_ns: int | None = None, **arguments: Any) -> None:
        """Add a span of this thread from `begin_ns` to `end_ns`, by default until now."""
        end_ns = self.clock.now_ns() if end_ns is None else end_ns
        one = Span(name, begin_ns, end_ns, threading.get_native_id(), arguments)
        with self._lock:
            self._spans.append(one)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return the kept spans, in order of their ends."""
        with self._lock:
            return tuple(self._spans)

    def as_json(self) -> bytes:
        """Return the spans of this process as a JSON trace."""
        names = [_meta("process_name", self._pid, 0, self._process)]
        events = [
            {
                "ph": "X",
                "cat": "transfer",
                "name": one.name,
                "pid": self._pid,
                "tid": one.thread,
                "ts": one.begin_ns / _NS_PER_US,
                "dur": max(one.end_ns - one.begin_ns, 0) / _NS_PER_US,
                "args": one.arguments,
            }
            for one in self.spans
        ]
        return trace_of([*names, *events])


def _meta(what: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": {"name": name}}


def trace_of(events: Sequence[dict[str, Any]]) -> bytes:
    """Return the content of a file with these events."""
    trace = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"clock": CLOCK},
    }
    return json.dumps(trace, separators=(",", ":"), default=str).encode() + b"\n"
