"""A second writer of certificate logs, from `docs/protocol.md`: one record after the other.

It writes whatever it is told, also what no device would: the verifier must say so.
"""

import math
import struct
from pathlib import Path
from typing import Any

from tests.reference.slo import reseal

MS = 1_000_000
NO_SLOT = (1 << 32) - 1
KINDS = (
    "START ARRIVED FINISHED QUANTUM ADMISSION MOVE REVOKE_BEGUN STEP GAVE_BACK END TOKENS FORCED "
    "WAITED EVICTED"
).split()
HEADER = {
    "version": 7,
    "record_bytes": 128,
    "ttft_ms": 500.0,
    "tpot_ms": 50.0,
    "epsilon": 0.05,
    "signal_ms": 1.0,
    "blocking_ms": 100.0,
    "heartbeat_ttl_ns": 100 * MS,
    "started_ns": 0,
    "max_segments": 4,
    "slabs": 10,
    "partitions": 2,
    "blocks_per_slab": 8,
    "block_tokens": 16,
    "max_request_tokens": 256,
    "max_batch_tokens": 128,
    "burst_requests": 1,
    "revoke_ms": 50.0,
    "slowdown": math.inf,
    "without": 0,
}
HEADER_FORM = "<8sIIdddddqqIIIIIIIIddI"


class LogBytes:
    """A log in the making; `now_ns` is the time of the next record."""

    def __init__(
        self, *, wait_budget_ns: int = 1_000 * MS, park_wait_ms: float = 1_000.0, **header: Any
    ) -> None:
        fields = HEADER | header
        self.signal_ms = fields["signal_ms"]
        self.park_wait_ms = park_wait_ms
        self.left_ns = wait_budget_ns  # No excess is forgotten: a test's log is short.
        packed = struct.pack(HEADER_FORM, b"ROSELOG1", *fields.values())
        self.now_ns = 1_000 * MS
        self.records = [packed.ljust(128, b"\0")]
        self.add("START", struct.pack("<qqd", 0, wait_budget_ns, park_wait_ms))

    def add(self, kind: str, payload: bytes = b"") -> None:
        number = KINDS.index(kind) + 1
        prefix = struct.pack("<IIQq", number, 0, len(self.records), self.now_ns)
        self.records.append((prefix + payload).ljust(128, b"\0"))

    def wait(self, ms: float) -> None:
        self.now_ns += round(ms * MS)

    def arrived(self, slot: int = 0, *, tokens: int = 64, prefilled: int = 0) -> None:
        self.add("ARRIVED", struct.pack("<QII", tokens, slot, prefilled))

    def finished(self, slot: int = 0) -> None:
        self.add("FINISHED", struct.pack("<I", slot))

    def tokens(self, *slots: int, first_slot: int = 0, count: int | None = None) -> None:
        bitmap = sum(1 << (slot - first_slot) for slot in slots).to_bytes(88, "little")
        count = len(slots) if count is None else count
        self.add("TOKENS", struct.pack("<II", first_slot, count) + bitmap)

    def quantum(self, mode: int, **terms: Any) -> None:
        fields = {
            "segment_upper_ms": 5.0,
            "quantum_ms": None,
            "step_upper_ms": 8.0,
            "chunk_upper_ms": 9.0,
            "budget_ms": math.inf if mode == 1 else 0.0,
            "wait_ms": None,
            "deadline_ns": 0,
            "heartbeat_age_ns": 0,
            "segments": 4,
            "outstanding": 0,
            "passed": 0,
            "close_epoch": 1,
            "pending": 0,
            "mode": mode,
            "committed": 0,
        } | terms
        if fields["quantum_ms"] is None:
            fields["quantum_ms"] = fields["segments"] * fields["segment_upper_ms"]
        if fields["wait_ms"] is None:
            certified_ms = 0 if mode == 2 else fields["segment_upper_ms"] + self.signal_ms
            fields["wait_ms"] = min(self.park_wait_ms, certified_ms + self.left_ns / MS)
        self.add("QUANTUM", struct.pack("<ddddddqqIIIIIII", *fields.values()))

    def forced(self, *, passed: int) -> None:
        self.add("FORCED", struct.pack("<II", passed, 1))

    def waited(self, waited_ns: int, *, certified_ns: int = 0, **terms: int) -> None:
        self.left_ns -= max(waited_ns - certified_ns, 0)
        fields = {
            "waited_ns": waited_ns,
            "certified_ns": certified_ns,
            "left_ns": self.left_ns,
            "borrower": 1,
        } | terms
        self.add("WAITED", struct.pack("<qqqI", *fields.values()))

    def evicted(self, spent_ns: int, *, borrower: int = 1) -> None:
        self.add("EVICTED", struct.pack("<qII80s", spent_ns, borrower, 77, b"it waited"))

    def step(self, actual_ms: float, *, upper_ms: float = 10.0, **terms: Any) -> None:
        """Write a step that ends now; `began_ns` is reckoned from that unless it is given."""
        fields = {
            "predicted_ms": upper_ms,
            "upper_ms": upper_ms,
            "actual_ms": actual_ms,
            "decode_sequences": 1.0,
            "context_tokens": 64.0,
            "prefill_tokens": 0.0,
            "blocked_ms": 0.0,
            "lent_ms": 0.0,
            "began_ns": None,
        } | terms
        if fields["began_ns"] is None:
            fields["began_ns"] = self.now_ns - round(actual_ms * MS)
        self.add("STEP", struct.pack("<ddddddddq", *fields.values()))

    def save(self, path: Path) -> Path:
        """End the log and write it."""
        kinds = [int.from_bytes(one[:4], "little") for one in self.records[1:]] + [10]
        self.add("END", struct.pack("<14I", *(kinds.count(kind) for kind in range(1, 15))))
        path.write_bytes(reseal(self.records))
        return path


