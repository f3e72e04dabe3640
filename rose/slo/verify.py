"""An independent second opinion on a certificate log.

Nothing here is shared with the code that writes logs: the sums are done again from the terms, and
what the state was is replayed from the records alone. Each check is one of `docs/certificates.md`.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rose.errors import CorruptData
from rose.slo.log_file import read_log
from rose.units import NS_PER_MS, ceil_div

_NOBODY: Final = -1
_QUARANTINE: Final = -2
_SERVING: Final = 0
_WRAP: Final = 1 << 32
_ADMISSION_RANGES: Final = (
    ("horizon_ms", 1e7),
    ("decode_tokens_per_s", 1e8),
    ("prefill_tokens_per_s", 1e8),
)
# Fields of an ADMISSION and of the header that say the same; a 0 in the header says nothing.
_SAID_TWICE: Final = (
    ("block_tokens", "block_tokens"),
    ("max_request_tokens", "max_request_tokens"),
    ("max_batch_tokens", "max_batch_tokens"),
    ("horizon_ms", "revoke_ms"),
)


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
    """

    records: int
    granted: int
    verified: int
    violations: list[str]
    kinds: dict[str, int]
    coverage: float | None
    epsilon: float
    is_complete: bool


@dataclass(slots=True)
class _Replay:
    """The state as the records tell it."""

    header: dict[str, Any]
    pending: int = 0
    credited: tuple[int, int] | None = None  # passed and segments of the last quantum
    held: Counter[int] = field(default_factory=Counter)
    move_epoch: int = 0
    admissions: list[dict[str, Any]] = field(default_factory=list)  # since the last move
    steps: int = 0
    steps_within: int = 0

    def arrived(self, _record: dict[str, Any]) -> list[str]:
        self.pending += 1
        return []

    def finished(self, _record: dict[str, Any]) -> list[str]:
        self.pending -= 1
        return ["a request finished that had not arrived"] if self.pending < 0 else []

    def quantum(self, record: dict[str, Any]) -> list[str]:
        """Check one grant of credit against the targets, the heartbeat and the replayed state."""
        header, quantum = self.header, record["segments"]
        quantum_ms = quantum * record["segment_upper_ms"]
        delay_ms = quantum_ms + header["signal_ms"]
        next_ms = max(record["step_upper_ms"], record["chunk_upper_ms"])
        age_ns, ttl_ns = record["heartbeat_age_ns"], header["heartbeat_ttl_ns"]
        passed, credit = self.credited or (record["passed"], 0)
        started = (record["passed"] - passed) % _WRAP
        self.credited = (record["passed"], quantum)
        return _broken(
            (self.pending == 0, f"granted while {self.pending} requests were pending"),
            (record["pending"] == 0, f"says that {record['pending']} requests were pending"),
            *(
                (record[name] == header[name], f"{name} differs from the header's {header[name]}")
                for name in ("signal_ms", "ttft_ms", "blocking_ms")
            ),
            (0 <= age_ns <= ttl_ns, f"the heartbeat was {age_ns} ns old, {ttl_ns} are allowed"),
            (
                1 <= quantum <= header["max_segments"],
                f"{quantum} segments, {header['max_segments']} are allowed",
            ),
            (record["outstanding"] < quantum, "all of its segments were outstanding already"),
            (started <= credit, f"{started} segments started on a credit of {credit}"),
            (record["segment_upper_ms"] > 0, "a segment of no length"),
            (record["quantum_ms"] == quantum_ms, f"quantum_ms is not {quantum_ms}"),
            (
                delay_ms <= header["blocking_ms"],
                f"delays serving by {delay_ms} ms, {header['blocking_ms']} are allowed",
            ),
            (record["step_upper_ms"] > 0, "a decode step of no length"),
            (record["chunk_upper_ms"] > 0, "a prefill chunk of no length"),
            (
                delay_ms + next_ms <= header["ttft_ms"],
                f"a next request takes {delay_ms + next_ms} ms, {header['ttft_ms']} are allowed",
            ),
        )

    def admission(self, record: dict[str, Any]) -> list[str]:
        """Do the sum again from its terms."""
        self.admissions.append(record)
        if record["block_tokens"] == 0:
            return ["a block of size 0"]
        if not all(0 <= record[name] <= most for name, most in _ADMISSION_RANGES):
            return ["a horizon or a rate out of range"]
        lent, unowned, slabs = record["slabs"], record["unowned_slabs"], self.header["slabs"]
        demand = _demand_blocks(record)
        kept = (unowned - lent) * self.header["blocks_per_slab"]
        supply = record["free_serving_blocks"] + kept + record["revocable_blocks"]
        return _broken(
            *(
                (
                    self.header[there] in (0, record[here]),
                    f"{here} differs from the header's {self.header[there]}",
                )
                for here, there in _SAID_TWICE
            ),
            (
                record["burst_requests"] >= self.header["burst_requests"],
                f"burst_requests is under the header's {self.header['burst_requests']}",
            ),
            (
                _SERVING < record["to_partition"] < self.header["partitions"],
                f"partition {record['to_partition']} is no borrower",
            ),
            (
                record["running_requests"] >= self.pending,
                f"knows of {record['running_requests']} requests, {self.pending} were running",
            ),
            (
                record["revocable_blocks"] == 0,
                f"counts on {record['revocable_blocks']} blocks that are still lent",
            ),
            (
                1 <= lent <= unowned <= slabs,
                f"{lent} of {unowned} unowned slabs, of {slabs} in all",
            ),
            (demand == record["demand_blocks"], f"demand_blocks is not {demand}"),
            (supply >= demand, f"{supply} blocks are left for a demand of {demand}"),
            (supply - demand == record["slack_blocks"], f"slack_blocks is not {supply - demand}"),
        )

    def move(self, record: dict[str, Any]) -> list[str]:
        """Follow the slabs; a loan needs the admission it was decided by."""
        source, target, slabs = record["from"], record["to"], record["slabs"]
        tenants = range(_QUARANTINE, self.header["partitions"])
        wrong = _broken(
            (source in tenants, f"partition {source} does not exist"),
            (target in tenants, f"partition {target} does not exist"),
            (slabs > 0 and source != target, f"moves {slabs} slabs from {source} to {target}"),
            (record["epoch"] > self.move_epoch, f"epoch {record['epoch']} after {self.move_epoch}"),
            (self.held[source] >= slabs, f"{source} gives {slabs} slabs, has {self.held[source]}"),
        )
        if source == _NOBODY and target >= 0 and record["lease_id"] != 0:
            wrong += self._loan(record)
        self.move_epoch = max(self.move_epoch, record["epoch"])
        self.admissions.clear()  # they were for the epoch that is over
        self.held[source] -= slabs
        self.held[target] += slabs
        return wrong

    def _loan(self, record: dict[str, Any]) -> list[str]:
        """Find the admission of a loan: same epoch, same borrower, same number of slabs."""
        timely = [one for one in self.admissions if one["epoch"] + 1 == record["epoch"]]
        if not timely:
            return ["a loan without an admission at the epoch before"]
        wanted = (record["to"], record["slabs"])
        exact = [one for one in timely if (one["to_partition"], one["slabs"]) == wanted]
        if not exact:
            admitted = ", ".join(f"{one['slabs']} to {one['to_partition']}" for one in timely)
            return [f"lends {wanted[1]} slabs to {wanted[0]}, admitted were {admitted}"]
        claimed, there = exact[-1]["unowned_slabs"], self.held[_NOBODY]
        free, own = exact[-1]["free_serving_blocks"], self.held[_SERVING]
        return _broken(
            (claimed == there, f"admitted with {claimed} unowned slabs, {there} existed"),
            (
                free <= own * self.header["blocks_per_slab"],
                f"admitted with {free} free blocks, serving had {own} slabs",
            ),
        )

    def revoke_begun(self, record: dict[str, Any]) -> list[str]:
        """A certificate reckons with slabs that are back, or given up, within T."""
        left_ms = (record["deadline_ns"] - record["time_ns"]) / NS_PER_MS
        allowed_ms = self.header["revoke_ms"]
        return _broken(
            (
                allowed_ms == 0 or left_ms <= allowed_ms,
                f"the deadline is in {left_ms} ms, {allowed_ms} are allowed",
            )
        )

    def step(self, record: dict[str, Any]) -> list[str]:
        self.steps += 1
        self.steps_within += record["actual_ms"] <= record["upper_ms"]
        return _broken(
            (
                0 < record["predicted_ms"] <= record["upper_ms"],
                f"upper_ms {record['upper_ms']} under predicted_ms {record['predicted_ms']}",
            )
        )


