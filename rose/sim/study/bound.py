"""No schedule is faster than this: a lower bound of the time that a batch is rolled out."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rose.sim.cluster.world import ClusterWorld, SimJob, SimWorker, StepTimes
from rose.units import MS_PER_S

Column = npt.NDArray[np.float64]


def rollout_bound_ms(world: ClusterWorld, *, job: int) -> float:
    """Return what no schedule of a job's mean batch can go below, on all workers that it has.

    The larger of two: the longest trajectory of a batch, alone on the fastest worker, its tools
    included; and all the work of a batch, spread without a gap over everything that could ever be
    lent at once, with every prompt cached and every step as full as it can be.

    Args:
        world: of an arm.
        job: its place among the world's.
    """
    subject = world.jobs[job]
    workers = [one for one in world.workers if one.job == subject.job]
    batches = min(world.versions, (len(subject.trajectories.first_turn) - 1) // subject.batch)
    if not batches or not workers:
        return 0.0
    alone_ms = trajectories_alone_ms(subject, [one.times for one in workers])
    count = batches * subject.batch
    longest = alone_ms[:count].reshape(batches, subject.batch).max(axis=1)
    work = _work_ms(subject, workers, count) / batches
    return float(max(longest.mean(), work))


def trajectories_alone_ms(job: SimJob, times: Sequence[StepTimes]) -> Column:
    """Return (n,) how long each trajectory lasts, alone on the best of each worker's figures."""
    tokens_per_ms = max(one.prefill_tokens_per_s for one in times) / MS_PER_S
    step_ms = min(one.decode_step_ms + one.decode_ms_per_sequence for one in times)
    context_ms = min(one.decode_ms_per_context_token for one in times)
    said, heard = _said(job), job.trajectories.heard_tokens.astype(np.float64)
    # A token more of context with each token that is said: half of them, on average.
    decode_ms = said * (step_ms + context_ms * (_contexts(job) + said / 2))
    lasts = decode_ms + heard / tokens_per_ms + job.trajectories.tool_ms
    # Nobody waits for the tool behind the last turn.
    first = job.trajectories.first_turn
    last_turn = first[1:] - 1
    lasts[last_turn] -= job.trajectories.tool_ms[last_turn]
    return np.asarray(np.add.reduceat(lasts, first[:-1]), dtype=np.float64)


def _work_ms(job: SimJob, workers: Sequence[SimWorker], count: int) -> float:
    """Return how long all that is heard and said takes, if every worker were full all the time."""
    turns = int(job.trajectories.first_turn[count])
    heard = float(job.trajectories.heard_tokens[:turns].sum())
    said = _said(job)[:turns]
    context = float(((_contexts(job)[:turns] + said / 2) * said).sum())
    tokens = float(said.sum())
    done_per_ms = 0.0
    for one in workers:
        # The most of it that one worker could do in a millisecond, as shares of the whole.
        share = 1.0 if one.lending is None else float(one.lending.share.max())
        times = one.times
        full_ms = (
            heard / (times.prefill_tokens_per_s / MS_PER_S)
            + tokens * (times.decode_step_ms / one.seats + times.decode_ms_per_sequence)
            + context * times.decode_ms_per_context_token
        )
        done_per_ms += share / full_ms
    return 1.0 / done_per_ms


def _said(job: SimJob) -> Column:
    return job.trajectories.said_tokens.astype(np.float64)


def _contexts(job: SimJob) -> Column:
    """Return (t,) how many tokens lie before what each turn says."""
    said = job.trajectories.said_tokens
    heard = job.trajectories.heard_tokens
    first = job.trajectories.first_turn
    before = np.cumsum(heard + said) - said
    begins = np.concatenate(([0], np.cumsum(heard + said)))[first[:-1]]
    return np.asarray(before - np.repeat(begins, np.diff(first)), dtype=np.float64)
