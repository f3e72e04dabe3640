"""The upper estimate keeps its promise on data that nobody chose for it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import LatencyModel
from rose.errors import InvalidArgument

STEP = {"decode_sequences": 1.0, "context_tokens": 100.0, "prefill_tokens": 0.0}


def make_model(**changes) -> LatencyModel:
    knobs = {
        "prior_ms": (5.0, 0.1, 0.0, 0.05, 0.0),
        "epsilon": 0.05,
        "forgetting": 0.998,
        "adaptation": 0.02,
        "window": 256,
        "step_tokens": 512,
    }
    return LatencyModel(**{**knobs, **changes})


@pytest.mark.parametrize("epsilon", [0.02, 0.1])
@pytest.mark.parametrize("drift", ["none", "jump", "slope", "wave"])
def test_coverage_is_what_was_asked_for_on_drifting_steps(epsilon: float, drift: str) -> None:
    random = np.random.default_rng(31)
    model, steps, missed = make_model(epsilon=epsilon), 3000, 0
    for number in range(steps):
        factor = {
            "none": 1.0,
            "jump": 3.0 if number > 1000 else 1.0,
            "slope": 1.0 + number / 500,
            "wave": 1.5 + math.sin(number / 150),
        }[drift]
        features = {
            "decode_sequences": float(random.integers(0, 16)),
            "context_tokens": float(random.integers(0, 4000)),
            "prefill_tokens": float(random.integers(0, 2) * random.integers(1, 512)),
        }
        cost = 2 + 0.1 * features["decode_sequences"] + 0.02 * features["prefill_tokens"]
        actual = cost * factor * random.lognormal(0, 0.1)
        missed += actual > model.observe(actual, **features).upper_ms
    # Twice the finite-sample bound of adaptive conformal inference, (epsilon + g) / (g * steps),
    # and a hundredth for the noise of the draw. Missing less is no fault where the ground moves.
    tolerance = 2 * (epsilon + 0.02) / (0.02 * steps) + 0.01
    assert missed / steps <= epsilon + tolerance
    if drift == "none":
        assert missed / steps >= epsilon / 2  # a level is never above epsilon, so it misses less
    assert model.coverage == pytest.approx(1 - missed / steps)


def missed_of_each_kind(
    epsilon: float, cost_ms: Callable[[Any, float, float], Any], *, steps: int = 20_000
) -> tuple[float, float, float]:
    """Return the shares of decode steps, part chunks and full chunks that took longer than upper.

    `cost_ms` gets the generator, the decoding sequences and the tokens of prefill.
    """
    random = np.random.default_rng(43)
    model = make_model(epsilon=epsilon, adaptation=0.005, window=512)
    count, missed = np.zeros(3), np.zeros(3)
    for _ in range(steps):
        sequences = float(random.integers(1, 64))
        prefill = float(random.integers(1, 513)) if random.random() < 0.4 else 0.0
        actual = cost_ms(random, sequences, prefill)
        before = model.observe(
            actual, decode_sequences=sequences, context_tokens=100.0, prefill_tokens=prefill
        )
        kind = int(prefill > 0) + int(prefill >= 0.75 * 512)
        count[kind] += 1
        missed[kind] += actual > before.upper_ms
    decode, part, full = missed / count
    return decode, part, full


@pytest.mark.parametrize("epsilon", [0.01, 0.05])
def test_steps_with_prefill_keep_the_promise_although_they_are_noisier(epsilon: float) -> None:
    def cost_ms(random: np.random.Generator, sequences: float, prefill: float) -> float:
        return (2 + 0.1 * sequences + 0.02 * prefill) * random.lognormal(
            0, 0.25 if prefill else 0.02
        )

    for share in missed_of_each_kind(epsilon, cost_ms):
        assert epsilon - 0.015 <= share <= epsilon + 0.001


@pytest.mark.parametrize("epsilon", [0.01, 0.05])
def test_full_chunks_keep_the_promise_although_cost_is_no_straight_line(epsilon: float) -> None:
    # A device that computes and reads at once: the larger of both, with a knee between.
    def cost_ms(random: np.random.Generator, sequences: float, prefill: float) -> float:
        return max(4.0, 0.03 * (sequences + prefill)) * random.lognormal(0, 0.03)

    for share in missed_of_each_kind(epsilon, cost_ms):
        assert epsilon - 0.015 <= share <= epsilon + 0.001


def test_a_kind_of_step_without_evidence_has_no_bound() -> None:
    model = make_model(epsilon=0.05)
    assert model.evidence(**STEP).missing == 39 + 8
    for _ in range(500):
        model.observe(5.1, **STEP)
    assert model.evidence(**STEP).missing == 0
    decode = model.forecast(**STEP)
    assert decode.upper_ms == pytest.approx(decode.predicted_ms, rel=0.05)
    for prefill in (100.0, 512.0):
        assert math.isinf(model.forecast(**{**STEP, "prefill_tokens": prefill}).upper_ms)


def test_the_first_steps_in_a_cold_engine_are_no_evidence() -> None:
    model = make_model(epsilon=0.05)
    for number in range(60):  # the first is 8 times as slow, and the prior 3 times too fast
        model.observe(15.0 * (8 if number == 0 else 1), **STEP)
    assert model.forecast(**STEP).upper_ms < 1.2 * 15.0


def test_a_prior_that_is_three_times_too_low_is_left_within_the_training() -> None:
    model = make_model()
    full = {"decode_sequences": 0.0, "context_tokens": 1000.0, "prefill_tokens": 512.0}
    actual_ms = 3 * model.forecast(**full).predicted_ms
    for _ in range(8):
        model.observe(actual_ms, **full)
    assert model.forecast(**full).predicted_ms == pytest.approx(actual_ms, rel=0.05)


@given(
    prior=st.tuples(*(st.floats(0, 10) for _ in range(5))),
    seen=st.lists(st.tuples(*(st.floats(0, 1e5) for _ in range(4))), max_size=30),
    small=st.tuples(*(st.integers(0, 10_000) for _ in range(3))),
    more=st.tuples(*(st.integers(0, 10_000) for _ in range(3))),
)
def test_more_work_is_never_predicted_to_take_less(prior, seen, small, more) -> None:
    model = make_model(prior_ms=prior)
    names = ("decode_sequences", "context_tokens", "prefill_tokens")
    for *values, actual_ms in seen:
        model.observe(actual_ms, **dict(zip(names, values, strict=True)))
    less = model.forecast(**dict(zip(names, map(float, small), strict=True)))
    sums = (float(one + further) for one, further in zip(small, more, strict=True))
    larger = model.forecast(**dict(zip(names, sums, strict=True)))
    assert larger.predicted_ms >= less.predicted_ms


@given(st.lists(st.tuples(*(st.floats(0, 1e9) for _ in range(4))), min_size=1, max_size=60))
def test_forecasts_are_finite_positive_and_ordered(steps) -> None:
    model = make_model(window=8)
    for decode_sequences, context_tokens, prefill_tokens, actual_ms in steps:
        features = {
            "decode_sequences": decode_sequences,
            "context_tokens": context_tokens,
            "prefill_tokens": prefill_tokens,
        }
        model.observe(actual_ms, **features)
        forecast = model.forecast(**features)
        assert 0 < forecast.predicted_ms <= forecast.upper_ms
        assert forecast.predicted_ms < math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_input_is_refused(bad: float) -> None:
    model = make_model()
    with pytest.raises(InvalidArgument):
        model.observe(bad, **STEP)
    with pytest.raises(InvalidArgument):
        model.forecast(**{**STEP, "prefill_tokens": bad})
    with pytest.raises(InvalidArgument):
        make_model(epsilon=bad)
    assert model.observations == 0
