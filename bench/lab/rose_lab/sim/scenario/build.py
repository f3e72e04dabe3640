"""The world of a scenario's arm: input of the cluster simulation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.memory.model_shape import ModelShape
from rose.memory.model_weights import parameters
from rose.memory.presets import find_model
from rose.scheduler.worker import WorkerKind
from rose.units import MS_PER_S
from rose_lab.sim.cluster.lending_devices import kv_tokens, roofline_cost
from rose_lab.sim.cluster.world import ClusterWorld, LendingTimeline, SimJob, SimWorker, TrainerMode
from rose_lab.sim.scenario.arms import TRAINING_GPUS, ArmRules, rules_of
from rose_lab.sim.scenario.environments import ENVIRONMENTS, Named
from rose_lab.sim.scenario.loans import GroupLoan, ServingGroups
from rose_lab.sim.scenario.parts import Borrowed, Dedicated, StalledTrainer, Trainer
from rose_lab.sim.scenario.scenario import Algorithm, Job, Scenario
from rose_lab.sim.scenario.traffic import Inputs
from rose_lab.sim.scenario.trajectories import drawn_trajectories
from rose_lab.sim.scenario.trouble import troubled
from rose_lab.sim.scenario.updates import update_time

Column = npt.NDArray[np.float64]
# Each worker with its group of GPUs.
_Workers: TypeAlias = list[tuple[SimWorker, Dedicated | Borrowed]]

# Random streams, one per purpose, so that changing one draw does not shift the others.
_TRAJECTORIES: Final = 0
_REDUNDANCY: Final = 1
_CRASHES: Final = 3
_NO_TIMES: Final = np.zeros(0)
# A turn takes a few hundred bytes and some ten microseconds in the simulation.
TURNS_MAX: Final = 20_000_000
_PILOT: Final = 4096


@dataclass(frozen=True, slots=True)
class Built:
    """A world, and facts needed to evaluate its outcome.

    Args:
        world: world of the arm.
        arm: name of the arm.
        gpus: number of GPUs of each worker.
        kept: for each job, (n,) bool, whether the trainer keeps each trajectory. GRPO keeps all;
            DAPO keeps one batch out of each oversampled batch.
        loans: loans of each group of borrowed GPUs.
    """

    world: ClusterWorld
    arm: str
    gpus: tuple[int, ...]
    kept: tuple[npt.NDArray[np.bool_], ...]
    loans: tuple[GroupLoan, ...]


def build(
    scenario: Scenario,
    arm: str,
    *,
    seed: int,
    inputs: Inputs,
    serving: ServingGroups | None = None,
    published_ms: Column = _NO_TIMES,
    trainer_idle: LendingTimeline | None = None,
) -> Built:
    """Make the world of one arm. Arms of one seed share trajectories, traffic and stress.

    Args:
        scenario: scenario to simulate.
        arm: name of the arm.
        seed: seed of all random draws, >= 0.
        inputs: content of the scenario's files.
        serving: traffic of the same scenario, seed and inputs, shared by arms; None to create it.
        published_ms: publication times of the first job's versions in an earlier run, for
            revocations during updates; see `trouble`.
        trainer_idle: idle times of the trainer in an earlier run, from `idle_trainer`, for the arm
            that uses the trainer's GPUs. With None these GPUs only train.

    Raises:
        InvalidArgument: models do not fit their GPUs, a context does not fit an engine, a file of
            the scenario is not among the inputs, or there are too many turns.
    """
    check_size(scenario)
    rules, shape = rules_of(arm), find_model(scenario.model)
    loans = (serving or ServingGroups(scenario, seed=seed, inputs=inputs)).loans(arm)
    workers: _Workers = []
    _add_dedicated(workers, scenario, rules)
    _add_borrowed(workers, scenario, rules, loans)
    if arm == TRAINING_GPUS and scenario.trainer is not None and trainer_idle is not None:
        _add_trainer(workers, scenario, scenario.trainer, rules, trainer_idle)
    stress_random = np.random.default_rng((_CRASHES, seed))
    workers = _with_trouble(workers, scenario, published_ms, stress_random)
    _check_contexts(workers, scenario, shape)
    made = [_job(scenario, number, seed=seed) for number in range(len(scenario.jobs))]
    world = ClusterWorld(
        workers=tuple(worker for worker, _ in workers),
        jobs=tuple(job for job, _ in made),
        settings=scenario.settings(scenario.jobs[0]),
        policy=rules.policy,
        versions=scenario.versions,
        horizon_ms=MS_PER_S * scenario.horizon_s,
    )
    gpus = tuple(group.tp for _, group in workers)
    return Built(world, arm, gpus, tuple(kept for _, kept in made), loans)


def idle_trainer(
    published_ms: Column, *, train_ms: float, release_ms: float, horizon_ms: float
) -> LendingTimeline:
    """Return the idle times of a trainer: from each publication to the next start of training.

    Args:
        published_ms: (v,) publication times of an earlier run, ascending.
        train_ms: training time per version.
        release_ms: time from the release of the trainer's GPUs to the start of training.
        horizon_ms: horizon of the simulation.

    Returns:
        The loan of one of the trainer's GPUs. While the GPU is lent, `kv_tokens` is 1, which stands
        for the whole capacity.
    """
    begins = np.concatenate(([0.0], published_ms))
    ends = np.append(published_ms - train_ms, horizon_ms) - release_ms
    begins, ends = begins[ends > begins], ends[ends > begins]
    at_ms = np.stack((begins, ends), axis=1).ravel()
    lent = np.tile([1.0, 0.0], len(begins))
    if not len(at_ms) or at_ms[0] > 0:
        at_ms, lent = np.append(0.0, at_ms), np.append(0.0, lent)
    return LendingTimeline(at_ms, lent, lent.astype(np.int64))


def _add_dedicated(workers: _Workers, scenario: Scenario, rules: ArmRules) -> None:
    total = sum(group.count // group.tp for group in scenario.dedicated)
    for group in scenario.dedicated:
        _add_group(workers, scenario, rules, group, engines=total, lendings=None)


def _add_borrowed(
    workers: _Workers, scenario: Scenario, rules: ArmRules, loans: Sequence[GroupLoan]
) -> None:
    horizon_ms = MS_PER_S * scenario.horizon_s
    total = lent_engines([one for loan in loans for one in loan.lendings], horizon_ms=horizon_ms)
    for group, loan in zip(scenario.borrowed, loans, strict=True):
        if loan.lendings:
            _add_group(workers, scenario, rules, group, engines=total, lendings=loan.lendings)


def lent_engines(lendings: Sequence[LendingTimeline], *, horizon_ms: float) -> int:
    """Return the average number of lent engines, at least 1; others do not receive updates."""
    lent_ms = 0.0
    for lending in lendings:
        lasts_ms = np.diff(np.append(lending.at_ms, horizon_ms))
        lent_ms += float(lasts_ms[lending.kv_tokens > 0].sum())
    return max(1, round(lent_ms / horizon_ms))


def _add_trainer(
    workers: _Workers, scenario: Scenario, trainer: Trainer, rules: ArmRules, idle: LendingTimeline
) -> None:
    """Add engines like those of the first dedicated group, on GPUs that otherwise train."""
    tp = scenario.dedicated[0].tp
    engines = trainer.count // tp
    group = Dedicated(trainer.gpu, engines * tp, tp, scenario.dedicated[0].domain_gpus)
    full = kv_tokens(find_model(scenario.model), group.gpu.value, tp=tp)
    lending = LendingTimeline(idle.at_ms, idle.share, idle.kv_tokens * np.int64(full))
    _add_group(workers, scenario, rules, group, engines=engines, lendings=(lending,) * engines)


def _add_group(
    workers: _Workers,
    scenario: Scenario,
    rules: ArmRules,
    group: Dedicated | Borrowed,
    *,
    engines: int,
    lendings: Sequence[LendingTimeline] | None,
) -> None:
    shape, gpu = find_model(scenario.model), group.gpu.value
    context = max(job.context_tokens for job in scenario.jobs)
    update = update_time(
        scenario.model,
        gpu=gpu,
        tp=group.tp,
        engines=engines,
        trainer_tp=scenario.trainer.tp if scenario.trainer is not None else group.tp,
        is_far=isinstance(group, Borrowed),
        network=scenario.network,
        scheme=rules.updates,
    )
    holds = kv_tokens(shape, gpu, tp=group.tp)
    domain = workers[-1][0].domain + 1 if workers else 0
    for at in range(group.count // group.tp):
        number, lending = len(workers), None if lendings is None else lendings[at]
        worker = SimWorker(
            number=number,
            kind=WorkerKind.DEDICATED if lending is None else WorkerKind.BORROWED,
            domain=domain + at * group.tp // max(group.domain_gpus, group.tp),
            job=number % len(scenario.jobs),
            # On average a prompt has a quarter of the longest context before it.
            times=roofline_cost(shape, gpu, tp=group.tp).step_times(context_tokens=context // 4),
            seats=rules.seats_per_gpu * group.tp,
            kv_tokens=holds if lending is None else _most(lending, holds),
            start_up_ms=0.0 if lending is None else rules.start_up_ms(parameters(shape)),
            update_ms=update.update_ms,
            pause_ms=update.pause_ms,
            lending=lending,
        )
        workers.append((worker, group))


def _most(lending: LendingTimeline, holds: int) -> int:
    """Return the largest capacity of a borrowed engine."""
    return max(1, min(holds, int(lending.kv_tokens.max())))


def _with_trouble(
    workers: _Workers, scenario: Scenario, published_ms: Column, random: np.random.Generator
) -> _Workers:
    """Return the workers with all stress applied to loans of serving, not of trainers."""
    harder = iter(
        troubled(
            [worker for worker, group in workers if isinstance(group, Borrowed)],
            scenario.stress,
            horizon_ms=MS_PER_S * scenario.horizon_s,
            published_ms=published_ms,
            random=random,
        )
    )
    return [
        (replace(worker, lending=next(harder)) if isinstance(group, Borrowed) else worker, group)
        for worker, group in workers
    ]


def _check_contexts(workers: _Workers, scenario: Scenario, shape: ModelShape) -> None:
    """Refuse a context that fits no dedicated engine: its trajectory could never end."""
    for number, job in enumerate(scenario.jobs):
        holds = [
            worker.kv_tokens
            for worker, _ in workers
            if worker.job == number and worker.kind is WorkerKind.DEDICATED
        ]
        if not holds:
            raise InvalidArgument(
                f"dedicated: job {job.name} has no engine; give at least one engine for each job"
            )
        if max(holds) < job.context_tokens:
            raise InvalidArgument(
                f"jobs[{number}].context_tokens: an engine of {shape.name} holds {max(holds)} "
                f"tokens, fewer than {job.context_tokens}; lower the limit, or use a larger tp"
            )


def _job(scenario: Scenario, number: int, *, seed: int) -> tuple[SimJob, npt.NDArray[np.bool_]]:
    job = scenario.jobs[number]
    random = np.random.default_rng((_REDUNDANCY, number, seed))
    groups = job.batch // job.group
    of_version = groups
    if job.algorithm is Algorithm.DAPO:
        # One average for all versions gives the same sum as a number per version.
        drawn = np.maximum(1.0, job.redundancy.draw(random, scenario.versions))
        of_version = max(groups, round(groups * float(drawn.mean())))
    rolled_out = batches(job, scenario.versions)
    environment = job.environment
    trajectories = drawn_trajectories(
        ENVIRONMENTS[environment.name] if isinstance(environment, Named) else environment,
        groups=of_version * rolled_out,
        group=job.group,
        context_tokens=job.context_tokens,
        random=np.random.default_rng((_TRAJECTORIES, number, seed)),
    )
    kept = np.zeros(of_version * rolled_out, dtype=np.bool_)
    for batch in range(rolled_out):
        kept[batch * of_version + random.permutation(of_version)[:groups]] = True
    stall = math.prod(one.factor for one in scenario.stress if isinstance(one, StalledTrainer))
    made = SimJob(
        job=number,
        trajectories=trajectories,
        mode=job.mode,
        batch=of_version * job.group,
        train_ms=MS_PER_S * job.train_s * stall,
        max_staleness=job.max_staleness,
        weight=1.0,
    )
    return made, np.repeat(kept, job.group)


def batches(job: Job, versions: int) -> int:
    """Return the number of batches that may be rolled out until the last version is published."""
    # Off policy, further batches have begun when the last version is published.
    ahead = 0 if job.mode is TrainerMode.SYNCHRONOUS else job.max_staleness + 1
    # Trajectories that are too old are discarded and repeated: at worst as many as are used.
    ahead += versions if job.mode is TrainerMode.ASYNCHRONOUS else 0
    return versions + ahead


def check_size(scenario: Scenario) -> None:
    """Refuse a scenario with too many turns per arm and seed.

    Raises:
        InvalidArgument: there are more than `TURNS_MAX`.
    """
    turns = sum(_turns(job, scenario.versions) for job in scenario.jobs)
    if turns > TURNS_MAX:
        raise InvalidArgument(
            f"versions: {scenario.versions} versions make about {turns / 1e6:.0f} million turns "
            f"in each arm under each seed, more than {TURNS_MAX // 1_000_000} million; give fewer "
            "versions, or a smaller batch"
        )


def _turns(job: Job, versions: int) -> float:
    """Return the approximate number of turns, before cuts by full contexts."""
    trajectories = float(job.batch) * batches(job, versions)
    if job.algorithm is Algorithm.DAPO:
        redundancy = job.redundancy.draw(np.random.default_rng(0), _PILOT)
        trajectories *= float(np.maximum(1.0, redundancy).mean())
    environment = job.environment
    drawn = ENVIRONMENTS[environment.name] if isinstance(environment, Named) else environment
    turns = drawn.turns.draw(np.random.default_rng(0), _PILOT)
    return trajectories * float(np.clip(turns, 1, drawn.turns_max).mean())
