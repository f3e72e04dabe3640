"""The cluster simulator: `bench/lab/csrc/sim`, around the scheduler's own core."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from rose.scheduler.core import SchedulerCore
from rose.scheduler.worker import WorkerKind
from rose_lab import _sim
from rose_lab.sim.cluster.check_world import check_world
from rose_lab.sim.cluster.world import (
    ClusterOutcome,
    ClusterWorld,
    JobOutcome,
    SimJob,
    SimWorker,
    TrainerMode,
)

# Called with the simulated time in ms and the number of events; returns whether to continue.
OnProgress = Callable[[float, int], bool]

# The position of a member is its value in the enumeration of csrc.
_KINDS: Final = tuple(WorkerKind)
_MODES: Final = tuple(TrainerMode)
_TICK_MS: Final = 50.0  # interval of scheduler steps without events, as in production
_DEDICATED_REPORT_MS: Final = 4000.0  # longer, because stalls of dedicated workers are not watched


@dataclass(frozen=True, slots=True)
class SimOptions:
    """Options of the simulation itself.

    Args:
        gather_ms: delay from an event to the scheduler step that processes it together with the
            events after it, >= 0.
        chunk_tokens: maximum prompt tokens of an engine step, > 0.
        is_stepwise: whether to simulate every step of every engine: slow, with the same result.
        on_progress: called regularly; False ends the simulation.
    """

    gather_ms: float = 1.0
    chunk_tokens: int = 2048
    is_stepwise: bool = False
    on_progress: OnProgress | None = None


DEFAULT: Final = SimOptions()


def simulate_cluster(world: ClusterWorld, options: SimOptions = DEFAULT) -> ClusterOutcome:
    """Simulate a world to its end. Releases the GIL.

    The scheduler is the production one, with production's input; engines, loans, tools, trainers
    and time are simulated. The scheduler does not know a turn's length, so it reserves the token
    limit of the turn: the length of its job's longest drawn turn. This much of the future is known
    equally in every arm; in production the limit is configured, and usually larger.

    Raises:
        InvalidArgument: the world contradicts itself, or has a turn that fits no worker.
        InternalError: a bug in the scheduler or the simulator.
    """
    check_world(world)
    found = native_world(world, options).run(new_core(world).native, options.on_progress)
    return outcome_of(found)


def new_core(world: ClusterWorld) -> SchedulerCore:
    """Return the scheduler of a world.

    A worker may lag at most as many versions as the strictest trainer accepts: older output would
    be discarded.
    """
    strictest = min(job.max_staleness for job in world.jobs)
    lag_max = min(world.settings.worker_lag_max, strictest)
    settings = replace(world.settings, worker_lag_max=lag_max)
    return SchedulerCore(settings, world.policy)


def native_world(
    world: ClusterWorld, options: SimOptions = DEFAULT, *, is_logged: bool = False
) -> _sim.ClusterWorld:
    """Return the world as a C++ object."""
    native = _sim.ClusterWorld(
        versions=world.versions,
        horizon_ms=world.horizon_ms,
        tick_ms=_TICK_MS,
        gather_ms=options.gather_ms,
        borrowed_report_ms=world.settings.values()["stall_ms"] / 2,
        dedicated_report_ms=_DEDICATED_REPORT_MS,
        chunk_tokens=options.chunk_tokens,
        is_stepwise=options.is_stepwise,
        is_logged=is_logged,
    )
    for worker in world.workers:
        _add_worker(native, worker)
    for job in world.jobs:
        _add_job(native, job)
    return native


def _add_worker(native: _sim.ClusterWorld, worker: SimWorker) -> None:
    lending = worker.lending
    none = np.empty(0)
    native.add_worker(
        number=worker.number,
        kind=_KINDS.index(worker.kind),
        domain=worker.domain,
        job=worker.job,
        **asdict(worker.times),
        seats=worker.seats,
        kv_tokens=worker.kv_tokens,
        start_up_ms=worker.start_up_ms,
        update_ms=worker.update_ms,
        pause_ms=worker.pause_ms,
        at_ms=none if lending is None else lending.at_ms,
        share=none if lending is None else lending.share,
        lent_kv_tokens=none.astype(np.int64) if lending is None else lending.kv_tokens,
    )


def _add_job(native: _sim.ClusterWorld, job: SimJob) -> None:
    trajectories = job.trajectories
    native.add_job(
        job=job.job,
        first_turn=trajectories.first_turn,
        input_tokens=trajectories.input_tokens,
        output_tokens=trajectories.output_tokens,
        tool_ms=trajectories.tool_ms,
        group=trajectories.group,
        mode=_MODES.index(job.mode),
        batch=job.batch,
        train_ms=job.train_ms,
        max_staleness=job.max_staleness,
        weight=job.weight,
    )


def outcome_of(found: dict[str, Any]) -> ClusterOutcome:
    """Convert the C++ result; the log is dropped."""
    found.pop("log")
    jobs = tuple(JobOutcome(**job) for job in found.pop("jobs"))
    digest = f"{found.pop('digest'):016x}"
    return ClusterOutcome(jobs=jobs, digest=digest, **found)
