"""What a device says of itself to whoever decides how much it lends."""

from dataclasses import dataclass
from typing import TypeAlias

from rose.slo import SLO

TokenCounts: TypeAlias = tuple[tuple[int, int], ...]
"""How many tokens took at most so many nanoseconds: pairs, ascending, the last one of all tokens.

They are counted since the device was opened, so those of a time are a difference; a bucket is at
most 1/32 of its end wide.
"""


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
