"""What an arm of a comparison did, and which of its misses are its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.errors import check
from rose.slo import SLO


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """How one request was served.

    Args:
        ttft_ms: from its arrival to its first token.
        longest_gap_ms: between two of its tokens; 0 when it has one.
        mean_tpot_ms: mean of these gaps; 0 when it has one token.
        output_tokens: that it got.
        late_gaps: how many of its gaps were over the target of the run.
    """

    ttft_ms: float
    longest_gap_ms: float
    mean_tpot_ms: float
    output_tokens: int
    late_gaps: int = 0

    def late_tokens(self, slo: SLO) -> int:
        """Return how many of its tokens came too late; `slo` is that of the run."""
        return self.late_gaps + (self.ttft_ms > slo.ttft_ms)

    def meets(self, slo: SLO) -> bool:
        """Whether the first token and every later one came in time."""
        return self.ttft_ms <= slo.ttft_ms and self.longest_gap_ms <= slo.tpot_ms


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """One scheme on one trace.

    Args:
        scheme: its name.
        requests: in the order of arrival.
        wall_ms: until the last request was served.
        serving_busy_ms: the device worked on serving steps.
        harvest_ms: rollout work that was done, in ms of an undisturbed device.
        segments: pieces of rollout work that started.
        pauses_ms: from an arrival that found rollouts on the device to their end, each.
        blocked_ms: how long each serving step waited for a running segment, beyond what serving
            had lent.
        lent_ms: how long serving let rollouts go first, over all steps.
        grants: decisions for rollouts.
        refusals: decisions against.
        certificates_verified: certificates that the independent verifier accepts; None when no
            log was asked for.
        violations: what the verifier objects to; None when no log was asked for.
    """

    scheme: str
    requests: tuple[RequestOutcome, ...]
    wall_ms: float
    serving_busy_ms: float
    harvest_ms: float
    segments: int
    pauses_ms: tuple[float, ...]
    blocked_ms: tuple[float, ...]
    lent_ms: float
    grants: int
    refusals: int
    certificates_verified: int | None = None
    violations: tuple[str, ...] | None = None

    @property
    def harvest(self) -> float:
        """The share of the device that rollouts got."""
        return self.harvest_ms / self.wall_ms if self.wall_ms else 0.0

    def quantile(self, column: str, share: float) -> float:
        """Return a quantile of "ttft_ms", or of "tpot_ms", which is a request's mean; or NaN."""
        if column == "ttft_ms":
            values = [one.ttft_ms for one in self.requests]
        else:
            values = [one.mean_tpot_ms for one in self.requests if one.output_tokens > 1]
        return float(np.quantile(values, share)) if values else float("nan")

    @property
    def busy(self) -> float:
        """The share of the time in which the device worked on serving steps."""
        return self.serving_busy_ms / self.wall_ms if self.wall_ms else 0.0


PRICES: Final = tuple(
    f"{what}_{at}_times_alone" for what in ("ttft", "tpot") for at in ("p50", "p99")
)
"""What lending costs serving: quantiles of its latencies over those of serving alone."""

# Returns a quantile of "ttft_ms" or of "tpot_ms".
Quantile = Callable[[str, float], float]


def price(arm: Quantile, alone: Quantile) -> dict[str, float]:
    """Return each of `PRICES`; NaN where nobody has such a latency."""
    at = [(column, share) for column in ("ttft_ms", "tpot_ms") for share in (0.5, 0.99)]
    return {name: arm(*one) / alone(*one) for name, one in zip(PRICES, at, strict=True)}


def missed(arm: ArmOutcome, *, slo: SLO) -> frozenset[int]:
    """Return the requests whose first token or longest gap was over its target."""
    return frozenset(n for n, request in enumerate(arm.requests) if not request.meets(slo))


def excess_misses(arm: ArmOutcome, alone: ArmOutcome, *, slo: SLO) -> frozenset[int]:
    """Return the requests that serving alone would have served in time, and this arm did not."""
    check(len(arm.requests) == len(alone.requests), "the arms served different traces")
    return missed(arm, slo=slo) - missed(alone, slo=slo)


def excess_late_share(arm: ArmOutcome, alone: ArmOutcome, *, slo: SLO) -> float:
    """Return the share of all tokens that are late beyond those that are late alone.

    What a certificate's error rate is about: the share of steps that may take longer than foreseen.
    A request of many tokens is missed for a single one of them, so more requests are.
    """
    tokens = sum(request.output_tokens for request in arm.requests)
    late, late_alone = (
        sum(request.late_tokens(slo) for request in one.requests) for one in (arm, alone)
    )
    return max(0, late - late_alone) / tokens if tokens else 0.0
