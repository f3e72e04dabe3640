"""An independent verification of a certificate log.

Nothing here is shared with the code that writes logs: sums are recomputed from their terms, and the
state is replayed from the records alone. Each check is a rule of `docs/certificates.md`.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from rose.errors import CorruptData
from rose.slo.log_file import LogRecord, stream_log
from rose.slo.verify_claims import broken
from rose.slo.verify_compute import ComputeReplay, switched_off
from rose.slo.verify_memory import MemoryReplay
from rose.slo.verify_requests import LiveRequests
from rose.slo.verify_waits import WaitReplay, WaitTotals

_CERTIFICATES: Final = frozenset({"QUANTUM", "ADMISSION"})
_MARKS: Final = frozenset({"START", "END"})
# Header fields that must be finite and not negative; tpot_ms has its own rule.
_TIMES: Final = ("ttft_ms", "signal_ms", "blocking_ms", "heartbeat_ttl_ns", "revoke_ms")
_Rules: TypeAlias = dict[str, Callable[[LogRecord], list[str]]]


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of verifying a log.

    Args:
        records: number of records, without the header.
        granted: number of certificates, which are quanta and admissions.
        verified: number of certificates without a violation.
        violations: one sentence per violation, in log order.
        kinds: number of records by kind.
        coverage: share of serving steps within their upper estimate, of the steps that had one;
            None without such steps.
        unbounded: number of serving steps without an upper estimate.
        epsilon: share of serving steps that may exceed their upper estimate.
        is_complete: whether the log ends with END.
        without: names of switched-off mechanisms; if there are any, the log proves nothing.
        waits: totals of serving's waits for segments.
    """

    records: int
    granted: int
    verified: int
    violations: list[str]
    kinds: dict[str, int]
    coverage: float | None
    unbounded: int
    epsilon: float
    is_complete: bool
    without: tuple[str, ...]
    waits: WaitTotals


def _rules(memory: MemoryReplay, compute: ComputeReplay, waits: WaitReplay) -> _Rules:
    """Return the check for each kind of record."""

    def quantum(record: LogRecord) -> list[str]:
        return compute.quantum(record) + waits.quantum(record)

    def step(record: LogRecord) -> list[str]:
        waits.step()
        return compute.step(record)

    return {
        "START": waits.start,
        "ARRIVED": compute.arrived,
        "FINISHED": compute.finished,
        "TOKENS": compute.tokens,
        "QUANTUM": quantum,
        "FORCED": compute.forced,
        "STEP": step,
        "ADMISSION": memory.admission,
        "MOVE": memory.move,
        "REVOKE_BEGUN": memory.revoke_begun,
        "WAITED": waits.waited,
        "EVICTED": waits.evicted,
    }


def _header(header: dict[str, Any], first: LogRecord | None) -> list[str]:
    """Check the ranges of the header's times and of epsilon."""
    began_ns = header["started_ns"] if first is None else first.time_ns
    return [
        *(
            f"{name} must be finite and not negative, is {header[name]}"
            for name in _TIMES
            if not (math.isfinite(header[name]) and header[name] >= 0)
        ),
        *broken(
            (
                0 < header["epsilon"] < 1,
                lambda: f"epsilon must be in (0, 1), is {header['epsilon']}",
            ),
            (
                0 <= header["started_ns"] <= began_ns,
                lambda: (
                    f"started_ns must be from 0 to the time of the first record, {began_ns}, "
                    f"is {header['started_ns']}"
                ),
            ),
        ),
    ]


def _frame(first: LogRecord | None, marks: list[tuple[int, str]], count: int) -> list[str]:
    """Check the positions of START and END.

    Args:
        first: first record; None in an empty log.
        marks: (record number, kind) of each START and END.
        count: number of records.
    """
    wrong = []
    if first is None or first.kind != "START":
        wrong.append("record 1: the log does not begin with START")
    elif first.fields["wall_time_ns"] < 0:
        wrong.append(
            f"record 1: START: wall_time_ns must not be negative, is {first.fields['wall_time_ns']}"
        )
    wrong += [
        f"record {number}: {name} in the middle of the log"
        for number, name in marks
        if (name == "START" and number > 1) or (name == "END" and number < count)
    ]
    return wrong


def _counts(end: LogRecord, kinds: Counter[str], number: int) -> list[str]:
    """Compare END's counts with the numbers of records, which reveals missing records."""
    return [
        f"record {number}: END: {kind} is counted {count} times, the log has {kinds[kind]} of them"
        for kind, count in end.fields.items()
        if count != kinds[kind] % (1 << 32)
    ]


def verify_log(path: str | Path, *, allow_open: bool = False) -> Verification:
    """Verify every certificate of a log.

    Args:
        path: log file.
        allow_open: accept a log without END, as a killed process leaves it.

    Raises:
        InvalidArgument: the file does not exist, or is not a log of this version.
        CorruptData: the file is damaged; the message names the record.
    """
    path = Path(path)
    header, records = stream_log(path)
    requests = LiveRequests()
    compute = ComputeReplay(header, requests)
    waits = WaitReplay(header)
    rules = _rules(MemoryReplay(header, requests), compute, waits)
    first: LogRecord | None = None
    last: LogRecord | None = None
    kinds: Counter[str] = Counter()
    marks: list[tuple[int, str]] = []
    wrong_records: list[str] = []
    granted = verified = number = 0
    for number, record in enumerate(records, start=1):
        first, last = first or record, record
        kinds[record.kind] += 1
        if record.kind in _MARKS:
            marks.append((number, record.kind))
        rule = rules.get(record.kind)
        wrong = [] if rule is None else rule(record)
        wrong_records += [f"record {number}: {record.kind}: {one}" for one in wrong]
        if record.kind in _CERTIFICATES:
            granted += 1
            verified += not wrong
    end = last if last is not None and last.kind == "END" else None
    if end is None and not allow_open:
        raise CorruptData(
            f"{path} stops after record {number} without END: "
            "it was cut off, or its writer was killed"
        )
    violations = [f"header: {one}" for one in (*_header(header, first), *compute.header())]
    violations += _frame(first, marks, number) + wrong_records
    if end is not None:
        violations += _counts(end, kinds, number)
    return Verification(
        records=number,
        granted=granted,
        verified=verified,
        violations=violations,
        kinds=dict(kinds),
        coverage=compute.steps_within / compute.steps_bounded if compute.steps_bounded else None,
        unbounded=compute.steps - compute.steps_bounded,
        epsilon=header["epsilon"],
        is_complete=end is not None,
        without=switched_off(header),
        waits=waits.totals,
    )
