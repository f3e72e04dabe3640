"""The parameters of rose's promises, with units and reasons for their defaults."""

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from rose.errors import InvalidArgument

# Segments that may wait in a GPU's stream. One would leave the GPU idle between segments; each more
# is one more to run to its end when a step is aborted.
GATE_WINDOW: Final = 2
# Slabs revoked beyond the missing ones, so that the next request does not start another revocation.
REVOKE_AHEAD_SLABS: Final = 1
# The time estimate of a segment is this quantile of recent segments.
SEGMENT_SHARE: Final = 0.99
# Longest time between two checks of the creditor without an event. A missed event costs this.
POLL_MS: Final = 5.0
# Retry interval of the creditor after a refusal; when serving becomes idle it is woken at once.
RETRY_MS: Final = 2.0
# Longest mutual wait of a parked step and a serving call declared as blocking, before one segment
# is let through. Longer than such a call takes by itself.
WATCHDOG_MS: Final = 50.0
# Weight of a measured step after one more: a memory of 500 steps, seconds of serving.
FORGETTING: Final = 0.998
# Shift of an upper estimate's level by one miss, as a share of epsilon. With a half, 3 to 5 of 100
# steps of a steady machine have no bound; with a fifth, less than one. Both keep epsilon. With a
# tenth, lending may take over a minute to return after a neighbour's burst.
ADAPTATION_SHARE: Final = 0.2
# Residuals, speeds and prompts to keep. Quantiles need at least 1 / epsilon of them.
RESIDUAL_WINDOW: Final = 512

# Zero means "none" for these; every other parameter must be above 0.
_MAY_BE_ZERO: Final = frozenset({"burst_requests", "regrow_after_ms"})

MECHANISMS: Final = ("gate", "credit", "early_close", "hypothetical", "margin")
"""Mechanisms that can be switched off to measure their value, in the order of the log's bits."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the executor.

    Args:
        without: names of `MECHANISMS` to switch off. For measurements only: certificates of such a
            device prove nothing.
        max_segments: the quantum: segments that the borrower may run ahead of serving's permission.
            Two suffice; eight tolerate a creditor that is late by several segments on a busy
            machine.
        heartbeat_ttl_ms: silence after which a serving host counts as frozen. Longer than its
            longest step and than a garbage collection of Python.
        signal_ms: delay until the borrower sees a close. On a CPU it is one store; the default
            covers a thread that was briefly descheduled.
        blocking_ms: longest delay of serving by a whole quantum, if a close goes unseen.
        segment_prior_ms: estimated time of a segment before any measurement.
        park_wait_ms: longest wait of a serving step for the running segment. After it serving goes
            on, whatever the borrower does.
        epsilon: share of serving steps that may exceed the upper estimate of their time or speed,
            and of prompts that may be longer than certificates assume.
        latency_prior_ms: milliseconds per step, decoding sequence, context token, prefill token,
            and prefill token times context token, before any measurement.
        revoke_ms: T, the longest duration of a revocation: an abort at the next gate, with room for
            a thread that was briefly descheduled.
        regrow_after_ms: pause after a revocation before new loans; slabs that come and go would
            abort step after step.
        aborts_per_s: average rate of steps that may be aborted for their slabs; bursts of one
            second's worth are free. Each further abort delays new loans until the rate is met
            again; revocations never wait. Five leave a 100 ms step half of its time.
        lease_ttl_ms: time after which a loan that is not renewed is revoked, and a borrower in
            serving's process that is late is removed.
        burst_requests: least number of requests assumed to arrive within T besides the largest one;
            the number seen within T counts if larger.
        arrival_memory_ms: time for which the most arrivals within T count. A shorter time lends
            again sooner after a storm, and is surprised by the next one.
        tend_every_ms: interval of deadline checks; well below lease and heartbeat TTL.
    """

    without: frozenset[str] = frozenset()

    max_segments: int = 8
    heartbeat_ttl_ms: float = 250.0
    signal_ms: float = 1.0
    blocking_ms: float = 100.0
    segment_prior_ms: float = 5.0
    park_wait_ms: float = 1000.0

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
            if not _is_in_range(field.name, getattr(self, field.name)):
                raise InvalidArgument(
                    f"Policy({field.name}={getattr(self, field.name)}) is out of range"
                )

    @property
    def has_gates(self) -> bool:
        """Whether a rollout step has gates within it."""
        return "gate" not in self.without

    @property
    def without_bits(self) -> int:
        """The switched-off mechanisms, as bits of the log's header."""
        return sum(1 << MECHANISMS.index(name) for name in self.without)


def _is_in_range(name: str, value: Any) -> bool:
    """Return whether `value` is valid for the parameter `name`."""
    if name == "without":
        return isinstance(value, frozenset) and value <= set(MECHANISMS)
    if name == "latency_prior_ms":
        return len(value) == 5 and all(math.isfinite(one) and one >= 0 for one in value)
    if not math.isfinite(value) or (name == "epsilon" and value > 1):
        return False
    return bool(value >= 0 if name in _MAY_BE_ZERO else value > 0)
