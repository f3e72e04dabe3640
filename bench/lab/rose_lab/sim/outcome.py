"""Results of an arm, and the missed targets that the arm itself caused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.errors import check
from rose.slo import SLO


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Latencies of one request.

    Args:
        ttft_ms: time from its arrival to its first token.
        longest_gap_ms: longest time between two of its tokens; 0 with one token.
        mean_tpot_ms: mean time between its tokens; 0 with one token.
        output_tokens: number of its tokens.
        late_gaps: number of gaps longer than the run's TPOT target.
    """

    ttft_ms: float
    longest_gap_ms: float
    mean_tpot_ms: float
    output_tokens: int
    late_gaps: int = 0

    def meets(self, slo: SLO) -> bool:
        """Return True if the first token and every later token came in time."""
        return self.ttft_ms <= slo.ttft_ms and self.longest_gap_ms <= slo.tpot_ms


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """Result of one scheme on one trace.

    Args:
        scheme: name of the scheme.
        requests: results in order of arrival.
        wall_ms: time until the last request was served, or `until_ms` of the run if that is later.
        serving_busy_ms: device time of serving steps.
        harvest_ms: rollout work done, in ms of an undisturbed device.
        segments: started units of rollout work.
        pauses_ms: for each arrival while rollouts ran, the time until rollouts stopped.
        blocked_ms: wait of each serving step for a running segment, beyond the lent time.
        lent_ms: time for which serving let rollouts go first, over all steps.
        grants: number of decisions to let rollouts run.
        refusals: number of decisions to hold rollouts back.
        certificates_verified: certificates that the independent verifier accepts; None without a
            log.
        violations: violations that the verifier reports; None without a log.
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
        """Return rollouts' share of the device."""
        return self.harvest_ms / self.wall_ms if self.wall_ms else 0.0

    def quantile(self, column: str, share: float) -> float:
        """Return a quantile of "ttft_ms" or of the requests' mean "tpot_ms"; NaN without values."""
        if column == "ttft_ms":
            values = [one.ttft_ms for one in self.requests]
        else:
            values = [one.mean_tpot_ms for one in self.requests if one.output_tokens > 1]
        return float(np.quantile(values, share)) if values else float("nan")

    @property
    def busy(self) -> float:
        """Return the share of time with serving steps."""
        return self.serving_busy_ms / self.wall_ms if self.wall_ms else 0.0


PRICES: Final = tuple(
    f"{what}_{at}_times_alone" for what in ("ttft", "tpot") for at in ("p50", "p99")
)
"""Names of the costs that lending has for serving: latency quantiles relative to serving alone."""

# Returns a quantile of "ttft_ms" or of "tpot_ms".
Quantile = Callable[[str, float], float]


def price(arm: Quantile, alone: Quantile) -> dict[str, float]:
    """Return the value of each of `PRICES`; a ratio is NaN if either arm has no such latency."""
    at = [(column, share) for column in ("ttft_ms", "tpot_ms") for share in (0.5, 0.99)]
    return {name: arm(*one) / alone(*one) for name, one in zip(PRICES, at, strict=True)}


def missed(arm: ArmOutcome, *, slo: SLO) -> frozenset[int]:
    """Return the requests whose first token or longest gap missed its target."""
    return frozenset(n for n, request in enumerate(arm.requests) if not request.meets(slo))


def excess_misses(arm: ArmOutcome, alone: ArmOutcome, *, slo: SLO) -> frozenset[int]:
    """Return the requests that met their targets in serving alone, but missed one in this arm."""
    check(len(arm.requests) == len(alone.requests), "the arms served different traces")
    return missed(arm, slo=slo) - missed(alone, slo=slo)
