"""Noise is the same for the same step, whoever asks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rose_lab.sim.device import Noise


@given(indices=st.lists(st.integers(0, 10_000), min_size=1, max_size=30))
def test_the_factor_of_a_step_does_not_depend_on_the_order_of_questions(indices) -> None:
    asked = Noise(np.random.default_rng(5), sigma=0.1)
    in_order = Noise(np.random.default_rng(5), sigma=0.1)
    expected = [in_order.factor(index) for index in range(max(indices) + 1)]
    assert [asked.factor(index) for index in indices] == [expected[index] for index in indices]


def test_factors_have_a_mean_of_one_and_the_spread_asked_for() -> None:
    noise = Noise(np.random.default_rng(5), sigma=0.1)
    factors = np.array([noise.factor(index) for index in range(50_000)])
    assert abs(factors.mean() - 1) < 0.005
    assert abs(np.log(factors).std() - 0.1) < 0.005
