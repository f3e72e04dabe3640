"""What a device says of itself to whoever decides how much it lends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rose.executor.probing import ShapeName
from rose.slo import SLO

TokenCounts: TypeAlias = tuple[tuple[int, int], ...]
"""How many tokens took at most so many nanoseconds: pairs, ascending, the last one of all tokens.

They are counted since the device was opened, so those of a time are a difference; a bucket is at
most 1/32 of its end wide.
"""


_TARGETS: Final = {
    "ttft": "the TTFT target of {:.3g} ms",
    "tpot": "the TPOT target of {:.3g} ms",
    "blocking": "the {:.3g} ms for which rollouts may block serving",
    "deadline": "the {:.3g} ms that a running request had left",
}


@dataclass(frozen=True, slots=True)
class ShapeEvidence:
    """What the bound of one step shape rests on.

    Args:
        shape: "step" or "chunk".
        scores: steps of its kind whose time was compared with a forecast.
        wanted: scores that a start-up collects.
        missing: further runs until there is a bound from that many scores; 0 where there is.
        bound_ms: the upper estimate of its time; None without evidence.
    """

    shape: ShapeName
    scores: int
    wanted: int
    missing: int
    bound_ms: float | None


@dataclass(frozen=True, slots=True)
class Binding:
    """What the newest refused certificate failed on.

    Args:
        shape: "step", "chunk" or "segment".
        predicted_ms: how long it takes by the forecast.
        bound_ms: the upper estimate of that; None without evidence.
        delay_ms: one segment of rollouts, and the time until a close is seen.
        target: "ttft", "tpot", "blocking" or "deadline".
        target_ms: the time that all of it must fit.
    """

    shape: str
    predicted_ms: float
    bound_ms: float | None
    delay_ms: float
    target: str
    target_ms: float

    @property
    def sentence(self) -> str:
        """One sentence for people."""
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
    """How serving is, and what is lent, at one moment.

    Args:
        pool_bytes: that both tenants share, in whole slabs.
        reserve_bytes: what serving can always have.
        slab_bytes: the unit of ownership.
        slo: of serving.
        used_share: of the pool's blocks that serving's requests hold, 0 to 1.
        running: requests that have their first token.
        waiting: those that have none yet; a step without a request counts as one while it runs.
        first_tokens: from a request's arrival to its first token.
        later_tokens: from a token to the next.
        lent_bytes: on loan, without what is being taken back.
        cap_bytes: the most that may be on loan now; the pool where nobody has set a cap.
        revocations: that serving's need began, since the device was opened.
        ebbs: (bytes on loan before it, bytes left) of each of the last 64 of them, oldest first.
        refusals: of quanta since the device was opened, by reason, a `Reason` in lower case.
        refused_s: seconds for which rollouts that wanted to run were refused, by reason.
        granted_s: seconds for which rollouts had a quantum.
        binding: what the newest refused certificate failed on; None where none has failed.
        evidence: of the two step shapes that certificates ask about.
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
        """Return how far what was on loan fell, with the revocations behind the first `since`.

        From the most that there was before one of them to the least that one left, so several small
        ones between two growths are one large one. None where they are too many to tell.
        """
        count = self.revocations - since
        if not 0 < count <= len(self.ebbs):
            return None
        ebbs = self.ebbs[-count:]
        most, least = max(before for before, _ in ebbs), min(left for _, left in ebbs)
        return (most - least) / most if most else None
