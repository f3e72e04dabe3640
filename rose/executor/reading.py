"""The report of a device to the broker, which decides how much the device lends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rose.events import SegmentLimit
from rose.executor.probing import ShapeName
from rose.slo import SLO

TokenCounts: TypeAlias = tuple[tuple[int, int], ...]
"""Cumulative histogram: ascending pairs (time in ns, number of tokens that took at most this time).

The last pair counts all tokens. Counts start when the device opens: subtract two readings to get
the counts of an interval. The width of a bucket is at most 1/32 of its upper bound.
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
        scores: number of steps of this kind that were compared with a forecast.
        wanted: number of scores that start-up collects.
        missing: number of further steps until there is a bound from `wanted` scores; 0 if there is
            such a bound.
        bound_ms: upper bound of the step time; None without evidence.
    """

    shape: ShapeName
    scores: int
    wanted: int
    missing: int
    bound_ms: float | None


@dataclass(frozen=True, slots=True)
class Binding:
    """The condition that the newest refused certificate violated.

    Args:
        shape: "step", "chunk" or "segment".
        predicted_ms: predicted time of that shape.
        bound_ms: upper bound of that time; None without evidence.
        delay_ms: time of one rollout segment, plus the delay until the borrower sees a closed gate.
        target: "ttft", "tpot", "blocking" or "deadline".
        target_ms: largest allowed sum of the bound and the delay.
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
    """Serving's load and the loans of a device at one moment. Counts start when the device opens.

    Args:
        pool_bytes: memory that both tenants share, in whole slabs.
        reserve_bytes: memory that serving can always have.
        slab_bytes: unit of ownership.
        slo: serving's latency targets.
        used_share: share of the pool's blocks that serving's requests hold, 0 to 1.
        running: number of requests that have their first token.
        waiting: number of requests without a first token; a running step that belongs to no request
            counts as a request.
        first_tokens: histogram of the times from arrival to first token.
        later_tokens: histogram of the times from one token to the next.
        lent_bytes: memory on loan, except slabs being taken back.
        cap_bytes: largest size of the memory on loan now; without a cap, the size of the pool.
        revocations: number of revocations for serving's needs.
        revoked: number of revocations by cause, a name of `Cause` in lower case.
        ebbs: (bytes on loan before, bytes after) of the last 64 of these revocations, oldest first.
        refusals: number of refused quanta by reason, a `Reason` in lower case.
        refused_s: seconds in which rollouts wanted to run and were refused, by reason.
        granted_s: seconds in which rollouts had a quantum.
        binding: the condition that the newest refused certificate violated, if any.
        evidence: evidence for the two step shapes that certificates rely on.
        kills: one sentence for each of the last borrowers that serving killed, the newest last.
        delay_ms: time of one rollout segment, plus the delay until the borrower sees a closed gate.
        waited_ms: time that serving waited for segments beyond their certificates in the last ten
            minutes.
        wait_budget_ms: largest allowed value of `waited_ms`.
        segment: refusal because of the length of the borrower's segments, if it is the newest.
        barred: why no borrower may attach now, as a sentence; None if one may.
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
    kills: tuple[str, ...] = ()
    revoked: Mapping[str, int] = field(default_factory=dict)
    delay_ms: float = 0.0
    waited_ms: float = 0.0
    wait_budget_ms: float = 0.0
    segment: SegmentLimit | None = None
    barred: str | None = None

    def targets_too_low(self) -> Mapping[str, float]:
        """Return the smallest feasible value of each target below it: no certificate is possible.

        Empty while a step shape has no bound. The target between tokens matters only if rollouts
        run beside requests, that is with `SLO.slowdown` above 0.
        """
        bounds = [one.bound_ms for one in self.evidence if one.bound_ms is not None]
        if len(bounds) < len(self.evidence):
            return {}
        least_ms = max(bounds, default=0.0) + self.delay_ms
        targets = {"ttft_ms": self.slo.ttft_ms}
        if self.slo.slowdown > 0:
            targets["tpot_ms"] = self.slo.tpot_ms
        return {name: least_ms for name, target_ms in targets.items() if target_ms < least_ms}

    def fallen_share(self, since: int) -> float | None:
        """Return the share by which the loan fell in all revocations after the first `since`.

        The largest loan before one of these revocations is compared with the smallest loan after
        one of them, so several small revocations count as a large one. None: there are no such
        revocations, `ebbs` does not list all of them, or nothing was on loan.
        """
        count = self.revocations - since
        if not 0 < count <= len(self.ebbs):
            return None
        ebbs = self.ebbs[-count:]
        most, least = max(before for before, _ in ebbs), min(left for _, left in ebbs)
        return (most - least) / most if most else None
