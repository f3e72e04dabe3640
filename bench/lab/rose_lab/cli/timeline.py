"""Merge the timelines of several processes."""

import json
from collections.abc import Sequence
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.transfer.observing.timeline import CLOCK, trace_of

FILE_BYTES_MAX: Final = 1 << 28


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
    return trace_of(events)


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
    if not isinstance(other, dict) or other.get("clock") != CLOCK:
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
