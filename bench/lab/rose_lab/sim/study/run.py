"""Run all arms of a scenario under all of its seeds.

An arm is repeated if its events depend on publication times: an engine on a trainer's GPU runs
while the trainer waits, and some stress occurs during an update. An event never changes the past,
so in each run at least one more version is published at its final time than in the run before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from rose.memory.model_weights import parameters
from rose.memory.presets import find_model
from rose.units import MS_PER_S
from rose_lab.sim.cluster.simulate import SimOptions, simulate_cluster
from rose_lab.sim.cluster.world import ClusterOutcome, ClusterWorld
from rose_lab.sim.scenario.arms import TRAINING_GPUS, rules_of
from rose_lab.sim.scenario.build import Built, build, idle_trainer
from rose_lab.sim.scenario.loans import ServingGroups
from rose_lab.sim.scenario.parts import RevokeDuringUpdate
from rose_lab.sim.scenario.scenario import Scenario
from rose_lab.sim.scenario.traffic import Inputs
from rose_lab.sim.study.figures import ArmFigures, figures_of

Simulate: TypeAlias = Callable[[ClusterWorld], ClusterOutcome]

# Maximum runs, even with hundreds of versions: after a few runs, all times are nearly right.
_RUNS_MAX: Final = 8
_SETTLED_MS: Final = 1.0
# Called with the arm, the seed, and the progress from 0 to 1.
OnShare = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True)
class ArmRun:
    """Figures, world and outcome of one simulation."""

    figures: ArmFigures
    built: Built
    outcome: ClusterOutcome


def _nothing(_arm: str, _seed: int, _share: float) -> None:
    pass


def study(scenario: Scenario, inputs: Inputs, *, on_share: OnShare = _nothing) -> Iterator[ArmRun]:
    """Yield the run of each arm under each seed, seed by seed.

    Args:
        scenario: scenario to simulate.
        inputs: content of its files.
        on_share: called with the progress; an exception ends the study.

    Raises:
        InvalidArgument: the scenario cannot be built.
    """
    for seed in scenario.seeds:
        serving = ServingGroups(scenario, seed=seed, inputs=inputs)
        for arm in scenario.arms:
            yield study_arm(
                scenario, arm, seed=seed, inputs=inputs, serving=serving, on_share=on_share
            )


def study_arm(
    scenario: Scenario,
    arm: str,
    *,
    seed: int,
    inputs: Inputs,
    serving: ServingGroups,
    on_share: OnShare = _nothing,
) -> ArmRun:
    """Return the run of one arm under one seed.

    Args:
        scenario: scenario to simulate.
        arm: name of the arm; the scenario need not list it.
        seed: seed of all random draws.
        inputs: content of the scenario's files.
        serving: traffic of the same scenario, seed and inputs.
        on_share: see `study`; a repeated run starts again at 0.

    Raises:
        InvalidArgument: the scenario cannot be built.
    """

    def go_on(now_ms: float, _events: int) -> bool:
        on_share(arm, seed, now_ms / (scenario.horizon_s * MS_PER_S))
        return True

    def simulate(world: ClusterWorld) -> ClusterOutcome:
        return simulate_cluster(world, SimOptions(on_progress=go_on))

    built, outcome = run_arm(
        scenario, arm, seed=seed, inputs=inputs, serving=serving, simulate=simulate
    )
    return ArmRun(figures_of(scenario, built, outcome, seed=seed), built, outcome)


def run_arm(
    scenario: Scenario,
    arm: str,
    *,
    seed: int,
    inputs: Inputs,
    serving: ServingGroups,
    simulate: Simulate = simulate_cluster,
) -> tuple[Built, ClusterOutcome]:
    """Simulate an arm, repeatedly if needed; the last run counts.

    Args:
        scenario: scenario to simulate.
        arm: name of the arm.
        seed: seed of all random draws.
        inputs: content of the scenario's files.
        serving: traffic of the same scenario, seed and inputs.
        simulate: simulates a world.

    Raises:
        InvalidArgument: see `build`.
    """
    built = build(scenario, arm, seed=seed, inputs=inputs, serving=serving)
    outcome = simulate(built.world)
    if not _depends_on_versions(scenario, arm):
        return built, outcome
    release_ms = rules_of(arm).release_ms(parameters(find_model(scenario.model)))
    for _ in range(_RUNS_MAX - 1):
        published_ms = outcome.jobs[0].published_ms
        idle = idle_trainer(
            published_ms,
            train_ms=built.world.jobs[0].train_ms,
            release_ms=release_ms,
            horizon_ms=MS_PER_S * scenario.horizon_s,
        )
        built = build(
            scenario,
            arm,
            seed=seed,
            inputs=inputs,
            serving=serving,
            published_ms=published_ms,
            trainer_idle=idle,
        )
        outcome = simulate(built.world)
        again_ms = outcome.jobs[0].published_ms
        if again_ms.size == published_ms.size and np.allclose(
            again_ms, published_ms, rtol=0, atol=_SETTLED_MS
        ):
            break
    return built, outcome


def _depends_on_versions(scenario: Scenario, arm: str) -> bool:
    if arm == TRAINING_GPUS:
        return True
    return any(isinstance(one, RevokeDuringUpdate) for one in scenario.stress)
