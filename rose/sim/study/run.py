"""Run all arms of a scenario under all of its seeds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rose.sim.cluster.simulate import SimOptions, simulate_cluster
from rose.sim.cluster.world import ClusterOutcome, ClusterWorld
from rose.sim.scenario.build import Built
from rose.sim.scenario.loans import Serving
from rose.sim.scenario.run import run_arm
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.traffic import Inputs
from rose.sim.study.figures import ArmFigures, figures_of
from rose.units import MS_PER_S

# Told the arm, the seed, and how far it is: 0 to 1.
OnShare = Callable[[str, int, float], None]


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


def _nothing(_arm: str, _seed: int, _share: float) -> None:
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
            yield study_arm(
                scenario, arm, seed=seed, inputs=inputs, serving=serving, on_share=on_share
            )


def study_arm(
    scenario: Scenario,
    arm: str,
    *,
    seed: int,
    inputs: Inputs,
    serving: Serving,
    on_share: OnShare = _nothing,
) -> ArmRun:
    """Return one arm under one seed.

    Args:
        scenario: what is simulated.
        arm: one of the scenario's, or another.
        seed: of everything that is drawn.
        inputs: what the scenario's files say.
        serving: of the same scenario, seed and inputs.
        on_share: as `study` has it; an arm that is run several times begins at 0 again.

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
