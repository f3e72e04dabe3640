"""Validity of a simulated world."""

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.scheduler.worker import WorkerKind
from rose_lab.sim.cluster.world import (
    ClusterWorld,
    LendingTimeline,
    SimJob,
    SimWorker,
    Trajectories,
)

# Sums of longer times would exceed 64-bit nanoseconds.
MS_MAX = 1e12
TOKENS_MAX = 1 << 31


def check_world(world: ClusterWorld) -> None:
    """Refuse a world that contradicts itself, or that would wait forever.

    Raises:
        InvalidArgument: a rule is broken; the message names the rule and the value.
    """
    _expect(len(world.jobs) > 0, "a world needs at least one job")
    _expect(world.versions > 0, f"versions={world.versions} must be > 0")
    _expect(
        0 < world.horizon_ms <= MS_MAX,
        f"horizon_ms={world.horizon_ms} must be > 0 and <= {MS_MAX:g}",
    )
    numbers = [worker.number for worker in world.workers]
    _expect(len(set(numbers)) == len(numbers), "worker numbers must differ, but one is used twice")
    jobs = [job.job for job in world.jobs]
    _expect(len(set(jobs)) == len(jobs), "job numbers must differ, but one is used twice")
    for worker in world.workers:
        _check_worker(worker, jobs)
    for job in world.jobs:
        _check_job(job)
        _check_room(job, [worker for worker in world.workers if worker.job == job.job])


def _check_worker(worker: SimWorker, jobs: list[int]) -> None:
    where = f"worker {worker.number}"
    _expect(worker.number >= 0, f"{where}: number must be >= 0")
    _expect(worker.job in jobs, f"{where}: there is no job {worker.job}")
    _expect(worker.seats > 0, f"{where}: seats={worker.seats} must be > 0")
    _expect(
        0 < worker.kv_tokens <= TOKENS_MAX,
        f"{where}: kv_tokens={worker.kv_tokens} must be from 1 to {TOKENS_MAX}",
    )
    times = worker.times
    for name in ("prefill_tokens_per_s", "decode_step_ms"):
        value = getattr(times, name)
        _expect(0 < value <= MS_MAX, f"{where}: {name}={value} must be > 0 and <= {MS_MAX:g}")
    for name in ("decode_ms_per_sequence", "decode_ms_per_context_token"):
        value = getattr(times, name)
        _expect(0 <= value <= MS_MAX, f"{where}: {name}={value} must be from 0 to {MS_MAX:g}")
    for name in ("start_up_ms", "update_ms", "pause_ms"):
        value = getattr(worker, name)
        _expect(0 <= value <= MS_MAX, f"{where}: {name}={value} must be from 0 to {MS_MAX:g}")
    is_borrowed = worker.kind is WorkerKind.BORROWED
    has_lending = worker.lending is not None
    _expect(is_borrowed == has_lending, f"{where}: BORROWED needs lending, others must not have it")
    if worker.lending is not None:
        _check_lending(where, worker.lending)


def _check_lending(where: str, lending: LendingTimeline) -> None:
    at, share, kv = lending.at_ms, lending.share, lending.kv_tokens
    _expect(
        len(at) == len(share) == len(kv) > 0,
        f"{where}: at_ms, share and kv_tokens must have equal lengths > 0",
    )
    _expect(at[0] == 0 and np.all(np.diff(at) > 0), f"{where}: at_ms must start at 0 and ascend")
    _expect(bool(at[-1] <= MS_MAX), f"{where}: at_ms must end at {MS_MAX:g} or before")
    _expect(np.all((share >= 0) & (share <= 1)), f"{where}: share must be from 0 to 1{_got(share)}")
    _expect(
        np.all((kv >= 0) & (kv <= TOKENS_MAX)),
        f"{where}: lent kv_tokens must be from 0 to {TOKENS_MAX}{_got(kv)}",
    )


def _check_job(job: SimJob) -> None:
    where, trajectories = f"job {job.job}", job.trajectories
    _expect(job.job >= 0, f"{where}: job must be >= 0")
    _expect(job.batch > 0, f"{where}: batch={job.batch} must be > 0")
    _expect(
        0 <= job.train_ms <= MS_MAX,
        f"{where}: train_ms={job.train_ms} must be from 0 to {MS_MAX:g}",
    )
    _expect(0 < job.weight <= MS_MAX, f"{where}: weight={job.weight} must be > 0 and <= {MS_MAX:g}")
    _expect(job.max_staleness >= 0, f"{where}: max_staleness={job.max_staleness} must be >= 0")
    first, group = trajectories.first_turn, trajectories.group
    turns = len(trajectories.input_tokens)
    _expect(len(group) > 0, f"{where}: a job needs at least one trajectory")
    _expect(
        len(first) == len(group) + 1,
        f"{where}: first_turn must be one longer than group, got {len(first)} and {len(group)}",
    )
    _expect(
        bool(first[0] == 0 and first[-1] == turns),
        f"{where}: first_turn must start at 0 and end at {turns}, the number of turns",
    )
    _expect(np.all(np.diff(first) > 0), f"{where}: every trajectory must have a turn")
    for name in ("output_tokens", "tool_ms"):
        count = len(getattr(trajectories, name))
        _expect(count == turns, f"{where}: {name} must have {turns} values, one per turn")
    for name in ("input_tokens", "output_tokens"):
        tokens: npt.NDArray[np.int64] = getattr(trajectories, name)
        good = np.all((tokens > 0) & (tokens <= TOKENS_MAX))
        _expect(bool(good), f"{where}: {name} must be from 1 to {TOKENS_MAX}{_got(tokens)}")
    tools = trajectories.tool_ms
    _expect(
        np.all((tools >= 0) & (tools <= MS_MAX)),
        f"{where}: tool_ms must be from 0 to {MS_MAX:g}{_got(tools)}",
    )
    _expect(np.all(np.diff(group) >= 0), f"{where}: group must be ascending")
    largest = int(np.unique(group, return_counts=True)[1].max())
    _expect(
        largest <= job.batch,
        f"{where}: a group has {largest} trajectories, more than batch={job.batch}",
    )


def _check_room(job: SimJob, workers: list[SimWorker]) -> None:
    _expect(len(workers) > 0, f"job {job.job}: no worker serves this job")
    most = max(_lent_most(worker) for worker in workers)
    need = int(longest_contexts(job.trajectories).max()) + int(job.trajectories.output_tokens.max())
    _expect(
        need <= most,
        f"job {job.job}: a turn may need {need} tokens (the longest context and the longest "
        f"output), but no worker ever holds more than {most}",
    )


def longest_contexts(trajectories: Trajectories) -> npt.NDArray[np.int64]:
    """Return (n,) int64, the tokens of each trajectory before its last output."""
    first = trajectories.first_turn
    grown = np.concatenate([[0], np.cumsum(trajectories.input_tokens + trajectories.output_tokens)])
    return np.asarray(
        grown[first[1:]] - grown[first[:-1]] - trajectories.output_tokens[first[1:] - 1]
    )


def _lent_most(worker: SimWorker) -> int:
    if worker.lending is None:
        return worker.kv_tokens
    return min(worker.kv_tokens, int(worker.lending.kv_tokens.max()))


def _got(values: npt.NDArray[np.generic]) -> str:
    """Return the range of at least one value, as the end of a message."""
    return f", got {values.min()} to {values.max()}"


def _expect(is_so: object, sentence: str) -> None:
    if not is_so:
        raise InvalidArgument(sentence)
