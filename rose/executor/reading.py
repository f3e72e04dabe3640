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
        ebbs: (bytes on loan before it, bytes left) of each of the last 64 of them, oldest first.
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
