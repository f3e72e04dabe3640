"""Replaying requests and quanta: rules 9 to 15 of `docs/certificates.md`."""

from typing import Any, Final

from rose.slo.log_file import LogRecord
from rose.slo.verify_claims import broken
from rose.slo.verify_requests import Requests
from rose.units import NS_PER_MS

_MODES: Final = ("idle", "slack", "spatial")
# By their bits in the header's `without`.
_MECHANISMS: Final = ("gate", "credit", "early_close", "hypothetical", "confinement", "margin")
_WRAP: Final = 1 << 32
# Centuries; deadlines that are later are out of the range of a record's times.
_TPOT_MS_MAX: Final = 1e13
# Both sides round milliseconds and nanoseconds.
_ROUNDING_NS: Final = 1_000
_ROUNDING_MS: Final = _ROUNDING_NS / NS_PER_MS
# Fields of a QUANTUM of version 2 that repeat the header's.
_SAID_TWICE: Final = ("signal_ms", "ttft_ms", "blocking_ms")


def switched_off(header: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the mechanisms that this log was made without."""
    return tuple(name for bit, name in enumerate(_MECHANISMS) if header["without"] >> bit & 1)


class ComputeReplay:
    """What serving had to do, and what rollouts were credited, as the records tell it."""

    def __init__(self, header: dict[str, Any], requests: Requests) -> None:
        """Begin with a closed gate; this replay keeps `requests` up to date."""
        self.steps = 0
        self.steps_within = 0
        self._header = header
        self._requests = requests
        self._without = frozenset(switched_off(header))
        tpot_ms = header["tpot_ms"]
        self._tpot_ns = int(tpot_ms * NS_PER_MS) if 0 <= tpot_ms <= _TPOT_MS_MAX else 0
        # Segments that may start from a value of `passed` on; None before the first word of them.
        self._credited: tuple[int, int] | None = None
        self._epoch: int | None = None  # the newest in which a quantum was decided

    def header(self) -> list[str]:
        """Refuse a target without a meaning, and modes and mechanisms that have no rules."""
        modes, without = self._header["modes"], self._header["without"]
        tpot_ms = self._header["tpot_ms"]
        return broken(
            (0 <= tpot_ms <= _TPOT_MS_MAX, lambda: f"tpot_ms is {tpot_ms}"),
            (modes >> len(_MODES) == 0, lambda: f"modes {modes:#x} has bits of no mode"),
            (
                without >> len(_MECHANISMS) == 0,
                lambda: f"without {without:#x} has bits of no mechanism",
            ),
        )

    def arrived(self, record: LogRecord) -> list[str]:
        """Take a request in."""
        fields = record.fields
        return self._requests.arrived(
            fields["slot"], prefilled=fields["prefilled"], time_ns=record.time_ns
        )

    def finished(self, record: LogRecord) -> list[str]:
        """Let a request go."""
        return self._requests.finished(record.fields["slot"])

    def tokens(self, record: LogRecord) -> list[str]:
        """Give each request of a batch its token."""
        fields = record.fields
        return self._requests.got_tokens(
            fields["first_slot"], fields["count"], fields["bitmap"], time_ns=record.time_ns
        )

    def quantum(self, record: LogRecord) -> list[str]:
        """Check one grant of credit against the targets, the heartbeat and the replayed state."""
        terms = record.fields
        return [
            *(
                f"{name} differs from the header's {self._header[name]}"
                for name in _SAID_TWICE
                if name in terms and terms[name] != self._header[name]
            ),
            *self._credit(terms),
            *self._terms(terms),
            *self._promises(terms, record.time_ns),
        ]

    def forced(self, record: LogRecord) -> list[str]:
        """Let one segment more than the credit through."""
        passed = record.fields["passed"]
        wrong, left = self._started(passed)
        self._credited = (passed, left + 1)
        return wrong

    def step(self, record: LogRecord) -> list[str]:
        """Count the steps within their bounds."""
        fields = record.fields
        self.steps += 1
        self.steps_within += fields["actual_ms"] <= fields["upper_ms"]
        return [
            *broken(
                (
                    0 < fields["predicted_ms"] <= fields["upper_ms"],
                    lambda: (
                        f"upper_ms {fields['upper_ms']} under predicted_ms {fields['predicted_ms']}"
                    ),
                ),
            ),
            *(
                f"{name} is {fields[name]}"
                for name in ("actual_ms", "blocked_ms", "lent_ms")
                if not fields[name] >= 0
            ),
        ]

    def _started(self, passed: int) -> tuple[list[str], int]:
        """Compare what started with what was credited; returns also what is left of it."""
        before, credit = self._credited or (passed, 0)
        started = (passed - before) % _WRAP
        if started <= credit or "credit" in self._without:
            return [], max(credit - started, 0)
        return [f"{started} segments started on a credit of {credit}"], 0

    def _is_overtaken(self, close_epoch: int) -> bool:
        """Whether the gate was closed, and a quantum decided, since this one looked at it.

        Then it cannot be opened for this one any more.
        """
        if self._epoch is not None and (close_epoch - self._epoch) % _WRAP > _WRAP // 2:
            return True
        self._epoch = close_epoch
        return False

    def _credit(self, terms: dict[str, Any]) -> list[str]:
        segments, most = terms["segments"], self._header["max_segments"]
        wrong: list[str] = []
        if not self._is_overtaken(terms["close_epoch"]):
            wrong, _ = self._started(terms["passed"])
            self._credited = (terms["passed"], segments)
        return wrong + broken(
            (1 <= segments <= most, lambda: f"{segments} segments, {most} are allowed"),
            (
                terms["outstanding"] < segments or "credit" in self._without,
                "all of its segments were outstanding already",
            ),
        )

    def _terms(self, terms: dict[str, Any]) -> list[str]:
        """Check every number by itself."""
        age_ns, ttl_ns = terms["heartbeat_age_ns"], self._header["heartbeat_ttl_ns"]
        quantum_ms = terms["segments"] * terms["segment_upper_ms"]
        pending = self._requests.pending
        is_alone = "hypothetical" in self._without
        return broken(
            (
                terms["pending"] >= pending,
                lambda: f"{terms['pending']} pending, {pending} requests were",
            ),
            (
                0 <= age_ns <= ttl_ns,
                lambda: f"the heartbeat was {age_ns} ns old, {ttl_ns} are allowed",
            ),
            (terms["segment_upper_ms"] > 0, "a segment of no length"),
            (terms["quantum_ms"] == quantum_ms, lambda: f"quantum_ms is not {quantum_ms}"),
            (terms["step_upper_ms"] > 0, "a decode step of no length"),
            (terms["chunk_upper_ms"] > 0 or is_alone, "a prefill chunk of no length"),
            (terms["burst_ms"] >= 0 or is_alone, lambda: f"burst_ms is {terms['burst_ms']}"),
            (terms["committed"] <= 1, lambda: f"committed is {terms['committed']}, not 0 or 1"),
            (terms["slowdown"] >= 1, lambda: f"slowdown is {terms['slowdown']}, under 1"),
        )

    def _promises(self, terms: dict[str, Any], time_ns: int) -> list[str]:
        """Do the sums of the mode again, with the deadline that the records tell."""
        header = self._header
        next_ms, first_ms = self._next(terms)
        delay_ms = terms["segments"] * terms["segment_upper_ms"] + header["signal_ms"]
        first_ms += delay_ms
        beside_ms = header["signal_ms"] + terms["slowdown"] * next_ms
        return [
            *broken(
                (
                    delay_ms <= header["blocking_ms"],
                    lambda: f"delays serving by {delay_ms} ms, {header['blocking_ms']} are allowed",
                ),
                (
                    first_ms <= header["ttft_ms"],
                    lambda: f"a next request takes {first_ms} ms, {header['ttft_ms']} are allowed",
                ),
            ),
            *self._deadline(terms),
            *self._mode(terms, time_ns, slack=delay_ms + next_ms, spatial=beside_ms),
        ]

    def _next(self, terms: dict[str, Any]) -> tuple[float, float]:
        """Return what serving's next step takes, and a next request until its first token."""
        step_ms, chunk_ms = terms["step_upper_ms"], terms["chunk_upper_ms"]
        if "hypothetical" in self._without:
            return step_ms, step_ms
        if terms["committed"]:
            return step_ms, step_ms + chunk_ms + terms["burst_ms"]
        # Not max(): it passes over a NaN in its second place.
        largest_ms = step_ms if chunk_ms <= step_ms else chunk_ms
        return largest_ms, largest_ms + terms["burst_ms"]

    def _deadline(self, terms: dict[str, Any]) -> list[str]:
        deadline_ns = self._earliest_ns()
        return broken(
            (
                abs(terms["deadline_ns"] - deadline_ns) <= _ROUNDING_NS,
                lambda: f"deadline_ns is {terms['deadline_ns']}, the earliest was {deadline_ns}",
            )
        )

    def _mode(self, terms: dict[str, Any], time_ns: int, **needs_ms: float) -> list[str]:
        """Check that the mode was allowed, and that serving's requests could bear it."""
        mode, said = terms["mode"], terms["pending"]
        if mode >= len(_MODES):
            return [f"mode {mode} does not exist"]
        name, pending = _MODES[mode], self._requests.pending
        wrong = broken(
            (
                self._header["modes"] >> mode & 1 == 1,
                lambda: f"the header does not allow mode {name}",
            )
        )
        if name == "idle":
            return wrong + broken(
                (terms["committed"] == 0, "a batch was committed in mode idle"),
                (pending == 0, lambda: f"granted while {pending} requests were pending"),
                (said == 0, lambda: f"says that {said} requests were pending"),
            )
        if self._requests.is_any_waiting:
            wrong.append("granted while a request waited for its first token")
        deadline_ns = self._earliest_ns()
        if deadline_ns != 0:
            left_ms = (deadline_ns - time_ns) / NS_PER_MS
            wrong += broken(
                (
                    needs_ms[name] <= left_ms + _ROUNDING_MS,
                    lambda: f"takes {needs_ms[name]} ms, the earliest deadline is in {left_ms} ms",
                )
            )
        return wrong

    def _earliest_ns(self) -> int:
        """Return the earliest deadline of a running request, 0 without any."""
        token_ns = self._requests.oldest_token_ns()
        return 0 if token_ns is None else token_ns + self._tpot_ns
