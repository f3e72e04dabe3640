"""Serving's time line: the use of each nanosecond, from the STEP records of a log."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rose.slo.log_file import LogRecord
from rose.units import NS_PER_MS

# Centuries: longer than any log.
_LONGEST_MS: Final = 1e13


class Use(Enum):
    """Use of a stretch of serving's time. Time outside all stretches counts as host time."""

    LENT = "lent"  # lent to rollouts before a step
    WAITED = "waited"  # wait for a segment, up to its promised length
    BLOCKED = "blocked"  # rest of that wait, beyond the promised length
    STEP = "step"  # step, up to its upper estimate
    OVERRUN = "overrun"  # rest of the step, beyond the upper estimate


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the time of one step or of the waits before that step; stretches do not overlap.

    Args:
        begin_ns: time of the beginning.
        end_ns: time of the end, > `begin_ns`, exclusive.
        use: use of the time.
        step: index of the step in `StepLine.steps`.
    """

    begin_ns: int
    end_ns: int
    use: Use
    step: int


@dataclass(frozen=True, slots=True)
class Step:
    """The fields of a STEP record that an audit needs.

    Args:
        began_ns: start of the step itself, after the waits.
        upper_ns: upper estimate of its duration.
        prefill_tokens: number of prompt tokens that it processed.
    """

    began_ns: int
    upper_ns: int
    prefill_tokens: float


def nanoseconds(duration_ms: float) -> int:
    """Convert a logged duration; NaN and negative values become 0, infinity becomes centuries."""
    return round(min(duration_ms, _LONGEST_MS) * NS_PER_MS) if duration_ms > 0 else 0


class StepLine:
    """All steps of a log as stretches, in order of time."""

    def __init__(self, records: Sequence[LogRecord], *, signal_ms: float) -> None:
        """Lay out the STEP records of `records`.

        Args:
            records: records of the whole log, since a STEP record is written after its step.
            signal_ms: delay until the borrower sees a closed gate; part of every promised wait.
        """
        steps = [record.fields for record in records if record.kind == "STEP"]
        steps.sort(key=lambda fields: fields["began_ns"])
        self.steps = [
            Step(one["began_ns"], nanoseconds(one["upper_ms"]), one["prefill_tokens"])
            for one in steps
        ]
        promises = _Promises(records, signal_ms=signal_ms)
        self._stretches: list[Stretch] = []
        end_ns: int | None = None
        for index, fields in enumerate(steps):
            for stretch in _stretches(fields, index, promises.before(fields["began_ns"])):
                begin_ns = stretch.begin_ns if end_ns is None else max(stretch.begin_ns, end_ns)
                if begin_ns < stretch.end_ns:
                    end_ns = stretch.end_ns
                    self._stretches.append(Stretch(begin_ns, end_ns, stretch.use, index))
        self._begins = [stretch.begin_ns for stretch in self._stretches]

    def between(self, begin_ns: int, end_ns: int) -> Iterator[tuple[Stretch, int]]:
        """Yield each stretch that overlaps the given period, with the nanoseconds of overlap."""
        first = max(bisect_right(self._begins, begin_ns) - 1, 0)
        for stretch in self._stretches[first : bisect_right(self._begins, end_ns)]:
            part_ns = min(stretch.end_ns, end_ns) - max(stretch.begin_ns, begin_ns)
            if part_ns > 0:
                yield stretch, part_ns


class _Promises:
    """The longest wait for a segment that each QUANTUM record of a log allows."""

    def __init__(self, records: Sequence[LogRecord], *, signal_ms: float) -> None:
        quanta = [record for record in records if record.kind == "QUANTUM"]
        self._granted_ns = [record.time_ns for record in quanta]
        self._waits_ns = [
            nanoseconds(quantum.fields["segment_upper_ms"] + signal_ms) for quantum in quanta
        ]

    def before(self, time_ns: int) -> int:
        """Return the wait in ns that the last quantum by `time_ns` allows; 0 if there is none."""
        count = bisect_right(self._granted_ns, time_ns)
        return self._waits_ns[count - 1] if count else 0


def _stretches(fields: dict[str, Any], index: int, wait_ns: int) -> Iterator[Stretch]:
    """Yield the stretches of one step; they may be empty, or overlap those of other steps."""
    lent_ns, waited_ns = nanoseconds(fields["lent_ms"]), nanoseconds(fields["blocked_ms"])
    actual_ns, upper_ns = nanoseconds(fields["actual_ms"]), nanoseconds(fields["upper_ms"])
    at_ns = fields["began_ns"] - waited_ns - lent_ns
    for use, took_ns in (
        (Use.LENT, lent_ns),
        (Use.WAITED, min(waited_ns, wait_ns)),
        (Use.BLOCKED, max(waited_ns - wait_ns, 0)),
        (Use.STEP, min(actual_ns, upper_ns)),
        (Use.OVERRUN, max(actual_ns - upper_ns, 0)),
    ):
        yield Stretch(at_ns, at_ns + took_ns, use, index)
        at_ns += took_ns
