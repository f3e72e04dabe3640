"""Building blocks of the verifier's rules."""

from collections.abc import Callable
from typing import TypeAlias

# A condition, and the sentence that reports its violation. A callable builds the sentence only if
# the condition fails.
Claim: TypeAlias = tuple[bool, str | Callable[[], str]]


def broken(*claims: Claim) -> list[str]:
    """Return the sentences of all claims whose condition is false. Comparisons with NaN fail."""
    wrong = [sentence for holds, sentence in claims if not holds]
    return [one if isinstance(one, str) else one() for one in wrong]
