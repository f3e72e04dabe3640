"""The report of a device to the broker that decides how much it lends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rose.executor.probing import ShapeName
from rose.slo import SLO

TokenCounts: TypeAlias = tuple[tuple[int, int], ...]
"""Cumulative histogram: ascending pairs (nanoseconds, tokens that took at most that long).

The last pair counts all tokens. Counts start when the device opens: subtract two readings for the
counts of an interval. A bucket is at most 1/32 of its upper bound wide.
"""


_TARGETS: Final = {
    "ttft": "the TTFT target of {:.4g} ms",
    "tpot": "the TPOT target of {:.4g} ms",
    "blocking": "the {:.4g} ms for which rollouts may block serving",
    "deadline": "the {:.4g} ms that a running request had left",
}


@dataclass(frozen=True, slots=True)
class ShapeEvidence:
    """Evidence behind the bound of one step shape.

    Args:
        shape: "step" or "chunk".
        scores: steps of this kind that were compared with a forecast.
        wanted: scores that start-up collects.
        missing: runs still needed for a bound from `wanted` scores; 0 if there is one.
        bound_ms: upper bound of the step time; None without evidence.
    """

    shape: ShapeName
    scores: int
    wanted: int
    missing: int
    bound_ms: float | None


@dataclass(frozen=True, slots=True)
class Binding:
    """The condition that the newest refused certificate failed.

    Args:
        shape: "step", "chunk" or "segment".
        predicted_ms: predicted time of that shape.
        bound_ms: upper bound of that time; None without evidence.
        delay_ms: one rollout segment plus the time until it sees a close.
        target: "ttft", "tpot", "blocking" or "deadline".
        target_ms: limit for the bound plus the delay.
    """

    shape: str
    predicted_ms: float
    bound_ms: float | None
    delay_ms: float
    target: str
    target_ms: float

    @property
    def sentence(self) -> str:
        """The condition as one sentence."""
        must = f"must fit {_TARGETS[self.target].format(self.target_ms)}"
        if self.target == "blocking":
            return f"{self.delay_ms:.3g} ms, the shortest wait for rollouts, {must}"
        bound = "no bound yet" if self.bound_ms is None else f"bound {self.bound_ms:.3g} ms"
        what = {"step": "the largest step", "chunk": "the largest prompt chunk"}[self.shape]
        return (
            f"{what} takes {self.predicted_ms:.3g} ms ({bound}), and {must} "
            f"beside {self.delay_ms:.3g} ms of rollouts"
        )


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Serving's load and the loans of a device at one moment; counts start when it opens.

    Args:
        pool_bytes: memory that both tenants share, in whole slabs.
        reserve_bytes: memory that serving can always have.
        slab_bytes: unit of ownership.
        slo: serving's latency targets.
        used_share: share of the pool's blocks that serving's requests hold, 0 to 1.
        running: requests with a first token.
        waiting: requests without one; a step without a request counts as one while it runs.
        first_tokens: times from arrival to first token.
        later_tokens: times from one token to the next.
        lent_bytes: memory on loan, except slabs being taken back.
        cap_bytes: maximum memory on loan now; without a cap, the pool.
        revocations: revocations for serving's needs.
        ebbs: (bytes on loan before, bytes after) of the last 64 of these, oldest first.
        refusals: refused quanta by reason, a `Reason` in lower case.
        refused_s: seconds in which rollouts wanted to run and were refused, by reason.
        granted_s: seconds in which rollouts had a quantum.
        binding: failed condition of the newest refused certificate, if any.
        evidence: evidence for the two step shapes that certificates rely on.
    """

    pool_bytes: int
    reserve_bytes: int
    slab_bytes: int
    slo: SLO
    used_share: float
    running: int
    waiting: int
    first_tokens: TokenCounts
    later_tokens: TokenCounts
    lent_bytes: int
    cap_bytes: int
    revocations: int
    ebbs: tuple[tuple[int, int], ...]
    refusals: Mapping[str, int] = field(default_factory=dict)
    refused_s: Mapping[str, float] = field(default_factory=dict)
    granted_s: float = 0.0
    binding: Binding | None = None
    evidence: tuple[ShapeEvidence, ...] = ()

    def fallen_share(self, since: int) -> float | None:
        """Return the share by which the loan fell in the revocations after the first `since`.

        It compares the largest loan before any of them with the smallest after any, so several
        small revocations count as one large one. None without revocations, or if there are too
        many to list.
        """
        count = self.revocations - since
        if not 0 < count <= len(self.ebbs):
            return None
        ebbs = self.ebbs[-count:]
        most, least = max(before for before, _ in ebbs), min(left for _, left in ebbs)
        return (most - least) / most if most else None
