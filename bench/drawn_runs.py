"""Simulates the drawn scenarios in several processes, and keeps each seed as it is done."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from bench.drawn_kept import Kept, KeptRun, code_digest
from bench.drawn_scenarios import ARMS, drawn, read_seeds
from rose.sim.scenario.arms import ROSE
from rose.sim.scenario.loans import ServingGroups
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.traffic import Inputs
from rose.sim.study.figures import ArmFigures
from rose.sim.study.run import study_arm

SEEDS_FILE: Final = Path(__file__).resolve().parent / "scenarios" / "drawn_seeds.txt"
_RUNS_APART: Final = 1_000_000  # more than there are scenarios


@dataclass(frozen=True, slots=True)
class Trial:
    """What to simulate of the drawn scenarios.

    Args:
        seeds: of them.
        arms: that are simulated by the code as it is; None for all.
        settings: of the scheduler, that differ in the arm rose.
        processes: > 0.
        runs: of each scenario, > 0; they differ in the trajectories and in serving's requests.
    """

    seeds: Sequence[int]
    arms: Sequence[str] | None
    settings: Mapping[str, float]
    processes: int
    runs: int = 1


def run_seed(scenario: int, run: int) -> int:
    """Return the seed of a scenario's run; that of the first, 0, is the scenario's own."""
    return scenario + run * _RUNS_APART


def scenario_of(seed: int) -> int:
    """Return the scenario that a run is of."""
    return seed % _RUNS_APART


def simulated(trial: Trial, kept: Kept) -> Iterator[list[ArmFigures]]:
    """Yield the figures of all arms of each run, in the order in which they are done.

    Arms that are not asked for come from what was kept, of whatever code, or not at all.
    """
    plain, tried = code_digest({}), code_digest(trial.settings)
    codes = {arm: tried if arm == ROSE else plain for arm in ARMS}
    todo: dict[int, list[str]] = {}
    for seed in [run_seed(one, run) for run in range(trial.runs) for one in trial.seeds]:
        arms = drawn(scenario_of(seed)).arms if trial.arms is None else trial.arms
        missing = [arm for arm in arms if kept.find(seed, arm, codes[arm]) is None]
        if missing:
            todo[seed] = missing
        else:
            yield _found(trial, kept, seed, codes)
    with ProcessPoolExecutor(trial.processes, mp_context=get_context("spawn")) as pool:
        futures = {
            pool.submit(simulate_seed, seed, arms, dict(trial.settings)): seed
            for seed, arms in todo.items()
        }
        try:
            for future in as_completed(futures):
                kept.add([KeptRun(codes[one.arm], one) for one in future.result()])
                yield _found(trial, kept, futures[future], codes)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def simulate_seed(
    seed: int, arms: Sequence[str], settings: Mapping[str, float]
) -> list[ArmFigures]:
    """Return the figures of some arms of a run of a drawn scenario."""
    scenario, inputs = drawn(scenario_of(seed)), Inputs()
    tried = replace(scenario, scheduler={**scenario.scheduler, **settings})
    serving = ServingGroups(scenario, seed=seed, inputs=inputs)
    chosen = {arm: tried if arm == ROSE else scenario for arm in arms}
    return [
        study_arm(mine, arm, seed=seed, inputs=inputs, serving=serving).figures
        for arm, mine in chosen.items()
    ]


def drawn_seeds(count: int | None) -> tuple[int, ...]:
    """Return the first seeds of the file, all of them if it is None."""
    return read_seeds(SEEDS_FILE)[:count]


def _found(trial: Trial, kept: Kept, seed: int, codes: Mapping[str, str]) -> list[ArmFigures]:
    scenario: Scenario = drawn(scenario_of(seed))
    found = []
    for arm in scenario.arms:
        is_asked = trial.arms is None or arm in trial.arms
        one = kept.find(seed, arm, codes[arm] if is_asked else None)
        if one is not None:
            found.append(one)
    return found
