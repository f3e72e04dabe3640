"""The world of a scenario's arm: input of the cluster simulation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.memory.model_shape import ModelShape
from rose.memory.model_weights import parameters
from rose.memory.presets import find_model
from rose.scheduler.worker import WorkerKind
from rose.sim.cluster.lending_devices import kv_tokens, roofline_cost
from rose.sim.cluster.world import (
    ClusterWorld,
    LendingTimeline,
    SimJob,
    SimWorker,
    StepTimes,
    TrainerMode,
)
from rose.sim.scenario.arms import TRAINING_GPUS, ArmRules, rules_of
from rose.sim.scenario.environments import ENVIRONMENTS, Named
from rose.sim.scenario.loans import GroupLoan, ServingGroups
from rose.sim.scenario.parts import Borrowed, Dedicated, StalledTrainer, Trainer
from rose.sim.scenario.scenario import Algorithm, Job, Scenario
from rose.sim.scenario.traffic import Inputs
from rose.sim.scenario.trajectories import drawn_trajectories
from rose.sim.scenario.trouble import Lent, troubled
from rose.sim.scenario.updates import UpdateTime, update_time
from rose.units import MS_PER_S

Column = npt.NDArray[np.float64]

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
    drafted = [*_dedicated(scenario, rules), *_borrowed(scenario, rules, loans)]
    if arm == TRAINING_GPUS and scenario.trainer is not None and trainer_idle is not None:
        drafted += _on_trainer(scenario, scenario.trainer, rules, trainer_idle)
    workers = _numbered(drafted, scenario)
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


@dataclass(frozen=True, slots=True)
class _Draft:
    """A worker without its number."""

    group: Dedicated | Borrowed
    kind: WorkerKind
    times: StepTimes
    seats: int
    kv_tokens: int
    start_up_ms: float
    update: UpdateTime
    lending: LendingTimeline | None
    node: tuple[str, int]  # (name of the group of GPUs, index of the node in the group)


def _dedicated(scenario: Scenario, rules: ArmRules) -> list[_Draft]:
    drafts: list[_Draft] = []
    total = sum(group.count // group.tp for group in scenario.dedicated)
    for number, group in enumerate(scenario.dedicated):
        drafts += _drafts(
            scenario, rules, group, f"dedicated {number}", engines=total, lendings=None
        )
    return drafts


def _borrowed(scenario: Scenario, rules: ArmRules, loans: Sequence[GroupLoan]) -> list[_Draft]:
    drafts: list[_Draft] = []
    horizon_ms = MS_PER_S * scenario.horizon_s
    total = lent_engines([one for loan in loans for one in loan.lendings], horizon_ms=horizon_ms)
    for number, (group, loan) in enumerate(zip(scenario.borrowed, loans, strict=True)):
        if loan.lendings:
            name = f"borrowed {number}"
            drafts += _drafts(scenario, rules, group, name, engines=total, lendings=loan.lendings)
    return drafts


def lent_engines(lendings: Sequence[LendingTimeline], *, horizon_ms: float) -> int:
    """Return the average number of lent engines, at least 1; others do not receive updates."""
    lent_ms = 0.0
    for lending in lendings:
        lasts_ms = np.diff(np.append(lending.at_ms, horizon_ms))
        lent_ms += float(lasts_ms[lending.kv_tokens > 0].sum())
    return max(1, round(lent_ms / horizon_ms))


def _on_trainer(
    scenario: Scenario, trainer: Trainer, rules: ArmRules, idle: LendingTimeline
) -> list[_Draft]:
    """Return engines like those of the first dedicated group, on GPUs that otherwise train."""
    tp = scenario.dedicated[0].tp
    engines = trainer.count // tp
    group = Dedicated(trainer.gpu, engines * tp, tp, scenario.dedicated[0].domain_gpus)
    full = kv_tokens(find_model(scenario.model), group.gpu.value, tp=tp)
    lending = LendingTimeline(idle.at_ms, idle.share, idle.kv_tokens * np.int64(full))
    return _drafts(
        scenario, rules, group, "trainer", engines=engines, lendings=(lending,) * engines
    )


def _drafts(
    scenario: Scenario,
    rules: ArmRules,
    group: Dedicated | Borrowed,
    name: str,
    *,
    engines: int,
    lendings: Sequence[LendingTimeline] | None,
) -> list[_Draft]:
    shape, gpu = find_model(scenario.model), group.gpu.value
    seats = rules.seats_per_gpu * group.tp
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
    return [
        _Draft(
            group=group,
            kind=WorkerKind.DEDICATED if lendings is None else WorkerKind.BORROWED,
            # On average a prompt has a quarter of the longest context before it.
            times=roofline_cost(shape, gpu, tp=group.tp).step_times(context_tokens=context // 4),
            seats=seats,
            kv_tokens=holds if lendings is None else _most(lendings[at], holds),
            start_up_ms=0.0 if lendings is None else rules.start_up_ms(parameters(shape)),
            update=update,
            lending=None if lendings is None else lendings[at],
            node=(name, at * group.tp // max(group.domain_gpus, group.tp)),
        )
        for at in range(group.count // group.tp)
    ]


def _most(lending: LendingTimeline, holds: int) -> int:
    """Return the largest capacity of a borrowed engine."""
    return max(1, min(holds, int(lending.kv_tokens.max())))


def _numbered(
    drafts: Sequence[_Draft], scenario: Scenario
) -> list[tuple[SimWorker, Dedicated | Borrowed]]:
    nodes = {node: at for at, node in enumerate(dict.fromkeys(one.node for one in drafts))}
    workers: list[tuple[SimWorker, Dedicated | Borrowed]] = []
    for number, one in enumerate(drafts):
        worker = SimWorker(
            number=number,
            kind=one.kind,
            domain=nodes[one.node],
            job=number % len(scenario.jobs),
            times=one.times,
            seats=one.seats,
            kv_tokens=one.kv_tokens,
            start_up_ms=one.start_up_ms,
            update_ms=one.update.update_ms,
            pause_ms=one.update.pause_ms,
            lending=one.lending,
        )
        workers.append((worker, one.group))
    return workers


def _with_trouble(
    workers: Sequence[tuple[SimWorker, Dedicated | Borrowed]],
    scenario: Scenario,
    published_ms: Column,
    random: np.random.Generator,
) -> list[tuple[SimWorker, Dedicated | Borrowed]]:
    """Return the workers with all stress applied to loans of serving, not of trainers."""
    hit = {
        worker.number: Lent(
            worker.lending,
            worker.domain,
            worker.start_up_ms,
            worker.update_ms,
            worker.times.prefill_tokens_per_s,
        )
        for worker, group in workers
        if worker.lending is not None and isinstance(group, Borrowed)
    }
    harder = troubled(
        list(hit.values()),
        scenario.stress,
        horizon_ms=MS_PER_S * scenario.horizon_s,
        published_ms=published_ms,
        random=random,
    )
    lendings = dict(zip(hit, harder, strict=True))
    return [
        (replace(worker, lending=lendings.get(worker.number, worker.lending)), group)
        for worker, group in workers
    ]


def _check_contexts(
    workers: Sequence[tuple[SimWorker, Dedicated | Borrowed]], scenario: Scenario, shape: ModelShape
) -> None:
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
