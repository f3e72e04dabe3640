"""Check of one quantum: rules 12 and 14 of `docs/certificates.md`."""

import math
from typing import Any, Final

from rose.slo.verify_claims import Claim, broken
from rose.slo.verify_requests import LiveRequests
from rose.units import NS_PER_MS

MODES: Final = ("idle", "slack", "trial")
# Centuries; with larger targets, deadlines would exceed the range of a record's times.
TPOT_MS_MAX: Final = 1e13
# The writer and the verifier both round milliseconds to nanoseconds.
ROUNDING_NS: Final = 1_000
_ROUNDING_MS: Final = ROUNDING_NS / NS_PER_MS


class QuantumRules:
    """Checks whether serving meets its targets beside a quantum."""

    def __init__(
        self, header: dict[str, Any], requests: LiveRequests, without: frozenset[str]
    ) -> None:
        """Use the targets of `header` and the current state of `requests`.

        Args:
            header: header of the log.
            requests: the live requests, which the replay updates.
            without: names of switched-off mechanisms.
        """
        self._header = header
        self._requests = requests
        self._is_alone = "hypothetical" in without
        tpot_ms = header["tpot_ms"]
        self._tpot_ns = int(tpot_ms * NS_PER_MS) if 0 <= tpot_ms <= TPOT_MS_MAX else 0

    def broken_by(self, terms: dict[str, Any], time_ns: int) -> list[str]:
        """Return the violations of a QUANTUM decided at `time_ns`, apart from its credit."""
        wrong = self._terms(terms) + self._promises(terms, time_ns)
        if terms["mode"] == MODES.index("slack"):
            self._requests.promised(terms["quantum_ms"] + self._header["signal_ms"])
        return wrong

    def _terms(self, terms: dict[str, Any]) -> list[str]:
        """Check each term by itself, and the budget."""
        age_ns, ttl_ns = terms["heartbeat_age_ns"], self._header["heartbeat_ttl_ns"]
        quantum_ms = terms["segments"] * terms["segment_upper_ms"]
        pending = self._requests.pending
        return broken(
            (
                terms["pending"] == pending,
                lambda: f"pending is {terms['pending']}, but {pending} requests were pending",
            ),
            (
                0 <= age_ns <= ttl_ns,
                lambda: f"the heartbeat was {age_ns} ns old, {ttl_ns} ns are allowed",
            ),
            (terms["segment_upper_ms"] > 0, "segment_upper_ms must be above 0"),
            (terms["quantum_ms"] == quantum_ms, lambda: f"quantum_ms is not {quantum_ms}"),
            (terms["step_upper_ms"] > 0, "step_upper_ms must be above 0"),
            (terms["chunk_upper_ms"] > 0 or self._is_alone, "chunk_upper_ms must be above 0"),
            (terms["committed"] <= 1, lambda: f"committed is {terms['committed']}, not 0 or 1"),
            *self._budget(terms),
        )

    def _budget(self, terms: dict[str, Any]) -> tuple[Claim, ...]:
        """Recompute the budget from the STEP records, and compare it with the quantum."""
        logged_ms, delay_ms = terms["budget_ms"], terms["quantum_ms"] + self._header["signal_ms"]
        if terms["mode"] != MODES.index("slack"):
            return ((logged_ms == 0, lambda: f"budget_ms must be 0 outside slack, is {logged_ms}"),)
        is_endless = self._header["slowdown"] == math.inf
        budget_ms = math.inf if is_endless else self._requests.budget_ms()
        return (
            (
                math.isclose(logged_ms, budget_ms, rel_tol=1e-9, abs_tol=1e-9),
                lambda: f"budget_ms is {logged_ms}, but the STEP records leave {budget_ms}",
            ),
            (
                delay_ms <= logged_ms,
                lambda: f"delays requests by {delay_ms} ms, but their budget is {logged_ms} ms",
            ),
        )

    def _promises(self, terms: dict[str, Any], time_ns: int) -> list[str]:
        """Check the conditions that modes idle and slack share, then those of the quantum's mode.

        A trial is not bound by the targets; `WaitReplay` checks that the wait budget pays for it.
        """
        header = self._header
        if terms["mode"] == MODES.index("trial"):
            needs_ms = max(self._next(terms))
            return [
                *broken((needs_ms < math.inf, "a trial without bounds of serving's steps")),
                *self._deadline(terms),
                *self._mode(terms, time_ns, needs_ms=needs_ms),
            ]
        next_ms, first_ms = self._next(terms)
        delay_ms = terms["segments"] * terms["segment_upper_ms"] + header["signal_ms"]
        first_ms += delay_ms
        return [
            *broken(
                (
                    delay_ms <= header["blocking_ms"],
                    lambda: (
                        f"delays serving by {delay_ms} ms, but blocking_ms is "
                        f"{header['blocking_ms']}"
                    ),
                ),
                (
                    first_ms <= header["ttft_ms"],
                    lambda: (
                        f"the next request would take {first_ms} ms, but ttft_ms is "
                        f"{header['ttft_ms']}"
                    ),
                ),
            ),
            *broken(
                (
                    not self._requests.has_prefilled or first_ms <= header["tpot_ms"],
                    lambda: (
                        f"the next prefilled request would take {first_ms} ms, but tpot_ms is "
                        f"{header['tpot_ms']}"
                    ),
                )
            ),
            *self._deadline(terms),
            *self._mode(terms, time_ns, needs_ms=delay_ms + next_ms),
        ]

    def _next(self, terms: dict[str, Any]) -> tuple[float, float]:
        """Return *next* and *first* of `docs/certificates.md`, in milliseconds."""
        step_ms, chunk_ms = terms["step_upper_ms"], terms["chunk_upper_ms"]
        if self._is_alone:
            return step_ms, step_ms
        if terms["committed"]:
            return step_ms, step_ms + chunk_ms
        # Not max(), which ignores a NaN as its second argument.
        largest_ms = step_ms if chunk_ms <= step_ms else chunk_ms
        return largest_ms, largest_ms

    def _deadline(self, terms: dict[str, Any]) -> list[str]:
        deadline_ns = self._earliest_ns()
        return broken(
            (
                abs(terms["deadline_ns"] - deadline_ns) <= ROUNDING_NS,
                lambda: (
                    f"deadline_ns is {terms['deadline_ns']}, but the earliest deadline was "
                    f"{deadline_ns}"
                ),
            )
        )

    def _mode(self, terms: dict[str, Any], time_ns: int, *, needs_ms: float) -> list[str]:
        """Check that the mode was allowed, and that running requests meet their deadlines."""
        mode = terms["mode"]
        if mode >= len(MODES):
            return [f"mode {mode} does not exist"]
        name, pending = MODES[mode], self._requests.pending
        if name != "slack":
            is_one = terms["segments"] == 1 and terms["outstanding"] == 0
            return broken(
                (terms["committed"] == 0, f"committed must be 0 in mode {name}, is 1"),
                (pending == 0, lambda: f"granted while {pending} requests were pending"),
                (name == "idle" or is_one, "a trial must be a single segment"),
            )
        wrong = broken((self._header["slowdown"] > 0, "granted in mode slack at a slowdown of 0"))
        if self._requests.is_any_waiting:
            wrong.append("granted while a request waited for its first token")
        deadline_ns = self._earliest_ns()
        if deadline_ns != 0:
            left_ms = (deadline_ns - time_ns) / NS_PER_MS
            wrong += broken(
                (
                    needs_ms <= left_ms + _ROUNDING_MS,
                    lambda: f"takes {needs_ms} ms, but the earliest deadline is in {left_ms} ms",
                )
            )
        return wrong

    def _earliest_ns(self) -> int:
        """Return the earliest deadline of a running request; 0 if none runs."""
        token_ns = self._requests.oldest_token_ns()
        return 0 if token_ns is None else token_ns + self._tpot_ns
