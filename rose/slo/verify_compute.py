"""Replay of requests and credit: rules 10, 11, 13 and 15 of `docs/certificates.md`."""

import math
from typing import Any, Final

from rose.slo.log_file import LogRecord
from rose.slo.verify_claims import broken
from rose.slo.verify_quantum import ROUNDING_NS, TPOT_MS_MAX, QuantumRules
from rose.slo.verify_requests import LiveRequests
from rose.units import NS_PER_MS

# In the order of their bits in the header's `without`.
_MECHANISMS: Final = ("gate", "credit", "early_close", "hypothetical", "margin")
_WRAP: Final = 1 << 32
# Largest number of tokens that an engine can report for a prompt.
_TOKENS_MAX: Final = 1_000_000_000
# Fields of a STEP that must be finite. Its upper_ms may be infinite, which means no estimate.
_MEASURED: Final = (
    "predicted_ms",
    "actual_ms",
    "decode_sequences",
    "context_tokens",
    "prefill_tokens",
    "blocked_ms",
    "lent_ms",
)


def switched_off(header: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the mechanisms that were switched off for this log."""
    return tuple(name for bit, name in enumerate(_MECHANISMS) if header["without"] >> bit & 1)


class ComputeReplay:
    """Replays serving's work and the rollouts' credit from the records."""

    def __init__(self, header: dict[str, Any], requests: LiveRequests) -> None:
        """Begin with a closed gate. This replay updates `requests`."""
        self.steps = 0
        self.steps_bounded = 0  # with a finite upper estimate
        self.steps_within = 0
        self._header = header
        self._requests = requests
        self._without = frozenset(switched_off(header))
        self._rules = QuantumRules(header, requests, self._without)
        # (segments that passed, segments that may still start), from the last QUANTUM or FORCED;
        # None before the first.
        self._credited: tuple[int, int] | None = None
        self._epoch: int | None = None  # close epoch of the newest quantum

    def header(self) -> list[str]:
        """Check the header's target, slowdown and mechanisms."""
        slowdown, without = self._header["slowdown"], self._header["without"]
        tpot_ms = self._header["tpot_ms"]
        return broken(
            (
                0 <= tpot_ms <= TPOT_MS_MAX,
                lambda: f"tpot_ms must be from 0 to {TPOT_MS_MAX:g}, is {tpot_ms}",
            ),
            (slowdown >= 0, lambda: f"slowdown must not be negative, is {slowdown}"),
            (
                without >> len(_MECHANISMS) == 0,
                lambda: f"without {without:#x} has bits that stand for no mechanism",
            ),
        )

    def arrived(self, record: LogRecord) -> list[str]:
        """Add a request."""
        fields = record.fields
        tokens = fields["tokens"]
        self._requests.longest_prompt = max(self._requests.longest_prompt, tokens)
        return broken(
            (tokens <= _TOKENS_MAX, lambda: f"tokens is {tokens}, above {_TOKENS_MAX}")
        ) + self._requests.arrived(
            fields["slot"], prefilled=fields["prefilled"], time_ns=record.time_ns
        )

    def finished(self, record: LogRecord) -> list[str]:
        """Remove a request."""
        return self._requests.finished(record.fields["slot"])

    def tokens(self, record: LogRecord) -> list[str]:
        """Record one token for each request of a TOKENS record."""
        fields = record.fields
        return self._requests.got_tokens(
            fields["first_slot"], fields["count"], fields["bitmap"], time_ns=record.time_ns
        )

    def quantum(self, record: LogRecord) -> list[str]:
        """Check a grant of credit against the targets, the heartbeat and the replayed state."""
        terms = record.fields
        return self._credit(terms) + self._rules.broken_by(terms, record.time_ns)

    def forced(self, record: LogRecord) -> list[str]:
        """Allow one segment beyond the credit."""
        passed = record.fields["passed"]
        wrong, left = self._started(passed)
        self._credited = (passed, left + 1)
        return wrong

    def step(self, record: LogRecord) -> list[str]:
        """Check a step, and count whether it stayed within its upper estimate."""
        fields = record.fields
        predicted_ms, upper_ms = fields["predicted_ms"], fields["upper_ms"]
        self.steps += 1
        if upper_ms != math.inf:  # An infinite estimate proves nothing, so it is not counted.
            self.steps_bounded += 1
            self.steps_within += fields["actual_ms"] <= upper_ms
        wrong = [
            f"{name} must be finite and not negative, is {fields[name]}"
            for name in _MEASURED
            if not 0 <= fields[name] < math.inf
        ]
        if wrong:
            return wrong
        actual_ms, lent_ms = fields["actual_ms"], fields["lent_ms"]
        # A step after a loan may take longer than predicted. Rollouts pay for the difference.
        own_ms = min(predicted_ms, actual_ms) if lent_ms > 0 else actual_ms
        self._requests.stepped(
            earned_ms=self._header["slowdown"] * own_ms,
            paid_ms=lent_ms + fields["blocked_ms"] + actual_ms - own_ms,
        )
        ended_ns = fields["began_ns"] + fields["actual_ms"] * NS_PER_MS
        return broken(
            (
                0 < predicted_ms <= upper_ms,
                lambda: f"upper_ms {upper_ms} is below predicted_ms {predicted_ms}, or both are 0",
            ),
            (
                ended_ns <= record.time_ns + ROUNDING_NS,
                lambda: f"the step ended at {ended_ns} ns, after its record",
            ),
        )

    def _started(self, passed: int) -> tuple[list[str], int]:
        """Check the segments started so far; return the violations and the credit that is left."""
        before, credit = self._credited or (passed, 0)
        started = (passed - before) % _WRAP
        if started <= credit or "credit" in self._without:
            return [], max(credit - started, 0)
        return [f"{started} segments started on a credit of {credit}"], 0

    def _goes_back(self, close_epoch: int) -> bool:
        """Return whether a close epoch precedes an earlier quantum's, which must never happen."""
        before, self._epoch = self._epoch, close_epoch
        return before is not None and (close_epoch - before) % _WRAP > _WRAP // 2

    def _credit(self, terms: dict[str, Any]) -> list[str]:
        segments, most = terms["segments"], self._header["max_segments"]
        goes_back = self._goes_back(terms["close_epoch"])
        wrong, _ = self._started(terms["passed"])
        self._credited = (terms["passed"], segments)
        return wrong + broken(
            (not goes_back, "its close_epoch is before that of an earlier quantum"),
            (1 <= segments <= most, lambda: f"grants {segments} segments, 1 to {most} are allowed"),
            (
                terms["outstanding"] < segments or "credit" in self._without,
                "as many segments as it grants were already outstanding",
            ),
        )
