"""The user's targets."""

from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument

# Its nanoseconds must fit 64 bits.
_TARGET_MAX_MS: Final = 9e12


@dataclass(frozen=True, slots=True)
class SLO:
    """What serving's requests were promised.

    Args:
        ttft_ms: from a request's arrival to its first token.
        tpot_ms: from a token to the next.
        slowdown: the share by which rollouts may stretch the time between a running request's
            tokens, compared with serving alone. 0: rollouts run only while serving has no request.
            Infinite: they may take all that the two targets leave.
    """

    ttft_ms: float
    tpot_ms: float
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no request could meet.

        Raises:
            InvalidArgument: a target is not a finite number above 0, or `slowdown` is negative.
        """
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if not 0 < value <= _TARGET_MAX_MS:
                raise InvalidArgument(f"{name}={value} must be above 0 and at most 9e12")
        if not self.slowdown >= 0:
            raise InvalidArgument(f"slowdown={self.slowdown} must be 0 or more")
