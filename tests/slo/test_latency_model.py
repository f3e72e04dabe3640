"""The upper estimate keeps its promise on data that nobody chose for it."""

import math

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
        "cold_margin": 2.0,
        "window": 256,
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
        assert missed / steps >= epsilon - tolerance
    assert model.coverage == pytest.approx(1 - missed / steps)


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
        assert 0 < forecast.predicted_ms <= forecast.upper_ms < math.inf


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
