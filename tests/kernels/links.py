"""Links on which a class changes nearly as a whole: a bitmap has its positions."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.reference import delta as reference
from tests.reference import strat
from tests.reference.delta import STRAT, Bits, Delta, entry_of
from tests.reference.strat import ClassRule

BLOCK = 16_384
RULE = ClassRule(7, 8, 120, 0, (2,) * strat.CLASSES)
DENSE, SPARSE = 121 << 7, 127 << 7  # weights of the classes 1 and 7


@dataclass(frozen=True)
class Link:
    """A delta, what it was made from, and what crosses a link in its place."""

    old: Bits
    delta: Delta
    rule: ClassRule
    link: Delta


@cache
def dense_link(count: int) -> Link:
    """Half of the weights change nearly all, by little; the others, of another class, hardly."""
    random = np.random.default_rng(count)
    is_dense = random.random(count) < 0.5
    old = (np.where(is_dense, DENSE, SPARSE) + random.integers(0, 128, count)).astype(np.uint16)
    by = random.geometric(0.9, count) * random.choice([1, -1], count)
    by[random.random(count) >= np.where(is_dense, 0.9, 0.003)] = 0
    delta = reference.pack((old + by).astype(np.uint16), old.copy(), block_elements=BLOCK)
    link = strat.strat_pack(delta, old, RULE)
    assert all(entry & 15 == STRAT for entry in link.entries)
    return Link(old, delta, RULE, link)


def bitmap_link(*flips: int) -> tuple[Bits, Delta]:
    """One block of 40 weights of a class, of which the first 30 change, but for some `flips`."""
    old = np.full(40, DENSE, np.uint16)
    differences = np.zeros_like(old)
    differences[:30] = 1
    words = strat.strat_block(old, differences, RULE)
    # In front of the bitmap: gamma of 1, 31 and 1 for this class, of 1 for each of the others.
    first = 1 + (9 + 1) + 6
    for element in flips:
        words[(first + element) // 32] ^= 1 << (first + element) % 32
    return old, Delta(40, BLOCK, [entry_of(STRAT, 30, 0, len(words))], words)
