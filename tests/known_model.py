"""A latency model with known forecasts and bounds, as after a start-up on a steady machine."""

from typing import Any

from rose._core import LatencyModel, LatencyState

_NAMES = ("decode_sequences", "context_tokens", "prefill_tokens")


def known_model(
    *,
    prior_ms: tuple[float, float, float, float, float],
    margin: float = 2.0,
    epsilon: float = 0.05,
    forgetting: float = 1.0,
    adaptation: float = 0.01,
    window: int = 64,
    step_tokens: int = 256,
) -> LatencyModel:
    """Return a model that forecasts `prior_ms`, with bounds `margin` times as high for every kind.

    The newest scores are 1, so a step that takes what was predicted changes no forecast.
    """
    knobs: dict[str, Any] = {
        "prior_ms": prior_ms,
        "epsilon": epsilon,
        "forgetting": forgetting,
        "adaptation": adaptation,
        "window": window,
    }
    fresh = LatencyModel(**knobs, step_tokens=step_tokens).state()
    state = LatencyState(
        epsilon=epsilon,
        step_tokens=step_tokens,
        weights=fresh.weights,
        covariance=fresh.covariance,
        levels=fresh.levels,
        scores=[[margin] * window] * 3,
        seen=[window] * 3,
        observations=3 * window,
        misses=0,
    )
    model = LatencyModel.restore(state, **knobs)
    confirm(model, step_tokens)
    return model


def confirm(model: LatencyModel, step_tokens: int) -> None:
    """Run steps of every kind, each exactly as long as predicted, until all have bounds."""
    for prefill in (0.0, 1.0, float(step_tokens)):
        shape = dict(zip(_NAMES, (1.0, 0.0, prefill), strict=True))
        while model.evidence(**shape).missing > 0:
            model.observe(model.forecast(**shape).predicted_ms, **shape)
