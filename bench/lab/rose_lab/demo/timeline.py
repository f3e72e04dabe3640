"""The timeline of one slice, read afterwards from the certificate log, without sampling."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rose.slo.log_file import LogRecord, read_log
from rose.units import NS_PER_S
from rose_lab.demo.record import Slice, SliceTimeline

_NOBODY: Final = -1
_SERVING: Final = 0
_ROLLOUT: Final = 1
_SLACK: Final = 1


def read_timeline(log_path: Path, slices: Sequence[Slice]) -> SliceTimeline:
    """Return the timeline of the last slice of the arm `rose`; empty without such a slice."""
    ours = [one for one in slices if one.arm == "rose"]
    if not ours:
        return SliceTimeline((), (), ())
    header, records = read_log(log_path)
    last = ours[-1]
    return window_timeline(records, slabs=header["slabs"], start_s=last.start_s, end_s=last.end_s)


def window_timeline(
    records: Iterable[LogRecord], *, slabs: int, start_s: float, end_s: float
) -> SliceTimeline:
    """Replay `records` and return the events from `start_s` to `end_s`."""
    held: Counter[int] = Counter({_NOBODY: slabs})
    opened_s: float | None = None
    is_slack = False  # whether serving's next step ends the quantum, as an arrival does
    gate_open: list[tuple[float, float]] = []
    arrivals_s: list[float] = []
    holdings: list[tuple[float, int, int, int]] = []

    def note(at_s: float) -> None:
        holdings.append((at_s, held[_SERVING], held[_ROLLOUT], held[_NOBODY]))

    for record in records:
        at_s = record.time_ns / NS_PER_S
        if at_s > end_s:
            break
        if at_s >= start_s and not holdings:
            note(start_s)
        match record.kind:
            case "MOVE":
                held[record.fields["from"]] -= record.fields["slabs"]
                held[record.fields["to"]] += record.fields["slabs"]
                if at_s >= start_s:
                    note(at_s)
            case "QUANTUM" if opened_s is None:
                opened_s = max(at_s, start_s)
                is_slack = record.fields["mode"] == _SLACK
            case "STEP" if opened_s is not None and is_slack:
                began_s = record.fields["began_ns"] / NS_PER_S
                if began_s >= start_s:
                    gate_open.append((opened_s, max(began_s, opened_s)))
                opened_s = None
            case "ARRIVED":
                if opened_s is not None and at_s >= start_s:
                    gate_open.append((opened_s, at_s))
                opened_s = None
                if at_s >= start_s:
                    arrivals_s.append(at_s)
    if opened_s is not None:
        gate_open.append((opened_s, end_s))
    return SliceTimeline(
        gate_open=tuple(gate_open), arrivals_s=tuple(arrivals_s), slabs=tuple(holdings)
    )
