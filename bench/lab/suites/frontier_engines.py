"""Statistics of the slices of real engines for the frontier: paired bootstraps over rounds.

A statistic uses the same rounds for all arms. Rounds are resampled with replacement to estimate the
effect of chance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.console import Console

from rose.clock import BootClock
from rose_lab.cli.compare import on_engines
from rose_lab.cli.traffic import load_trace
from rose_lab.demo.progress import phases
from rose_lab.demo.record import Answered, RunPlan, RunRecord, Slice
from rose_lab.demo.schemes import ON_ENGINES, choose_schemes, rose_scheme
from rose_lab.machine import machine_card
from rose_lab.sim.simulation import SLOWDOWNS

BETWEEN: Final = rose_scheme("rose_30", 0.3)  # near the price of priority
DIALS: Final = (*SLOWDOWNS, BETWEEN.name)
OTHERS: Final = ("alone", "alone_again", "priority", "host_window")
ARMS: Final = (*OTHERS, *DIALS)
METRICS: Final = ("ttft", "tpot")
HALF_WIDTHS_MAX: Final = {50: 0.03, 95: 0.08}
"""Largest half-width of an A/A ratio by rank of the percentile; a larger one voids a run."""
DRAWS: Final = 1000
SOLO: Final = ("share_all", "rose_idle")

Statistic = Callable[[Sequence[int]], float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic over all rounds, and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


class Rounds:
    """The rounds of one load in which every arm has a valid slice."""

    def __init__(self, record: RunRecord, load: float) -> None:
        self._slo = record.slo
        self._slices: dict[tuple[str, int], Slice] = {
            (one.arm, one.round): one
            for one in record.slices
            if one.load == load and not one.is_void
        }
        numbers = {number for _, number in self._slices}
        self.numbers = [n for n in numbers if all((arm, n) in self._slices for arm in ARMS)]

    def estimate(self, statistic: Statistic) -> Estimate:
        """Return a statistic over all rounds, with its paired bootstrap."""
        drawn = np.random.default_rng(0).choice(self.numbers, (DRAWS, len(self.numbers)))
        low, high = np.quantile([statistic(rounds) for rounds in drawn.tolist()], (0.025, 0.975))
        return Estimate(statistic(self.numbers), float(low), float(high))

    def times_alone(self, arm: str, metric: str, rank: int) -> Statistic:
        """Return an arm's latencies divided by those of the same requests alone.

        For rank 50 this is the median of the requests' ratios, which varies less between two equal
        arms than the ratio of the medians. For other ranks this is the ratio of the percentiles.
        """

        def median(rounds: Sequence[int]) -> float:
            return float(
                np.median(self._of(arm, metric, rounds) / self._of("alone", metric, rounds))
            )

        def tail(rounds: Sequence[int]) -> float:
            mine, alone = (self._of(one, metric, rounds) for one in (arm, "alone"))
            return float(np.percentile(mine, rank) / np.percentile(alone, rank))

        return median if rank == 50 else tail

    def price(self, arm: str, rounds: Sequence[int]) -> float:
        """Return an arm's cost for serving: the larger of the P50s of TTFT and TPOT, x alone."""
        return max(self.times_alone(arm, metric, 50)(rounds) for metric in METRICS)

    def harvest(self, arm: str, rounds: Sequence[int]) -> float:
        """Return rollout tokens per second."""
        slices = [self._slices[arm, number] for number in rounds]
        return sum(one.rollout_tokens for one in slices) / sum(one.seconds for one in slices)

    def frontier_over(self, peer: str) -> Statistic:
        """Return rose's harvest at a peer's cost, divided by the peer's harvest.

        Between two settings, and between no rollouts and the first setting, a device can alternate,
        so the frontier is linear. Beyond the most expensive setting it is constant.
        """

        def statistic(rounds: Sequence[int]) -> float:
            points = [(1.0, 0.0)]
            points += [(self.price(arm, rounds), self.harvest(arm, rounds)) for arm in DIALS]
            prices, harvests = zip(*sorted(points), strict=True)
            # At a higher cost, settings with a lower cost are possible too.
            most = np.maximum.accumulate(harvests)
            mine = float(np.interp(self.price(peer, rounds), prices, most))
            return mine / self.harvest(peer, rounds)

        return statistic

    def excess_misses(self, arm: str) -> Statistic:
        """Return the share of requests that miss a target under an arm, but not alone."""

        def statistic(rounds: Sequence[int]) -> float:
            missed = [
                not self._is_met(one) and self._is_met(alone)
                for number in rounds
                for one, alone in zip(
                    self._slices[arm, number].requests,
                    self._slices["alone", number].requests,
                    strict=True,
                )
            ]
            return float(np.mean(missed))

        return statistic

    def _is_met(self, one: Answered) -> bool:
        is_fast = one.tpot_ms is None or one.tpot_ms <= self._slo.tpot_ms
        return is_fast and one.ttft_ms <= self._slo.ttft_ms

    def _of(self, arm: str, metric: str, rounds: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the requests' latencies in ms, in the same order for every arm."""
        values = [
            value
            for number in rounds
            for one in self._slices[arm, number].requests
            if (value := one.ttft_ms if metric == "ttft" else one.tpot_ms) is not None
        ]
        return np.array(values)


def measure(loads: Sequence[float], *, rounds: int, logs: Path) -> RunRecord:
    """Run all arms in short slices, as `rose compare` does.

    Args:
        loads: shares of serving's saturated throughput.
        rounds: slices per arm and load.
        logs: folder for certificates.
    """
    from rose_lab.demo.experiment import SLICE_S

    plan = RunPlan(
        schemes=(
            *choose_schemes(",".join((*OTHERS, *SLOWDOWNS)), (), possible=ON_ENGINES),
            BETWEEN,
        ),
        loads=tuple(loads),
        seed=0,
        settings={},
        command="make bench SUITE=frontier",
        machine=machine_card(),
    )
    trace = load_trace(
        None,
        None,
        generated_s=7200.0,
        length_scale=1 / 16,
        prompt_max=1024,
        output_max=256,
        seed=plan.seed,
    )
    with phases(Console(stderr=True), BootClock()) as shown:
        return on_engines(plan, trace, rounds * SLICE_S, logs, shown, solo=SOLO)


def gate_overhead_percent(record: RunRecord) -> float | None:
    """Return the loss of rollout tokens under rose while serving is idle, in percent.

    The figure comes from the medians of the arms `rose_idle` and `share_all` with the device to
    themselves; None if either has no such slice.
    """
    rates: dict[str, list[float]] = {}
    for one in record.solo:
        rates.setdefault(one.arm, []).append(one.rollout_tokens / one.seconds)
    if len(rates) < len(SOLO):
        return None
    bare, mine = (float(np.median(rates[arm])) for arm in SOLO)
    return 100 * (1 - mine / bare)
