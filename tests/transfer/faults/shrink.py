"""The shortest script that still fails, as far as leaving events out can find it."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
TRIALS_MAX: Final = 600


def shortest(events: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Leave out ever smaller stretches while what is left still fails; bounded in trials."""
    kept = list(events)
    trials = 0
    size = len(kept) // 2
    while size > 0:
        at = 0
        is_shorter = False
        while at < len(kept) and trials < TRIALS_MAX:
            trials += 1
            without = kept[:at] + kept[at + size :]
            if fails(without):
                kept, is_shorter = without, True
            else:
                at += size
        size = size if is_shorter and size == 1 else size // 2
        if trials >= TRIALS_MAX:
            break
    return kept