class PlainRequests:
    """Serving's requests, one by one: who waits, who is due when, and what budget each has."""

    def __init__(self, *, tpot_ms: float, slowdown: float) -> None:
        self.tpot_ns = int(tpot_ms * MS)
        self.slowdown = slowdown
        self.last_token_ns: dict[int, int | None] = {}  # of each live request; None: it waits
        self.budgets_ms: dict[int, float] = {}  # of each that runs
        self.promised_ms = 0.0  # by what was lent since the last step

    def arrive(self, slot: int, now_ns: int, *, prefilled: bool) -> None:
        self.last_token_ns[slot] = None
        if prefilled:
            self.give_token(slot, now_ns)

    def give_token(self, slot: int, now_ns: int) -> None:
        self.last_token_ns[slot] = now_ns
        self.budgets_ms.setdefault(slot, 0.0)

    def finish(self, slot: int) -> None:
        del self.last_token_ns[slot]
        self.budgets_ms.pop(slot, None)

    def lend(self, delay_ms: float) -> None:
        self.promised_ms += delay_ms

    def step(self, actual_ms: float, *, predicted_ms: float, lent_ms: float) -> None:
        self.promised_ms = 0.0
        slower_ms = max(0.0, actual_ms - predicted_ms) if lent_ms else 0.0
        for slot in self.budgets_ms:
            earned_ms = self.slowdown * (actual_ms - slower_ms)
            self.budgets_ms[slot] += earned_ms - (lent_ms + slower_ms)

    def budget_ms(self) -> float:
        return min(self.budgets_ms.values()) - self.promised_ms if self.budgets_ms else 0.0

    def earliest_deadline_ns(self) -> int:
        """Return 0 when nobody runs."""
        times = [one for one in self.last_token_ns.values() if one is not None]
        return min(times) + self.tpot_ns if times else 0

    def is_any_waiting(self) -> bool:
        return None in self.last_token_ns.values()

    def may(self, mode: int, now_ns: int, *, delay_ms: float, next_ms: float) -> bool:
        """Say whether a quantum of this mode may be granted, its other terms being right."""
        if mode == 0:
            return not self.last_token_ns
        left_ms = (self.earliest_deadline_ns() - now_ns) / MS
        in_time = self.earliest_deadline_ns() == 0 or delay_ms + next_ms <= left_ms
        return not self.is_any_waiting() and in_time and delay_ms <= self.budget_ms()
