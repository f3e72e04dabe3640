"""Runs one arm of a scenario, again where what happens in it depends on when versions come out.

An engine on a trainer's GPU may run while the trainer waits, and some trouble comes in the middle
of an update: both need times that only a run can tell. Whatever changes at a time changes nothing
before it, so each run has at least one more version at its right time than the one before.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from rose.memory.model_weights import parameters
from rose.memory.presets import find_model
from rose.sim.cluster.simulate import simulate_cluster
from rose.sim.cluster.world import ClusterOutcome, ClusterWorld
from rose.sim.scenario.arms import TRAINING_GPUS, rules_of
from rose.sim.scenario.build import Built, build, idle_trainer
from rose.sim.scenario.loans import Serving
from rose.sim.scenario.parts import RevokeDuringUpdate
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.traffic import Inputs
from rose.units import MS_PER_S

Simulate: TypeAlias = Callable[[ClusterWorld], ClusterOutcome]

# Times of hundreds of versions are not worth as many runs: later ones are close after a few.
_RUNS_MAX: Final = 8
_SETTLED_MS: Final = 1.0


def run_arm(
    scenario: Scenario,
    arm: str,
    *,
    seed: int,
    inputs: Inputs,
    serving: Serving | None = None,
    simulate: Simulate = simulate_cluster,
) -> tuple[Built, ClusterOutcome]:
    """Simulate an arm; the last of several runs is what counts.

    Args:
        scenario: what is simulated.
        arm: how it is run.
        seed: of everything that is drawn.
        inputs: what the scenario's files say.
        serving: of the same scenario, seed and inputs, to be shared by the arms.
        simulate: runs a world.

    Raises:
        InvalidArgument: what `build` refuses.
    """
    served = serving or Serving(scenario, seed=seed, inputs=inputs)
    built = build(scenario, arm, seed=seed, inputs=inputs, serving=served)
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
            serving=served,
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
