"""Run all arms of a scenario under all of its seeds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.sim.cluster.simulate import SimOptions, simulate_cluster
from rose.sim.cluster.world import ClusterOutcome, Lending
from rose.sim.scenario.arms import RULES, Arm
from rose.sim.scenario.build import Built, build, idle_trainer
from rose.sim.scenario.loans import Serving
from rose.sim.scenario.parts import RevokeDuringUpdate
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.traffic import Inputs
from rose.sim.study.figures import ArmFigures, figures_of
from rose.units import MS_PER_S

# Told the arm, the seed, and how far it is: 0 to 1.
OnShare = Callable[[Arm, int, float], None]

Column = npt.NDArray[np.float64]

_NO_TIMES: Final = np.zeros(0)


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One simulation.

    Args:
        figures: of it.
        built: what it was made of.
        outcome: what it found.
    """

    figures: ArmFigures
    built: Built
    outcome: ClusterOutcome


def _nothing(_arm: Arm, _seed: int, _share: float) -> None:
    pass


def study(scenario: Scenario, inputs: Inputs, *, on_share: OnShare = _nothing) -> Iterator[ArmRun]:
    """Yield each arm under each seed, as it is done: the arms of a seed after each other.

    Args:
        scenario: what is simulated.
        inputs: what its files say.
        on_share: hears how far the simulation is; what it raises ends the study.

    Raises:
        InvalidArgument: the scenario cannot be built.
    """
    for seed in scenario.seeds:
        serving = Serving(scenario, seed=seed, inputs=inputs)
        for arm in scenario.arms:
            yield _run(scenario, arm, seed=seed, inputs=inputs, serving=serving, on_share=on_share)


def _run(
    scenario: Scenario,
    arm: Arm,
    *,
    seed: int,
    inputs: Inputs,
    serving: Serving,
    on_share: OnShare,
) -> ArmRun:
    def go_on(now_ms: float, _events: int) -> bool:
        on_share(arm, seed, now_ms / (scenario.horizon_s * MS_PER_S))
        return True

    def once(published_ms: Column, trainer_idle: Lending | None) -> tuple[Built, ClusterOutcome]:
        built = build(
            scenario,
            arm,
            seed=seed,
            inputs=inputs,
            serving=serving,
            published_ms=published_ms,
            trainer_idle=trainer_idle,
        )
        return built, simulate_cluster(built.world, SimOptions(on_progress=go_on))

    built, outcome = once(_NO_TIMES, None)
    # What happens when versions come out is right for one version more with each repetition.
    for _ in range(_repetitions(scenario, arm)):
        published_ms = outcome.jobs[0].published_ms
        idle = _idle(scenario, arm, published_ms) if arm is Arm.TRAINING_GPUS else None
        built, outcome = once(published_ms, idle)
    return ArmRun(figures_of(scenario, built, outcome, seed=seed), built, outcome)


def _repetitions(scenario: Scenario, arm: Arm) -> int:
    is_by_versions = arm is Arm.TRAINING_GPUS or any(
        isinstance(one, RevokeDuringUpdate) for one in scenario.stress
    )
    return scenario.versions if is_by_versions else 0


def _idle(scenario: Scenario, arm: Arm, published_ms: Column) -> Lending:
    job = scenario.jobs[0]
    return idle_trainer(
        published_ms,
        train_ms=job.train_s * MS_PER_S,
        release_ms=RULES[arm].release_s[0] * MS_PER_S,
        horizon_ms=scenario.horizon_s * MS_PER_S,
    )
