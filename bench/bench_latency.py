"""The upper estimate of a step: its coverage, its width and its cost."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.conftest import Report
from bench.noisy_steps import SCENARIOS, Steps, steps_of
from bench.rows import Bar, Peer
from rose.slo import Policy
from rose.slo.latency_file import new_latency_model

STEPS = 40_000
EPSILONS = (0.01, 0.05)
WIDER_MAX = 1.1  # relative to `clairvoyant_width`


@dataclass(frozen=True, slots=True)
class Run:
    """A model's forecast of each step before the step's duration was known."""

    steps: Steps
    upper_ms: NDArray[np.float64]
    predicted_ms: NDArray[np.float64]

    def worst_deviation(self, epsilon: float) -> float:
        """Return the largest deviation of the share of misses from epsilon over kinds of step."""
        missed = self.steps.actual_ms > self.upper_ms
        shares = [missed.mean(), *(missed[kind].mean() for kind in self.steps.kinds().values())]
        return max(abs(float(share) - epsilon) for share in shares)

    def width(self) -> float:
        return float(np.median(self.upper_ms / self.steps.actual_ms))


def run(steps: Steps, policy: Policy) -> Run:
    """Let a model with the policy's prior observe the steps one by one."""
    model = new_latency_model(policy, step_tokens=512)
    forecasts = [
        model.observe(
            actual_ms, decode_sequences=sequences, context_tokens=context, prefill_tokens=prefill
        )
        for (sequences, context, prefill), actual_ms in zip(
            steps.features.tolist(), steps.actual_ms.tolist(), strict=True
        )
    ]
    return Run(
        steps,
        np.array([one.upper_ms for one in forecasts]),
        np.array([one.predicted_ms for one in forecasts]),
    )


def clairvoyant_width(steps: Steps, epsilon: float) -> float:
    """Return the width of a bound that knows cost, drift and the noise of each kind of step."""
    upper = np.empty_like(steps.noise)
    for kind in steps.kinds().values():
        upper[kind] = np.quantile(steps.noise[kind], 1 - epsilon)
    return float(np.median(upper / steps.noise))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conformal_coverage(report: Report, scenario: str, epsilon: float) -> None:
    steps = steps_of(scenario, report.count(STEPS), seed=5)
    policy = Policy(epsilon=epsilon)
    runs: list[Run] = []
    report.once(lambda: runs.append(run(steps, policy)))
    report.add(
        f"conformal_coverage_{scenario}_{epsilon}",
        runs[0].worst_deviation(epsilon),
        "off the level",
        bar=Bar(at_most=0.01),
    )
    clairvoyant = clairvoyant_width(steps, epsilon)
    report.add(
        f"conformal_width_{scenario}_{epsilon}",
        runs[0].width(),
        "upper / actual",
        peer=Peer("a clairvoyant bound", clairvoyant, "upper / actual"),
        bar=Bar(at_most=WIDER_MAX * clairvoyant),
    )
