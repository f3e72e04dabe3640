"""What serving felt of lending."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rose.sim.outcome import ArmOutcome, excess_misses, missed
from rose.slo import SLO


@dataclass(frozen=True, slots=True)
class ServingFelt:
    """How each request was served, in the order of arrival.

    Args:
        ttft_ms: (n,) float64, to the first token.
        longest_gap_ms: (n,) float64, between two tokens; 0 when it has one.
        mean_tpot_ms: (n,) float64, mean of these gaps.
        missed: (n,) bool, the first token or a later one was late.
        excess: (n,) bool, missed, and met when serving is alone with the same noise.
    """

    ttft_ms: npt.NDArray[np.float64]
    longest_gap_ms: npt.NDArray[np.float64]
    mean_tpot_ms: npt.NDArray[np.float64]
    missed: npt.NDArray[np.bool_]
    excess: npt.NDArray[np.bool_]


def felt(arm: ArmOutcome, alone: ArmOutcome, *, slo: SLO) -> ServingFelt:
    """Return what an arm did to its requests, beside serving alone on the same trace and seed."""
    count = len(arm.requests)
    late, excess = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    late[list(missed(arm, slo=slo))] = True
    excess[list(excess_misses(arm, alone, slo=slo))] = True
    columns = np.array(
        [(one.ttft_ms, one.longest_gap_ms, one.mean_tpot_ms) for one in arm.requests],
        dtype=np.float64,
    ).reshape(count, 3)
    return ServingFelt(columns[:, 0], columns[:, 1], columns[:, 2], late, excess)
