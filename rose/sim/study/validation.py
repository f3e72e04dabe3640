"""Compares published measurements with simulations of the same set-ups. Nothing is fitted to them.

The measurements are from PEARL (arXiv 2609.35158) and from Table 1 of ROSE (arXiv 2605.06534, as
public notes report it). Their trajectories, traffic and engines are not public. So differences are
reported, and a large difference also gives a warning for the figures that depend on it. Start-up
and release times of engines are inputs of the arms, so they are not compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.sim.study.figures import ArmFigures


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


@dataclass(frozen=True, slots=True)
class _Published:
    name: str
    scenario: str
    published: float
    predict: Callable[[Runs], float | None]
    concerns: str
    unit: str = "ratio"


def validations(runs: Runs) -> tuple[Validation, ...]:
    """Return the validation of every published figure for which there are runs."""
    found = []
    for one in _PUBLISHED:
        predicted = one.predict(runs)
        if predicted is not None:
            found.append(
                Validation(one.name, one.scenario, predicted, one.published, one.concerns, one.unit)
            )
    return tuple(found)


def _rollout_s(runs: Runs, scenario: str, arm: str) -> float | None:
    mine = [one.rollout_mean_s for one in runs.get(scenario, ()) if one.arm == arm]
    return float(np.mean(mine)) if mine else None


def _pearl_ratio(scenario: str, gpus: int, fewer: int) -> Callable[[Runs], float | None]:
    def predict(runs: Runs) -> float | None:
        over = _rollout_s(runs, _swept(scenario, gpus), _FIXED)
        under = _rollout_s(runs, _swept(scenario, fewer), _FIXED)
        return None if over is None or under is None else over / under

    return predict


def _pearl_longest(scenario: str) -> Callable[[Runs], float | None]:
    """With unlimited GPUs the longest trajectory, alone on a worker, determines the time."""

    def predict(runs: Runs) -> float | None:
        bounds = [one.bound_s for one in runs.get(_swept(scenario, 32), ()) if one.arm == _FIXED]
        return float(np.mean(bounds)) if bounds else None

    return predict


def _table_1(scenario: str, arm: str) -> Callable[[Runs], float | None]:
    def predict(runs: Runs) -> float | None:
        theirs, papers = (_rollout_s(runs, scenario, one) for one in (arm, "rose-published"))
        return None if theirs is None or papers is None else theirs / papers

    return predict


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
_PUBLISHED: Final[tuple[_Published, ...]] = (
    *(
        one
        for scenario, reading in _PEARL
        for one in (
            _Published(
                f"PEARL's rollout time on 24 GPUs over that on 16 ({reading})",
                *(scenario, 1 - 0.103, _pearl_ratio(scenario, 24, 16), _SCALING),
            ),
            _Published(
                f"PEARL's rollout time on 32 GPUs over that on 24 ({reading})",
                *(scenario, 1 - 0.089, _pearl_ratio(scenario, 32, 24), _SCALING),
            ),
            _Published(
                f"PEARL's rollout time on unlimited GPUs ({reading})",
                *(scenario, 216.0, _pearl_longest(scenario), _LONGEST),
                unit="s",
            ),
        )
    ),
    *(
        _Published(
            f"Table 1, {size}: rollout time {what} over that of the paper's system",
            *(f"paper-table1-{size}", ratios[arm], _table_1(f"paper-table1-{size}", arm), _SHARED),
        )
        for size, ratios in TABLE_1.items()
        for arm, what in _ARMS_OF_TABLE_1
    ),
)
