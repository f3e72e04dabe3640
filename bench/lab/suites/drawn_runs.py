"""Simulates the drawn scenarios in several processes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from bench.lab.suites.drawn_scenarios import drawn, read_seeds
from rose_lab.sim.scenario.loans import ServingGroups
from rose_lab.sim.scenario.traffic import Inputs
from rose_lab.sim.study.figures import ArmFigures
from rose_lab.sim.study.run import study_arm

SEEDS_FILE: Final = Path(__file__).resolve().parents[2] / "scenarios" / "drawn_seeds.txt"
_RUNS_APART: Final = 1_000_000  # larger than the seed of any scenario


def run_seed(scenario: int, run: int) -> int:
    """Return the seed of a scenario's run; run 0 has the scenario's own seed."""
    return scenario + run * _RUNS_APART


def scenario_of(seed: int) -> int:
    """Return the scenario of a run."""
    return seed % _RUNS_APART


def simulated(runs: Sequence[int], *, processes: int) -> Iterator[list[ArmFigures]]:
    """Yield the figures of all arms of each run, in the order in which the runs end.

    Args:
        runs: seeds, from `run_seed`.
        processes: number of processes, > 0.
    """
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(simulate_run, run, None) for run in runs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def simulate_run(seed: int, arms: Sequence[str] | None) -> list[ArmFigures]:
    """Return the figures of the arms in a run of a drawn scenario; None means all arms."""
    scenario, inputs = drawn(scenario_of(seed)), Inputs()
    serving = ServingGroups(scenario, seed=seed, inputs=inputs)
    return [
        study_arm(scenario, arm, seed=seed, inputs=inputs, serving=serving).figures
        for arm in arms or scenario.arms
    ]


def drawn_seeds(count: int | None) -> tuple[int, ...]:
    """Return the first `count` seeds of the file, all of them if it is None."""
    return read_seeds(SEEDS_FILE)[:count]
