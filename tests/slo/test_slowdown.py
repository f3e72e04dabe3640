"""The slowdown beside rollouts is bounded by what was seen, and by the prior before that."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import SlowdownBound
from rose.errors import InvalidArgument
from tests.reference.conformal import PlainBound

KNOBS = {"epsilon": 0.05, "adaptation": 0.02, "window": 32}


def test_before_any_step_the_prior_speaks() -> None:
    assert SlowdownBound(**KNOBS).upper() == 2.0
    assert SlowdownBound(prior=1.25, **KNOBS).upper() == 1.25
    assert SlowdownBound(**KNOBS).coverage == 1.0


def test_the_prior_holds_until_there_is_evidence_for_less() -> None:
    bound = SlowdownBound(prior=2.0, epsilon=0.05, adaptation=0.0, window=64)
    for _ in range(18):  # of 18 steps and the next, less than one in twenty can be seen to miss
        bound.observe(1.0)
        assert bound.upper() == 2.0
    bound.observe(1.0)
    assert bound.upper() == 1.0


def test_steps_slower_than_the_prior_count_at_once() -> None:
    bound = SlowdownBound(prior=1.1, **KNOBS)
    bound.observe(3.0)
    assert bound.upper() >= 3.0


@given(
    ratios=st.lists(st.floats(0, 1e12) | st.floats(0.5, 3), max_size=120),
    epsilon=st.sampled_from([0.01, 0.05, 0.2]),
    adaptation=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    window=st.sampled_from([1, 2, 7, 64]),
)
def test_upper_is_that_of_the_plain_bound(
    ratios: list[float], epsilon: float, adaptation: float, window: int
) -> None:
    knobs = {"epsilon": epsilon, "adaptation": adaptation, "window": window}
    bound, plain = SlowdownBound(prior=1.5, **knobs), PlainBound(**knobs)

    def upper() -> float:
        if math.isfinite(plain.margin()):
            return plain.margin()
        return max([1.5, *(1.5 * one for one in plain.scores)])

    missed = 0
    for ratio in ratios:
        missed += ratio > upper()
        bound.observe(ratio)
        plain.observe(ratio)
        assert bound.upper() == upper()
        assert 1 <= bound.upper() < math.inf
    assert bound.observations == len(ratios)
    assert bound.coverage == pytest.approx(1 - missed / max(1, len(ratios)))


def test_coverage_follows_epsilon_while_rollouts_get_heavier() -> None:
    random = np.random.default_rng(41)
    bound = SlowdownBound(epsilon=0.05, adaptation=0.005, window=512)
    steps = 20_000
    for number in range(steps):
        heavier = 1.1 + number / steps + (0.4 if number > steps / 2 else 0.0)
        bound.observe(heavier * random.lognormal(0, 0.05))
    assert 0.95 - 0.001 <= bound.coverage <= 0.97


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5, 1e13])
def test_a_ratio_that_is_none_is_refused_and_changes_nothing(bad: float) -> None:
    bound = SlowdownBound(**KNOBS)
    with pytest.raises(InvalidArgument, match="slowdown"):
        bound.observe(bad)
    assert (bound.observations, bound.upper()) == (0, 2.0)


@pytest.mark.parametrize(
    "knob", [{"prior": 0.5}, {"epsilon": 0.0}, {"adaptation": 2.0}, {"window": 0}]
)
def test_knobs_without_a_meaning_are_refused(knob: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        SlowdownBound(**{"prior": 2.0, **KNOBS, **knob})
