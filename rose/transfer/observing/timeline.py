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
from rose.errors import InvalidArgument

SPANS_MAX: Final = 1 << 16
FILE_BYTES_MAX: Final = 1 << 28
_CLOCK: Final = "CLOCK_BOOTTIME"
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
        return _trace([*names, *events])


def merged(contents: Sequence[tuple[str, bytes]]) -> bytes:
    """Merge traces of several processes of one machine.

    Two processes may have the same pid, if one ran after the other or in another container. Then
    every process but the first gets a new pid.

    Args:
        contents: (name for messages, content) of each file.

    Raises:
        InvalidArgument: a file is not a timeline of rose.
    """
    events: list[dict[str, Any]] = []
    taken: set[int] = set()
    for where, content in contents:
        its = _events(where, content)
        renamed: dict[int, int] = {}
        for pid in sorted({event["pid"] for event in its}):
            fresh = pid
            while fresh in taken:
                fresh += 1 << 22  # above any pid of Linux
            renamed[pid] = fresh
            taken.add(fresh)
        events += [{**event, "pid": renamed[event["pid"]]} for event in its]
    return _trace(events)


def _events(where: str, content: bytes) -> list[dict[str, Any]]:
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(
            f"{where} must have at most {FILE_BYTES_MAX} bytes, got {len(content)}"
        )
    try:
        trace = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where} is not JSON: {error}") from None
    other = trace.get("otherData") if isinstance(trace, dict) else None
    if not isinstance(other, dict) or other.get("clock") != _CLOCK:
        raise InvalidArgument(f"{where} is not a timeline of rose")
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not all(map(_is_event, events)):
        raise InvalidArgument(f"{where} has an event that rose does not write")
    return events


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("pid"), int):
        return False
    return event.get("ph") == "M" or all(
        isinstance(event.get(name), (int, float)) for name in ("ts", "dur")
    )


def _meta(what: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": {"name": name}}


def _trace(events: Sequence[dict[str, Any]]) -> bytes:
    trace = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"clock": _CLOCK},
    }
    return json.dumps(trace, separators=(",", ":"), default=str).encode() + b"\n"