def _broken(*claims: tuple[bool, str]) -> list[str]:
    """Return the sentences of the claims that do not hold; a comparison with NaN does not."""
    return [sentence for holds, sentence in claims if not holds]


def _demand_blocks(record: dict[str, Any]) -> int:
    """Return what serving can take within the horizon, from the terms of an ADMISSION."""
    per_block, horizon_ms = record["block_tokens"], record["horizon_ms"]
    first = 1 + int(horizon_ms * record["decode_tokens_per_s"] / 1000.0)
    prefilled = int(horizon_ms * record["prefill_tokens_per_s"] / 1000.0)
    further = record["burst_requests"]
    asked = record["max_request_tokens"] + further * record["burst_request_tokens"]
    prompts = min(asked, record["max_batch_tokens"] + prefilled)
    return int(
        record["running_requests"] * ceil_div(first, per_block)
        + ceil_div(prompts + first, per_block)
        + further * ceil_div(first + per_block - 1, per_block)
    )


def _frame(names: list[str]) -> list[str]:
    """Return what is wrong with where START and END are."""
    wrong = []
    if names[:1] != ["START"]:
        wrong.append("record 1: the log does not begin with START")
    wrong += [
        f"record {number}: {name} in the middle of the log"
        for number, name in enumerate(names, start=1)
        if (name == "START" and number > 1) or (name == "END" and number < len(names))
    ]
    return wrong


