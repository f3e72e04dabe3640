"""Building blocks of the verifier's rules."""

from collections.abc import Callable
from typing import TypeAlias

# A condition, and the sentence if it fails; lazy, since most hold.
Claim: TypeAlias = tuple[bool, str | Callable[[], str]]


def broken(*claims: Claim) -> list[str]:
    """Return the sentences of failed claims; a comparison with NaN fails."""
    wrong = [sentence for holds, sentence in claims if not holds]
    return [one if isinstance(one, str) else one() for one in wrong]
