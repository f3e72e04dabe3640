"""Compares published measurements with simulations of the same set-ups. Nothing is fitted to them.

The measurements are from PEARL (arXiv 2609.35158) and from Table 1 of ROSE (arXiv 2605.06534, as
public notes report it). Their trajectories, traffic and engines are not public. So differences are
reported, and a large difference also gives a warning for the figures that depend on it. Start-up
and release times of engines are inputs of the arms, so they are not compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose_lab.sim.study.figures import ArmFigures


@dataclass(frozen=True, slots=True)
class Published:
    """Factors in favour of the paper's system in one set-up.

    Args:
        throughput_over: throughput of the paper's system, relative to each arm that models a
            published system.
        rollout_time_under: rollout time of each such arm, relative to the paper's system.
    """

    throughput_over: Mapping[str, float]
    rollout_time_under: Mapping[str, float]


# Table 1, by model size: rollout time of the paper's baselines, divided by the rollout time of the
# paper's system. The first baseline shares GPUs without a latency guarantee, the second reserves
# memory.
TABLE_1: Final[Mapping[str, Mapping[str, float]]] = {
    "8b": {"share-all": 651.7 / 496.3, "reserved-share": 731.7 / 496.3},
    "32b": {"share-all": 1161.8 / 960.1, "reserved-share": 1301.2 / 960.1},
}
PUBLISHED: Final[Mapping[str, Published]] = {
    "paper-8b": Published({"resource-fixed": 1.31}, {"elastic": 1.20}),
    "paper-32b": Published({"resource-fixed": 1.46}, {"elastic": 1.26}),
    "paper-8b-dapo": Published({"resource-fixed": 1.42}, {}),
    "paper-32b-dapo": Published({"resource-fixed": 3.31}, {}),
    "paper-table1-8b": Published({}, TABLE_1["8b"]),
    "paper-table1-32b": Published({}, TABLE_1["32b"]),
}

# Figures of each scenario, by name.
Runs = Mapping[str, Sequence[ArmFigures]]

ERROR_MAX: Final = 0.15


@dataclass(frozen=True, slots=True)
class Validation:
    """A published figure and its prediction.

    Args:
        name: name of the figure.
        scenario: prefix of the scenario's name.
        predicted: value of the simulation.
        published: published value.
        concerns: figures of a report that depend on this figure.
        unit: unit of both values.
    """

    name: str
    scenario: str
    predicted: float
    published: float
    concerns: str
    unit: str

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted / self.published - 1.0

    @property
    def warning(self) -> str | None:
        """Return a warning for the dependent figures; None if the error is small."""
        if abs(self.error) <= ERROR_MAX:
            return None
        return (
            f"{self.name} is simulated {100 * abs(self.error):.0f} % "
            f"{'above' if self.error > 0 else 'below'} the published value, so {self.concerns} "
            f"may be off by as much"
        )


def validations(runs: Runs) -> tuple[Validation, ...]:
    """Return the validation of every published figure for which there are runs."""
    return tuple(
        Validation(name, scenario, predicted, published, concerns, unit)
        for name, scenario, predicted, published, concerns, unit in _figures(runs)
        if predicted is not None
    )


def _figures(runs: Runs) -> Iterator[tuple[str, str, float | None, float, str, str]]:
    """Yield the fields of each `Validation`; the prediction is None if a run is missing."""
    for scenario, reading in _PEARL:
        for gpus, fewer, published in ((24, 16, 1 - 0.103), (32, 24, 1 - 0.089)):
            yield (
                f"PEARL's rollout time on {gpus} GPUs over that on {fewer} ({reading})",
                *(scenario, _pearl_ratio(runs, scenario, gpus, fewer), published),
                *(_SCALING, "ratio"),
            )
        yield (
            f"PEARL's rollout time on unlimited GPUs ({reading})",
            *(scenario, _pearl_longest(runs, scenario), 216.0, _LONGEST, "s"),
        )
    for size, ratios in TABLE_1.items():
        for arm, what in _ARMS_OF_TABLE_1:
            scenario = f"paper-table1-{size}"
            yield (
                f"Table 1, {size}: rollout time {what} over that of the paper's system",
                *(scenario, _table_1(runs, scenario, arm), ratios[arm], _SHARED, "ratio"),
            )


def _rollout_s(runs: Runs, scenario: str, arm: str) -> float | None:
    mine = [one.rollout_mean_s for one in runs.get(scenario, ()) if one.arm == arm]
    return float(np.mean(mine)) if mine else None


def _pearl_ratio(runs: Runs, scenario: str, gpus: int, fewer: int) -> float | None:
    over = _rollout_s(runs, _swept(scenario, gpus), _FIXED)
    under = _rollout_s(runs, _swept(scenario, fewer), _FIXED)
    return None if over is None or under is None else over / under


def _pearl_longest(runs: Runs, scenario: str) -> float | None:
    """With unlimited GPUs the longest trajectory, alone on a worker, determines the time."""
    bounds = [one.bound_s for one in runs.get(_swept(scenario, 32), ()) if one.arm == _FIXED]
    return float(np.mean(bounds)) if bounds else None


def _table_1(runs: Runs, scenario: str, arm: str) -> float | None:
    theirs, papers = (_rollout_s(runs, scenario, one) for one in (arm, "rose-published"))
    return None if theirs is None or papers is None else theirs / papers


def _swept(scenario: str, gpus: int) -> str:
    return f"{scenario}, dedicated[0].count {gpus}"


_FIXED: Final = "resource-fixed"
_SCALING: Final = "the speed-up from more GPUs"
_LONGEST: Final = "rollout times that the longest trajectory determines"
_SHARED: Final = "rollout times on shared GPUs"
_PEARL: Final = (
    ("pearl-scaling", "batch counted in trajectories"),
    ("pearl-scaling-prompts", "batch counted in prompts"),
)
_ARMS_OF_TABLE_1: Final = (
    ("share-all", "without a promise"),
    ("reserved-share", "with reserved memory"),
)
