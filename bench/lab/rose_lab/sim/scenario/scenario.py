"""A scenario: the description of a simulation in a file. `build` makes a world from it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument
from rose.memory.model_shape import KVDtype
from rose.memory.presets import find_model
from rose.scheduler.settings import SchedulerSettings
from rose_lab.sim.cluster.world import TrainerMode
from rose_lab.sim.scenario.arms import TRAINING_GPUS, rules_of
from rose_lab.sim.scenario.distributions import Distribution, LogUniform
from rose_lab.sim.scenario.environments import Environment
from rose_lab.sim.scenario.fields import (
    Seconds,
    Seed,
    SomeSeconds,
    Spec,
    Staleness,
    Text,
    Tokens,
    Trajectories,
    Versions,
    decoded,
)
from rose_lab.sim.scenario.parts import (
    Borrowed,
    Dedicated,
    Network,
    Prices,
    StalledTrainer,
    Stress,
    Trainer,
)

# The paper's sampler launches up to 5.7 times the batch.
_REDUNDANCY: Final = LogUniform(1.0, 5.7)
_SEEDS_MAX: Final = 1000
# Settings that are fields of each job.
_OF_JOBS: Final = frozenset({"max_staleness", "batch_trajectories"})


class Algorithm(Enum):
    """RL algorithm, which determines how the trainer uses groups."""

    GRPO = "grpo"
    DAPO = "dapo"


class Job(Spec, frozen=True):
    """One RL job.

    Args:
        name: name of the job.
        algorithm: GRPO, or DAPO, which discards groups whose members all did equally well.
        mode: mode of its trainer.
        batch: trajectories per version.
        group: trajectories with the same task.
        context_tokens: longest context of a trajectory.
        train_s: training time per batch.
        environment: environment of its trajectories.
        max_staleness: most versions between a trajectory's oldest token and its use.
        redundancy: DAPO's oversampling factor of the batch, drawn for each version.
    """

    name: Text
    algorithm: Algorithm
    mode: TrainerMode
    batch: Trajectories
    group: Trajectories
    context_tokens: Tokens
    train_s: Seconds
    environment: Environment
    max_staleness: Staleness = 1
    redundancy: Distribution = _REDUNDANCY

    def __post_init__(self) -> None:
        """Check that groups fill the batch, and that the mode allows the staleness."""
        if self.batch % self.group:
            raise InvalidArgument(
                f"batch: must be a multiple of the group size {self.group}, got {self.batch}"
            )
        if self.mode is TrainerMode.ONE_STEP_OFF and self.max_staleness == 0:
            raise InvalidArgument(
                "max_staleness: 0 leaves nothing to roll out while the trainer learns; "
                "give 1, or the mode synchronous"
            )


class Scenario(Spec, frozen=True):
    """The description of a simulation.

    Args:
        name: name of the scenario.
        model: model that learns: a preset, or the path of a config.json.
        jobs: jobs with different names.
        dedicated: dedicated GPUs, at least one engine for each job.
        network: network between the clusters.
        horizon_s: latest end of the simulation.
        versions: number of versions after which each job ends.
        arms: arms to compare, the subject first; see `rose_lab.sim.scenario.arms`.
        about: sentence for reports.
        seeds: seeds, one simulation each.
        borrowed: GPUs that serve and lend.
        trainer: GPUs that train.
        prices: prices; None for no cost figures.
        scheduler: scheduler settings that differ from the defaults, by name.
        stress: disturbances.
    """

    name: Text
    model: Text
    jobs: tuple[Job, ...]
    dedicated: tuple[Dedicated, ...]
    network: Network
    horizon_s: SomeSeconds
    versions: Versions
    arms: tuple[str, ...]
    about: str = "-"
    seeds: tuple[Seed, ...] = (0,)
    borrowed: tuple[Borrowed, ...] = ()
    trainer: Trainer | None = None
    prices: Prices | None = None
    scheduler: Mapping[str, float] = {}
    stress: tuple[Stress, ...] = ()

    def __post_init__(self) -> None:
        """Check rules that span several fields."""
        for name in ("jobs", "dedicated", "arms", "seeds"):
            if not getattr(self, name):
                raise InvalidArgument(f"{name}: the list is empty; add an entry")
        if len(self.seeds) > _SEEDS_MAX:
            count = len(self.seeds)
            raise InvalidArgument(f"seeds: at most {_SEEDS_MAX} are allowed, got {count}")
        names = [job.name for job in self.jobs]
        for values, name in ((names, "jobs"), (self.seeds, "seeds"), (self.arms, "arms")):
            if len(set(values)) < len(values):
                raise InvalidArgument(f"{name}: all must differ, but one is listed twice")
        # A stalled trainer needs no borrowed GPUs.
        is_of_loans = any(not isinstance(one, StalledTrainer) for one in self.stress)
        if is_of_loans and not self.borrowed:
            raise InvalidArgument("stress: needs borrowed GPUs; add borrowed, or remove stress")
        for at, arm in enumerate(self.arms):
            _check_arm(f"arms[{at}]", arm)
        if TRAINING_GPUS in self.arms and self.trainer is None:
            raise InvalidArgument(f"trainer: is missing; the arm {TRAINING_GPUS} needs its GPUs")
        self._check_models()
        self.settings(self.jobs[0])

    def _check_models(self) -> None:
        tps = {group.tp for group in self.dedicated} | {group.tp for group in self.borrowed}
        _check_model("model", self.model, tps)
        for at, group in enumerate(self.borrowed):
            _check_model(f"borrowed[{at}].serving_model", group.serving_model, {group.tp})

    def settings(self, job: Job) -> SchedulerSettings:
        """Return the scheduler's settings for a job.

        Raises:
            InvalidArgument: a setting is unknown or out of range.
        """
        free = set(SchedulerSettings().values()) - _OF_JOBS
        for name in self.scheduler:
            if name not in free:
                why = "is a field of each job" if name in _OF_JOBS else "is not a setting"
                raise InvalidArgument(
                    f"scheduler.{name}: {why}; choose one of {', '.join(sorted(free))}"
                )
        tuning = dict(self.scheduler)
        plain = SchedulerSettings(max_staleness=job.max_staleness, batch_trajectories=job.batch)
        lag_max = tuning.pop("worker_lag_max", plain.worker_lag_max)
        if not float(lag_max).is_integer():
            raise InvalidArgument(
                f"scheduler.worker_lag_max: must be a whole number, got {lag_max:g}"
            )
        try:
            return replace(plain, worker_lag_max=int(lag_max), tuning=tuning)
        except InvalidArgument as error:
            raise InvalidArgument(f"scheduler: {error}; give a value in its range") from None


def _check_arm(where: str, named: str) -> None:
    try:
        rules_of(named)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None


def _check_model(where: str, named: str, tps: Iterable[int]) -> None:
    try:
        shape = find_model(named)
        for tp in tps:
            shape.groups(block_tokens=1, kv=KVDtype(2), tp=tp)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None


def scenario_from(content: object) -> Scenario:
    """Return a scenario from data of YAML or JSON.

    Raises:
        InvalidArgument: a field is unknown, missing, or invalid; the message names it.
    """
    return decoded(Scenario, content)
