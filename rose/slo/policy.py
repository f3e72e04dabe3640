"""Every knob of rose's promises, with its unit and the reason for its default."""

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from rose.errors import InvalidArgument

# Segments that may wait in a GPU's stream. One would leave the GPU idle between two segments; each
# more is one more to let run when a step is aborted.
GATE_WINDOW: Final = 2
# Slabs taken back beyond what is missing, so that the next request does not start another
# revocation.
REVOKE_AHEAD_SLABS: Final = 1
# The estimate of a segment's time is what this share of recent segments did not exceed.
SEGMENT_SHARE: Final = 0.99
# The creditor looks this often when no event wakes it. A missed event costs this much.
POLL_MS: Final = 5.0
# How soon the creditor asks again after a refusal; it is woken at once when serving becomes idle.
RETRY_MS: Final = 2.0
# How long a parked step and a serving call declared as blocking may wait for each other before one
# segment is let through. Longer than such a call takes by itself.
WATCHDOG_MS: Final = 50.0
# Weight of a measured step after one more: a memory of 500 steps, seconds of serving.
FORGETTING: Final = 0.998
# How far one miss moves the level of an upper estimate, as a share of epsilon. With a half, 3 to 5
# of 100 steps of a steady machine have no bound; with a fifth, less than one. Both keep epsilon.
# With a tenth, lending may not come back within a minute of a neighbour's burst.
ADAPTATION_SHARE: Final = 0.2
# Residuals, speeds and prompts kept. Quantiles need at least 1 / epsilon of them.
RESIDUAL_WINDOW: Final = 512

# Zero means "none of it" for these; every other knob must be above 0.
_MAY_BE_ZERO: Final = frozenset({"burst_requests", "regrow_after_ms"})

MECHANISMS: Final = ("gate", "credit", "early_close", "hypothetical", "margin")
"""What can be switched off by name, to see what it is worth, in the order of the log's bits."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the executor may do, and when it must refuse.

    Args:
        without: names of `MECHANISMS` that are switched off. For measurements: what such a device
            certifies is no proof.
        max_segments: the quantum: segments the borrower may be ahead of serving's word. Two would
            do; eight let the creditor be late by several segments on a busy machine.
        heartbeat_ttl_ms: a serving host silent for longer counts as frozen. Longer than its longest
            step and than a pause of Python's garbage collector.
        signal_ms: from a close to the borrower's seeing it. On a CPU one store; the default covers
            a thread that lost its core for a moment.
        blocking_ms: the most a whole quantum may delay serving, should a close go unseen.
        segment_prior_ms: what a segment takes before any was measured.
        park_wait_ms: the longest a serving step waits for the running segment. Serving goes on
            after it, whatever the borrower does.
        epsilon: share of serving steps that may exceed the upper estimate of their time, or of
            their speed, and of prompts that may be longer than certificates reckon with.
        latency_prior_ms: milliseconds per step, per decoding sequence, per context token, per
            prefill token, and per prefill token times context token, before any was measured.
        revoke_ms: T, the longest a revocation may take: an abort at the next gate, with room for a
            thread that lost its core.
        regrow_after_ms: no new loan for so long after a revocation: slabs that come and go abort
            step after step.
        aborts_per_s: steps that may be aborted for their slabs, on average; as many in a second
            cost nothing. Each one more holds new loans off until it is made up for: what is taken
            back never waits. Five leave a step of 100 ms half of its time.
        lease_ttl_ms: a loan that is not renewed for so long is taken back; a borrower in serving's
            process that is late for so long is taken out.
        burst_requests: requests that are taken to arrive within T besides the largest one, at
            least; as many as have come within T are, when that is more.
        arrival_memory_ms: the most requests that came within T count for so long. Shorter lends
            again sooner after a storm, and is surprised by the next one.
        tend_every_ms: how often deadlines are looked after; well under lease and heartbeat TTL.
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
        """Refuse values without a meaning.

        Raises:
            InvalidArgument: a knob is out of its range; the sentence names it.
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
        """The mechanisms that are switched off, as bits of the log's header."""
        return sum(1 << MECHANISMS.index(name) for name in self.without)


def _is_in_range(name: str, value: Any) -> bool:
    """Return whether `value` means something as the knob `name`."""
    if name == "without":
        return isinstance(value, frozenset) and value <= set(MECHANISMS)
    if name == "latency_prior_ms":
        return len(value) == 5 and all(math.isfinite(one) and one >= 0 for one in value)
    if not math.isfinite(value) or (name == "epsilon" and value > 1):
        return False
    return bool(value >= 0 if name in _MAY_BE_ZERO else value > 0)
