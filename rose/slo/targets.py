"""The user's latency targets."""

from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument

# The target in nanoseconds must fit 64 bits.
_TARGET_MAX_MS: Final = 9e12


@dataclass(frozen=True, slots=True)
class SLO:
    """Latency targets of serving's requests.

    Args:
        ttft_ms: longest time in milliseconds from a request's arrival to its first token.
        tpot_ms: longest time in milliseconds between two tokens of a request.
        slowdown: share by which rollouts may lengthen the time between a running request's tokens,
            compared with serving alone. 0: rollouts run only while serving has no request.
            Infinite: rollouts may use all slack of the two targets.
    """

    ttft_ms: float
    tpot_ms: float
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        """Check the targets.

        Raises:
            InvalidArgument: a target is not a finite number above 0, or `slowdown` is negative.
        """
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if not 0 < value <= _TARGET_MAX_MS:
                raise InvalidArgument(f"{name} must be above 0 and at most 9e12, got {value}")
        if not self.slowdown >= 0:
            raise InvalidArgument(f"slowdown must be 0 or more, got {self.slowdown}")
