"""The bounds, against counting by hand and against densities whose entropy is known."""

from collections import Counter
from math import log2

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bench.entropy import class_entropy_bytes, exponents, iid_entropy_bytes, steps

Bits = npt.NDArray[np.uint16]


def pairs_of_versions() -> st.SearchStrategy[tuple[Bits, Bits]]:
    def both(count: int) -> st.SearchStrategy[tuple[Bits, Bits]]:
        row = arrays.arrays(np.uint16, count, elements=st.integers(0, 0xFFFF))
        few = arrays.arrays(np.uint16, count, elements=st.sampled_from([0, 0, 0, 1, 0xFFFF, 9]))
        return st.tuples(row, few).map(lambda pair: (pair[0] + pair[1], pair[0]))

    return st.integers(1, 200).flatmap(both).filter(lambda pair: bool((pair[0] != pair[1]).any()))


def plain_bits(new: Bits, old: Bits) -> float:
    """Return n H(p) + k H(step given a change), as the definition has it."""
    changes = [(b - a) % 65536 for a, b in zip(old.tolist(), new.tolist(), strict=True) if a != b]
    n, k = len(new), len(changes)
    if k == 0:
        return 0.0
    where = k * log2(n / k) + ((n - k) * log2(n / (n - k)) if k < n else 0.0)
    return where + sum(times * log2(k / times) for times in Counter(changes).values())


@given(pairs_of_versions())
def test_the_iid_bound_is_positions_and_steps(pair: tuple[Bits, Bits]) -> None:
    new, old = pair
    changed = int((new != old).sum())
    assert iid_entropy_bytes(new, old) == pytest.approx(plain_bits(new, old) / changed / 8)


@given(pairs_of_versions())
def test_the_class_bound_is_that_of_every_exponent_by_itself(pair: tuple[Bits, Bits]) -> None:
    new, old = pair
    fields = [(one >> 7) & 255 for one in old.tolist()]
    bits = 0.0
    for field in set(fields):
        of_it = np.array([one == field for one in fields])
        bits += plain_bits(new[of_it], old[of_it])
    changed = int((new != old).sum())
    assert class_entropy_bytes(new, old) == pytest.approx(bits / changed / 8)


@given(pairs_of_versions())
def test_knowing_the_exponent_never_costs(pair: tuple[Bits, Bits]) -> None:
    assert class_entropy_bytes(*pair) <= iid_entropy_bytes(*pair) + 1e-9


# Density in percent, and the bits of a position in section 3 of the study of real steps.
@pytest.mark.parametrize(
    ("percent", "bits"), [(0.46, 9.20), (0.81, 8.38), (1.33, 7.66), (6.2, 5.41)]
)
def test_positions_cost_what_the_study_found(percent: float, bits: float) -> None:
    count = 1 << 20
    old = np.full(count, 0x3C12, np.uint16)
    new = old.copy()
    new[: round(count * percent / 100)] += 1  # one step for all: only where they are is news
    assert 8 * iid_entropy_bytes(new, old) == pytest.approx(bits, abs=0.01)


def test_signs_cost_a_bit_and_rare_steps_their_share() -> None:
    old = np.full(1000, 0x3C12, np.uint16)
    new = old.copy()
    new[:8] += 1
    new[8:16] -= 1
    where = (1000 * log2(1000) - 16 * log2(16) - 984 * log2(984)) / 16
    assert 8 * iid_entropy_bytes(new, old) == pytest.approx(where + 1)
    new[0] += 4
    new[8] -= 4
    assert 8 * iid_entropy_bytes(new, old) == pytest.approx(where + 1 + 0.5436, abs=1e-3)


def test_changes_that_follow_from_the_exponent_cost_nothing() -> None:
    old = np.repeat(np.array([0x3C12, 0xB912], np.uint16), 500)
    new = old.copy()
    new[500:] += 1
    assert class_entropy_bytes(new, old) == 0.0
    assert 8 * iid_entropy_bytes(new, old) == pytest.approx(2.0)


def test_exponents_are_the_eight_bits_behind_the_sign() -> None:
    bits = np.array([0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFFFF, 0x007F], np.uint16)
    assert exponents(bits).tolist() == [0, 0, 127, 127, 255, 255, 0]


def test_steps_wrap() -> None:
    old = np.array([0xFFFF, 0x0000, 0x8000], np.uint16)
    new = np.array([0x0000, 0xFFFF, 0x0000], np.uint16)
    assert steps(new, old).tolist() == [1, 0xFFFF, 0x8000]
