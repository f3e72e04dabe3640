"""The user's targets."""

import math
from dataclasses import dataclass

from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SLO:
    """What serving's requests were promised.

    Args:
        ttft_ms: from a request's arrival to its first token.
        tpot_ms: from a token to the next.
    """

    ttft_ms: float
    tpot_ms: float

    def __post_init__(self) -> None:
        """Refuse what no request could meet.

        Raises:
            InvalidArgument: a target is not a finite number above 0.
        """
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidArgument(f"{name}={value} must be a finite number above 0")
