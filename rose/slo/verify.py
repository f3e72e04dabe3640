"""An independent second opinion on a certificate log.

Nothing here is shared with the code that writes logs: the sums are done again from the terms, and
what the state was is replayed from the records alone. Each check is one of `docs/certificates.md`.
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
from rose.slo.verify_requests import Requests

_CERTIFICATES: Final = frozenset({"QUANTUM", "ADMISSION"})
_MARKS: Final = frozenset({"START", "END"})
# Of the header; what tpot_ms may be is a rule of its own.
_TIMES: Final = ("ttft_ms", "signal_ms", "blocking_ms", "heartbeat_ttl_ns", "revoke_ms")
_Rules: TypeAlias = dict[str, Callable[[LogRecord], list[str]]]


@dataclass(frozen=True, slots=True)
class Verification:
    """What a log says when nobody's word is taken for it.

    Args:
        records: records in the log, the header not counted.
        granted: certificates: quanta and admissions.
        verified: those of them in which nothing is wrong.
        violations: one sentence for each thing that is wrong, in the order of the log.
        kinds: records by kind.
        coverage: share of serving steps that took at most their upper estimate; None without any.
        epsilon: the share of steps that was allowed to take longer.
        is_complete: the log ends with END.
        without: mechanisms that were switched off, by name; a log made without any is no proof.
    """

    records: int
    granted: int
    verified: int
    violations: list[str]
    kinds: dict[str, int]
    coverage: float | None
    epsilon: float
    is_complete: bool
    without: tuple[str, ...]


def _rules(memory: MemoryReplay, compute: ComputeReplay) -> _Rules:
    """Say who looks at which kind of record."""
    return {
        "ARRIVED": compute.arrived,
        "FINISHED": compute.finished,
        "TOKENS": compute.tokens,
        "QUANTUM": compute.quantum,
        "FORCED": compute.forced,
        "STEP": compute.step,
        "ADMISSION": memory.admission,
        "MOVE": memory.move,
        "REVOKE_BEGUN": memory.revoke_begun,
    }


def _header(header: dict[str, Any], first: LogRecord | None) -> list[str]:
    """Refuse times and a share that no user can have asked for."""
    began_ns = header["started_ns"] if first is None else first.time_ns
    return [
        *(
            f"{name} is {header[name]}"
            for name in _TIMES
            if not (math.isfinite(header[name]) and header[name] >= 0)
        ),
        *broken(
            (0 < header["epsilon"] < 1, lambda: f"epsilon is {header['epsilon']}"),
            (
                0 <= header["started_ns"] <= began_ns,
                lambda: f"started_ns is {header['started_ns']}, the first record is at {began_ns}",
            ),
        ),
    ]


def _frame(first: LogRecord | None, marks: list[tuple[int, str]], count: int) -> list[str]:
    """Return what is wrong with where START and END are.

    Args:
        first: the first record; None in a log without any.
        marks: number and kind of each START and END.
        count: of all records.
    """
    wrong = []
    if first is None or first.kind != "START":
        wrong.append("record 1: the log does not begin with START")
    wrong += [
        f"record {number}: {name} in the middle of the log"
        for number, name in marks
        if (name == "START" and number > 1) or (name == "END" and number < count)
    ]
    return wrong


def _counts(end: LogRecord, kinds: Counter[str], number: int) -> list[str]:
    """Compare what END counts with what there is: a record that is missing shows here."""
    return [
        f"record {number}: END: counts {count} {kind}, the log has {kinds[kind]}"
        for kind, count in end.fields.items()
        if count != kinds[kind]
    ]


def verify_log(path: str | Path, *, allow_open: bool = False) -> Verification:
    """Check every certificate of a log again.

    Args:
        path: the file.
        allow_open: accept a log without END, as a process that was killed leaves it.

    Raises:
        InvalidArgument: there is no such file, or it is not a log of this version.
        CorruptData: the bytes are not those that were written; the sentence names the record.
    """
    path = Path(path)
    header, records = stream_log(path)
    requests = Requests()
    compute = ComputeReplay(header, requests)
    rules = _rules(MemoryReplay(header, requests), compute)
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
        coverage=compute.steps_within / compute.steps if compute.steps else None,
        epsilon=header["epsilon"],
        is_complete=end is not None,
        without=switched_off(header),
    )
