"""A lower bound of the rollout time of a version's batch, over all schedules.

The batch is the set of trajectories that the version was learned from. An asynchronous trainer
takes the trajectories that finish first, so batches differ between arms, and bounds too.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rose.units import MS_PER_S
from rose_lab.sim.cluster.world import ClusterWorld, JobOutcome, SimJob, SimWorker, StepTimes

Column = npt.NDArray[np.float64]


def rollout_bounds_ms(world: ClusterWorld, found: JobOutcome, *, job: int) -> Column:
    """Return (v,) a lower bound of the rollout time of each version's batch.

    It is the larger of two times. The first is that of the longest trajectory, tools included,
    alone on the fastest worker. The second is that of all work, spread without gaps over all
    workers at their largest loan, with every prompt cached and every step full.

    Args:
        world: simulated world.
        found: outcome of the job.
        job: index of the job in the world.
    """
    subject = world.jobs[job]
    workers = [one for one in world.workers if one.job == subject.job]
    alone_ms = trajectories_alone_ms(subject, [one.times for one in workers])
    inputs, output, read = _work(subject)
    bounds = np.zeros(len(found.published_ms))
    for version in range(len(bounds)):
        used = found.used_by == version + 1
        if used.any():
            work = (float(inputs[used].sum()), float(output[used].sum()), float(read[used].sum()))
            bounds[version] = max(float(alone_ms[used].max()), _spread_ms(workers, work))
    return bounds


def trajectories_alone_ms(job: SimJob, times: Sequence[StepTimes]) -> Column:
    """Return (n,) the time of each trajectory, alone on a worker with the best of all rates."""
    tokens_per_ms = max(one.prefill_tokens_per_s for one in times) / MS_PER_S
    token_ms = min(one.decode_step_ms + one.decode_ms_per_sequence for one in times)
    read_ms = min(one.decode_ms_per_context_token for one in times)
    inputs, output, read = _work(job)
    first, tool_ms = job.trajectories.first_turn, job.trajectories.tool_ms
    # No turn waits for the tool after the last turn.
    tools_ms = np.add.reduceat(tool_ms, first[:-1]) - tool_ms[first[1:] - 1]
    return np.asarray(inputs / tokens_per_ms + output * token_ms + read * read_ms + tools_ms)


def _work(job: SimJob) -> tuple[Column, Column, Column]:
    """Return three (n,) columns: input, generated and read tokens of each trajectory."""
    inputs = job.trajectories.input_tokens.astype(np.float64)
    output = job.trajectories.output_tokens.astype(np.float64)
    first = job.trajectories.first_turn
    ends = np.cumsum(inputs + output)
    begins = np.repeat((ends - inputs - output)[first[:-1]], np.diff(first))
    # Each generated token reads all tokens before it.
    read = output * (ends - output - begins) + output * (output - 1) / 2
    return (
        np.add.reduceat(inputs, first[:-1]),
        np.add.reduceat(output, first[:-1]),
        np.add.reduceat(read, first[:-1]),
    )


def _spread_ms(workers: Sequence[SimWorker], work: tuple[float, float, float]) -> float:
    """Return a lower bound of the workers' time for input, output and read tokens.

    Equal workers divide each kind of work in the same proportion. Different workers may each do
    more of the work that they are better at. The optimal division of the work is then a linear
    program, and the weights below give a lower bound of it by duality.
    """
    inputs, output, read = work
    # (w, 3): milliseconds of each worker for all work of each kind.
    takes_ms = np.array(
        [
            (
                inputs / (times.prefill_tokens_per_s / MS_PER_S),
                output * (times.decode_step_ms / one.seats + times.decode_ms_per_sequence),
                read * times.decode_ms_per_context_token,
            )
            for one in workers
            for times in (one.times,)
        ]
    )
    weights = 1.0 / takes_ms.sum(axis=1)
    shares = [1.0 if one.lending is None else float(one.lending.share.max()) for one in workers]
    prices = (takes_ms * weights[:, None]).min(axis=0)
    return float(prices.sum() / (weights * shares).sum())
