"""The made-up versions are as dense as asked, and change as an optimizer changes weights."""

from itertools import pairwise

import numpy as np
import pytest

from bench.entropy import exponents, steps
from bench.versions import PATTERN, two_versions

COUNT = 1 << 18


@pytest.mark.parametrize("percent", [0.05, 0.8, 2.3, 6.7, 20, 50])
def test_as_many_change_as_asked_most_by_one_step(percent: float) -> None:
    versions = two_versions(COUNT, density=percent / 100)
    step = steps(versions.new, versions.old)
    changed = np.count_nonzero(step)
    assert changed / COUNT == pytest.approx(percent / 100, rel=0.3 if percent < 0.1 else 0.05)
    assert np.isin(step, [1, 0xFFFF]).sum() / changed == pytest.approx(0.89, abs=0.05)


def test_a_weight_of_half_the_size_changes_twice_as_often() -> None:
    versions = two_versions(1 << 22, density=0.02)
    exponent, is_changed = exponents(versions.old), versions.new != versions.old
    rates = [float(is_changed[exponent == one].mean()) for one in (121, 120, 119, 118)]
    for larger, smaller in pairwise(rates):
        assert smaller == pytest.approx(2 * larger, rel=0.1)


def test_versions_are_the_same_each_time_and_large_ones_repeat() -> None:
    one, same = two_versions(1000, density=0.1), two_versions(1000, density=0.1)
    assert np.array_equal(one.new, same.new)
    assert np.array_equal(one.old, same.old)
    large = two_versions(PATTERN + 5, density=0.01)
    assert len(large.new) == len(large.old) == PATTERN + 5
    assert np.array_equal(large.new[:5], large.new[PATTERN:])
