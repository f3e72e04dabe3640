"""Serving's targets, scaled to the machine, and whether they allow any certified quantum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.slo import SLO, Policy
from rose_lab.demo.record import StepSamples

MULTIPLE: Final = 3.0
"""Default target as a multiple of the P99 of serving alone."""
_TTFT_STEP_MS: Final = 10.0
_TPOT_STEP_MS: Final = 1.0
HINDSIGHT_RANK: Final = 99.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measurements of serving alone, before any arm ran.

    Args:
        steps: step times by shape, at least one for each shape.
        ttft_ms_p99: P99 of TTFT over the requests of a slice at the highest load.
        tpot_ms_p99: P99 of TPOT over the same requests.
    """

    steps: StepSamples
    ttft_ms_p99: float
    tpot_ms_p99: float


def round_up(value_ms: float, step_ms: float) -> float:
    """Return the smallest multiple of `step_ms` that is at least `value_ms`."""
    return step_ms * math.ceil(round(value_ms / step_ms, 9))


def choose_targets(found: Calibration, *, ttft_ms: float | None, tpot_ms: float | None) -> SLO:
    """Return serving's targets: the user's, or else multiples of the P99 of serving alone.

    Raises:
        InvalidArgument: a target is below the duration of one step.
    """
    chunk_ms = _upper(found.steps.chunk_ms, HINDSIGHT_RANK)
    decode_ms = _upper(found.steps.decode_ms, HINDSIGHT_RANK)
    _check_feasible("ttft", ttft_ms, chunk_ms, "full chunk of prefill", _TTFT_STEP_MS)
    _check_feasible("tpot", tpot_ms, decode_ms, "decode step", _TPOT_STEP_MS)
    return SLO(
        ttft_ms=round_up(MULTIPLE * found.ttft_ms_p99, _TTFT_STEP_MS)
        if ttft_ms is None
        else ttft_ms,
        tpot_ms=round_up(MULTIPLE * found.tpot_ms_p99, _TPOT_STEP_MS)
        if tpot_ms is None
        else tpot_ms,
    )


def _check_feasible(
    name: str, target_ms: float | None, step_ms: float, shape: str, unit_ms: float
) -> None:
    if target_ms is not None and target_ms < step_ms:
        raise InvalidArgument(
            f"--{name}-ms {target_ms:g} is below the duration of one {shape} on this device, "
            f"{step_ms:.0f} ms at P99; the smallest feasible target is "
            f"{round_up(step_ms, unit_ms):g} ms"
        )


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether quanta can be certified under serving's targets.

    Args:
        why: reason why no quantum can be certified, with numbers; None if some can be certified.
        options: command options with feasible targets.
    """

    why: str | None
    options: str = ""


def feasibility(
    steps: StepSamples, slo: SLO, policy: Policy, *, segment_ms: float, rank: float
) -> Feasibility:
    """Judge whether a quantum of one segment can be certified at all.

    A request that arrives right after the decision waits for the segment, for the signal (the delay
    until the borrower sees the closed gate), and then for a full chunk (`docs/certificates.md`,
    mode idle). Between two steps, a running request waits for segment and signal, and then for its
    decode step.

    Args:
        steps: step times of serving alone.
        slo: serving's targets.
        policy: the device's policy.
        segment_ms: upper estimate of a segment's duration.
        rank: percentile of the step times, 0 to 100, that serves as their upper estimate.
    """
    delay_ms = segment_ms + policy.signal_ms
    if segment_ms > policy.blocking_ms:
        return Feasibility(
            f"a segment of rollouts takes {segment_ms:.0f} ms, more than the "
            f"{policy.blocking_ms:g} ms that it may block serving"
        )
    needed = (
        ("ttft", _upper(steps.chunk_ms, rank), "full chunk", slo.ttft_ms, _TTFT_STEP_MS),
        ("tpot", _upper(steps.decode_ms, rank), "decode step", slo.tpot_ms, _TPOT_STEP_MS),
    )
    for name, step_ms, shape, target_ms, unit_ms in needed:
        if step_ms + delay_ms > target_ms:
            least_ms = round_up(MULTIPLE * step_ms + delay_ms, unit_ms)
            return Feasibility(
                f"a {shape} takes {step_ms:.0f} ms (P{rank:g} of serving alone) and a rollout "
                f"segment with its signal takes {delay_ms:.0f} ms; the sum exceeds the "
                f"{name.upper()} target of {target_ms:g} ms",
                f"--{name}-ms {least_ms:g}",
            )
    return Feasibility(None)


def _upper(values_ms: Sequence[float], rank: float) -> float:
    return float(np.percentile(values_ms, rank)) if values_ms else 0.0
