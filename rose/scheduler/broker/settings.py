"""Every knob of the broker, with its unit and the reason for its default."""

import math
from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument
from rose.scheduler.knobs import KnobRules
from rose.units import GIB, MS_PER_S

_SHARES: Final = ("lend_share", "grow_share", "sm_busy_max", "ttl_share")


def _is_share(value: float) -> bool:
    return 0 < value <= 1


_RULES: Final = KnobRules(
    most=1e15,
    integers=frozenset({"loan_bytes_min", "waiting_max"}),
    may_be_zero=frozenset(
        {"ebb_share", "waiting_max", "loan_bytes_min", "settle_ms", "life_worth_s"}
    ),
    bounds={
        **dict.fromkeys(_SHARES, _is_share),
        "keep_share": lambda share: share < 1,
        "ebb_share": lambda share: share < 1,
        "hold_growth": lambda growth: 1 < growth <= 100,
    },
)
_ORDERED: Final = (
    ("hold_min_ms", "hold_max_ms"),
    ("ttl_min_ms", "ttl_max_ms"),
    ("ttft_near", "ttft_late"),
    ("tpot_near", "tpot_late"),
)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What may be borrowed of serving devices, and when.

    Args:
        stale_after_ms: an older reading says nothing: three readings of every 5 s may be lost.
        settle_ms: calm that is seen before the first loan, and after readings that failed; two
            readings.
        peak_window_ms: serving's highest KV use in so long is what it is taken to need. A minute
            holds the second-scale bursts of chat traffic.
        lend_share: of what the peak and the reserve leave. The rest takes up growth between two
            readings, so that it is no revocation.
        grow_share: of what could be lent that one decision adds; a wrong guess then costs a quarter
            and not all.
        grow_every_ms: the least between two growths of a device, however often readings come.
        loan_bytes_min: less is not worth the borrower's start.
        ttft_near: tail (P99) of first tokens over its target that is pressure before a promise is
            broken.
        ttft_late: one that means serving is late.
        tpot_near: the same of later tokens. Rollouts spend the slack under this target on purpose,
            so its tail lies close to it, and engines count in buckets.
        tpot_late: one that no quantum of rollouts explains.
        keep_share: of a loan that is left when serving comes under pressure without being late:
            halves are gone within a few readings, and a false alarm costs one half.
        ebb_share: of what is on loan that may go back to serving between two readings as the ebb
            and flow of a pool: no revocation, which shrinks the loan and makes holds longer. A
            quarter is as much as one growth adds.
        waiting_max: requests that wait for serving; more are pressure. Those that come during a
            step wait for its end on an idle engine, too.
        sm_busy_max: a device busier than that gets no first loan. Later its use is the rollouts'
            too, and says nothing.
        hold_min_ms: no growth for so long after pressure; two readings see whether it was one
            burst.
        hold_growth: how many times longer the hold gets with each recent revocation, > 1.
        hold_max_ms: the longest hold: ten minutes cost a tenth of an idle night's hour.
        forgive_ms: calm after a hold for which one revocation is forgotten.
        hazard_per_s: revocations of a loan, before any was seen: one in ten minutes.
        hazard_prior_s: lent time that this belief weighs as much as.
        hazard_window_s: how long lent time and revocations count; an hour follows the day's course.
            A device that is not read for so long is forgotten.
        life_worth_s: a loan that is expected to be revoked sooner is not begun: weights come to the
            device in seconds.
        ttl_share: of the life that a loan is expected to have; a short part of it, so that a loan
            whose broker died ends before it would have been revoked.
        ttl_min_ms: two readings and a retry, or loans run out between renewals.
        ttl_max_ms: the longest that a dead broker's loans live.
    """

    stale_after_ms: float = 15_000.0
    settle_ms: float = 10_000.0
    peak_window_ms: float = 60_000.0
    lend_share: float = 0.8
    grow_share: float = 0.25
    grow_every_ms: float = 5_000.0
    loan_bytes_min: int = GIB
    ttft_near: float = 0.9
    ttft_late: float = 1.0
    tpot_near: float = 1.1
    tpot_late: float = 1.5
    keep_share: float = 0.5
    ebb_share: float = 0.25
    waiting_max: int = 3
    sm_busy_max: float = 0.95
    hold_min_ms: float = 10_000.0
    hold_growth: float = 2.0
    hold_max_ms: float = 600_000.0
    forgive_ms: float = 300_000.0
    hazard_per_s: float = 1 / 600
    hazard_prior_s: float = 600.0
    hazard_window_s: float = 3600.0
    life_worth_s: float = 10.0
    ttl_share: float = 0.1
    ttl_min_ms: float = 15_000.0
    ttl_max_ms: float = 60_000.0

    def __post_init__(self) -> None:
        """Refuse values without a meaning.

        Raises:
            InvalidArgument: a knob is out of its range, or contradicts another.
        """
        _RULES.check(self)
        for low, high in _ORDERED:
            if getattr(self, low) > getattr(self, high):
                raise InvalidArgument(f"BrokerSettings({low}) must be at most {high}")

    def hold_ms(self, level: int) -> float:
        """Return how long no loan grows after pressure, with so many recent revocations."""
        return min(self.hold_max_ms, self.hold_min_ms * self.hold_growth**level)

    @property
    def level_max(self) -> int:
        """The number of revocations from which on the hold is at its longest."""
        return math.ceil(math.log(self.hold_max_ms / self.hold_min_ms, self.hold_growth))

    def ttl_ms(self, expected_life_s: float) -> float:
        """Return how long a loan lives without being renewed."""
        wished_ms = self.ttl_share * expected_life_s * MS_PER_S
        return min(self.ttl_max_ms, max(self.ttl_min_ms, wished_ms))
