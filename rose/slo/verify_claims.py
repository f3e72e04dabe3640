"""What the verifier's rules are made of."""

from collections.abc import Callable
from typing import TypeAlias

# What must hold, and what is said when it does not: most often it does, and nothing is formatted.
Claim: TypeAlias = tuple[bool, str | Callable[[], str]]


def broken(*claims: Claim) -> list[str]:
    """Return the sentences of the claims that do not hold; a comparison with NaN does not."""
    wrong = [sentence for holds, sentence in claims if not holds]
    return [one if isinstance(one, str) else one() for one in wrong]
