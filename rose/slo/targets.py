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
            if not 0 < value <= _TARGET_MAX_MS:
                raise InvalidArgument(f"{name}={value} must be above 0 and at most 9e12")
