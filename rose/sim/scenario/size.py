"""How large a scenario's simulation is: what would run for hours is refused before it starts."""

from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.sim.scenario.environments import ENVIRONMENTS, Named
from rose.sim.scenario.scenario import Algorithm, Job, Mode, Scenario

# A turn is a few hundred bytes and some ten microseconds in the simulation.
TURNS_MAX: Final = 20_000_000
_PILOT: Final = 4096


def batches(job: Job, versions: int) -> int:
    """Return how many batches of a job may be rolled out until its last version is out."""
    # Off policy, the next batches have begun when the last version comes out.
    ahead = 0 if job.mode is Mode.SYNCHRONOUS else job.max_staleness + 1
    # What is too old is thrown away and must be made again: as much as is used, at worst.
    ahead += versions if job.mode is Mode.ASYNCHRONOUS else 0
    return versions + ahead


def check_size(scenario: Scenario) -> None:
    """Refuse a scenario of which one arm under one seed has too many turns.

    Raises:
        InvalidArgument: it has.
    """
    turns = sum(_turns(job, scenario.versions) for job in scenario.jobs)
    if turns > TURNS_MAX:
        raise InvalidArgument(
            f"versions: {scenario.versions} of them make about {turns / 1e6:.0f} million turns "
            f"in each arm under each seed, more than {TURNS_MAX // 1_000_000} million; give fewer "
            "versions, or a smaller batch"
        )


def _turns(job: Job, versions: int) -> float:
    """Return about how many turns there are; contexts that are full cut some of them."""
    trajectories = float(job.batch) * batches(job, versions)
    if job.algorithm is Algorithm.DAPO:
        redundancy = job.redundancy.draw(np.random.default_rng(0), _PILOT)
        trajectories *= float(np.maximum(1.0, redundancy).mean())
    environment = job.environment
    drawn = ENVIRONMENTS[environment.name] if isinstance(environment, Named) else environment
    turns = drawn.turns.draw(np.random.default_rng(0), _PILOT)
    return trajectories * float(np.clip(turns, 1, drawn.turns_max).mean())