def verify_log(path: str | Path, *, allow_open: bool = False) -> Verification:
    """Check every certificate of a log again.

    Args:
        path: the file.
        allow_open: accept a log without END, as a process that was killed leaves it.

    Raises:
        InvalidArgument: there is no such file, or it is not a log.
        CorruptData: the bytes are not those that were written; the sentence names the record.
    """
    path = Path(path)
    header, records = read_log(path)
    names = [record.kind for record in records]
    is_complete = names[-1:] == ["END"] and records[-1].fields["records"] == len(records)
    if not is_complete and not allow_open:
        raise CorruptData(
            f"{path} stops after record {len(records)} without END: "
            "it was cut off, or its writer was killed"
        )
    violations = _frame(names)
    replay = _Replay(header)
    replay.held[_NOBODY] = header["slabs"]
    rules = {
        "ARRIVED": replay.arrived,
        "FINISHED": replay.finished,
        "QUANTUM": replay.quantum,
        "ADMISSION": replay.admission,
        "MOVE": replay.move,
        "REVOKE_BEGUN": replay.revoke_begun,
        "STEP": replay.step,
    }
    granted = verified = 0
    for number, record in enumerate(records, start=1):
        fields = {**record.fields, "time_ns": record.time_ns}
        wrong = rules[record.kind](fields) if record.kind in rules else []
        violations += [f"record {number}: {record.kind}: {one}" for one in wrong]
        if record.kind in ("QUANTUM", "ADMISSION"):
            granted += 1
            verified += not wrong
    return Verification(
        records=len(records),
        granted=granted,
        verified=verified,
        violations=violations,
        kinds=dict(Counter(names)),
        coverage=replay.steps_within / replay.steps if replay.steps else None,
        epsilon=header["epsilon"],
        is_complete=is_complete,
    )
