"""The parameters of lending, with units and reasons for their defaults."""

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from rose.errors import InvalidArgument

# Segments that may wait in a GPU's stream. With a single segment the GPU would idle between
# segments; an aborted step still runs all waiting segments.
GATE_WINDOW: Final = 2
# Number of slabs revoked in addition to the missing ones, so that the next request does not start
# another revocation.
REVOKE_AHEAD_SLABS: Final = 1
# The upper estimate of a segment's time is this quantile of the times of recent segments.
SEGMENT_SHARE: Final = 0.99
# The creditor checks at least this often, even if no event wakes it. So a missed event delays it by
# at most this time.
POLL_MS: Final = 5.0
# Retry interval of the creditor after a refusal; the creditor is woken at once when serving becomes
# idle.
RETRY_MS: Final = 2.0
# A parked step and a serving call declared as blocking may wait for each other this long before one
# segment is let through. It must exceed the normal duration of such a call.
WATCHDOG_MS: Final = 50.0
# Factor on the weight of older steps at every new step: a memory of about 500 steps, which are
# seconds of serving.
FORGETTING: Final = 0.998
# A step above its upper estimate is a miss, and lowers the level of the estimate by this share of
# epsilon. At 0.5, 3 to 5 of 100 steps on a steady machine have no bound; at 0.2, fewer than 1 of
# 100. In both cases the share of misses stays at epsilon. At 0.1, lending may take over a minute to
# resume after other programs have loaded the machine for a while.
ADAPTATION_SHARE: Final = 0.2
# Number of residuals, speeds and prompts that are kept. A quantile needs at least 1 / epsilon.
RESIDUAL_WINDOW: Final = 512

# Zero means "none" for these; every other parameter must be above 0.
_MAY_BE_ZERO: Final = frozenset({"burst_requests", "regrow_after_ms"})

MECHANISMS: Final = ("gate", "credit", "early_close", "hypothetical", "margin")
"""Mechanisms that can be switched off to measure their value, in the order of the log's bits."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits and evidence rules for lending.

    Args:
        without: names of `MECHANISMS` to switch off. For measurements only: certificates of such a
            device prove nothing.
        max_segments: size of the quantum: number of segments that may be granted at once. Two
            suffice; with eight the borrower does not stall on a busy machine, where the creditor
            may run several segments late.
        heartbeat_ttl_ms: if the last heartbeat is older than this, serving's host counts as frozen.
            Must exceed serving's longest step and a garbage collection of Python.
        signal_ms: delay until the borrower sees that its gate is closed. On a CPU this takes one
            store; the default covers a thread that was briefly descheduled.
        blocking_ms: longest delay of serving by a whole quantum, in case the borrower misses the
            closing of its gate.
        segment_prior_ms: estimated time of a segment before any measurement.
        park_wait_ms: longest wait of a serving step for the running segment; the TTFT target
            counts instead if it is shorter. After this time serving goes on, whatever the borrower
            does.
        wait_budget_ms: longest time that serving may wait for segments beyond their certificates,
            in any ten minutes and whatever the borrowers do. It limits each wait too. When it is
            spent, the borrower is removed.
        epsilon: share of serving steps that may exceed the upper estimate of their time or speed,
            and share of prompts that may be longer than certificates assume.
        latency_prior_ms: coefficients of a step's time before any measurement, in milliseconds: per
            step, per decoding sequence, per context token, per prefill token, and per pair of a
            prefill token and a context token.
        revoke_ms: T, the longest duration of a revocation. The default covers an abort at the next
            gate and a thread that was briefly descheduled.
        regrow_after_ms: pause between a revocation and new loans. Without a pause, slabs that come
            and go would abort step after step.
        aborts_per_s: average rate of steps that may be aborted for their slabs; a burst of one
            second's worth is allowed. Each further abort delays new loans until the rate is met
            again; revocations never wait. At five aborts per second, steps of 100 ms lose at most
            half of the time.
        lease_ttl_ms: time after which a loan that was not renewed is revoked. A borrower in
            serving's process is removed if its slabs are overdue by more than this time.
        burst_requests: smallest number of requests assumed to arrive within T besides the largest
            request; a larger number counts if it was observed.
        arrival_memory_ms: time for which an observed peak of arrivals within T counts. With a
            shorter time lending resumes sooner after a burst of requests, but demand is
            underestimated if another burst follows.
        tend_every_ms: interval of deadline checks; must be well below `lease_ttl_ms` and
            `heartbeat_ttl_ms`.
    """

    without: frozenset[str] = frozenset()

    max_segments: int = 8
    heartbeat_ttl_ms: float = 250.0
    signal_ms: float = 1.0
    blocking_ms: float = 100.0
    segment_prior_ms: float = 5.0
    park_wait_ms: float = 1000.0
    wait_budget_ms: float = 1000.0

    epsilon: float = 0.01
    latency_prior_ms: tuple[float, float, float, float, float] = (5.0, 0.1, 0.0, 0.05, 0.0)

    revoke_ms: float = 50.0
    regrow_after_ms: float = 100.0
    aborts_per_s: float = 5.0
    lease_ttl_ms: float = 2000.0
    burst_requests: int = 1
    arrival_memory_ms: float = 60_000.0
    tend_every_ms: float = 20.0

    def __post_init__(self) -> None:
        """Check the ranges of the parameters.

        Raises:
            InvalidArgument: a parameter is out of range; the message names it.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            is_valid, rule = _judged(field.name, value)
            if not is_valid:
                raise InvalidArgument(
                    f"Policy({field.name}={value}) is out of range: it must be {rule}"
                )

    @property
    def has_gates(self) -> bool:
        """True if a rollout step is divided by gates; otherwise it is a single segment."""
        return "gate" not in self.without

    @property
    def without_bits(self) -> int:
        """The switched-off mechanisms, as bits of the log's header."""
        return sum(1 << MECHANISMS.index(name) for name in self.without)


def _judged(name: str, value: Any) -> tuple[bool, str]:
    """Return whether `value` is valid for the parameter `name`, and the rule."""
    if name == "without":
        is_valid = isinstance(value, frozenset) and value <= set(MECHANISMS)
        return is_valid, f"a frozenset of {', '.join(MECHANISMS)}"
    if name == "latency_prior_ms":
        is_valid = len(value) == 5 and all(math.isfinite(one) and one >= 0 for one in value)
        return is_valid, "five finite numbers of at least 0"
    if name == "epsilon":
        return 0 < value <= 1, "above 0 and at most 1"
    if name in _MAY_BE_ZERO:
        return math.isfinite(value) and value >= 0, "finite and at least 0"
    return math.isfinite(value) and value > 0, "finite and above 0"
