"""The figures of one arm of a scenario under one seed, for reports."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rose.scheduler.worker import WorkerKind
from rose.units import MS_PER_S
from rose_lab.sim.cluster.lending import joined
from rose_lab.sim.cluster.world import ClusterOutcome, JobOutcome
from rose_lab.sim.outcome import price
from rose_lab.sim.scenario.build import Built
from rose_lab.sim.scenario.cost import Cost, cost_of, lent_ms, used_count
from rose_lab.sim.scenario.scenario import Scenario
from rose_lab.sim.study.bound import rollout_bounds_ms

Column = npt.NDArray[np.float64]

_S_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class ServedFigures:
    """Latencies of serving on the borrowed GPUs, also relative to serving alone.

    Args:
        requests: number of simulated requests.
        ttft_ms_p99: P99 time to first token.
        tpot_ms_p99: P99 of the requests' mean time per later token.
        ttft_p50_times_alone: median TTFT relative to that of serving alone.
        ttft_p99_times_alone: P99 of TTFT, likewise.
        tpot_p50_times_alone: median TPOT, likewise.
        tpot_p99_times_alone: P99 of TPOT, likewise.
        late: share of the requests that missed a target.
        excess: number of requests that meet both targets with serving alone, but miss one in this
            arm; None if the arm serves on fewer devices.
    """

    requests: int
    ttft_ms_p99: float
    tpot_ms_p99: float
    ttft_p50_times_alone: float
    ttft_p99_times_alone: float
    tpot_p50_times_alone: float
    tpot_p99_times_alone: float
    late: float
    excess: int | None


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm under one seed; with several jobs, sums and means over all.

    Args:
        arm: name of the arm.
        seed: seed of the run.
        versions: versions published before the horizon.
        is_complete: whether all requested versions were published.
        ended_s: time of the last publication, or the horizon.
        used: trajectories that the trainer learned from.
        throughput_per_hour: used trajectories per hour.
        rollout_s: rollout time of each version: from the first start to the last end in its batch.
        bound_s: lower bound of the rollout time over all schedules, mean over the versions.
        tokens_dedicated: tokens generated on dedicated workers.
        tokens_borrowed: tokens generated on borrowed workers.
        borrowed_busy: share of the lent time in which rollouts computed; 0 without loans.
        revocations: loans that serving ended or shrank while turns were using them.
        recalls: turns recalled from a worker before their end.
        reprefill_tokens: prompt tokens computed again on another worker.
        tokens_lost: tokens that were reported but not delivered; must be 0.
        dropped: trajectories dropped by the scheduler.
        stale: share of finished trajectories that were too old to learn from.
        length_bias: mean length of discarded trajectories over that of used trajectories, minus 1;
            None if none were discarded, or none used.
        staleness: mean versions between a trajectory's oldest token and its use.
        recovery_s: longest time from a revocation until all its turns ran again, over the
            revocations for which this happened; 0 without such revocations.
        unrecovered: revocations whose turns did not all run again before the end.
        served: latencies of serving; None if nothing is borrowed.
        cost: cost; None if the scenario has no prices.
        events: number of events of the scheduler.
        digest: digest of all decisions of the scheduler.
    """

    arm: str
    seed: int
    versions: int
    is_complete: bool
    ended_s: float
    used: int
    throughput_per_hour: float
    rollout_s: tuple[float, ...]
    bound_s: float
    tokens_dedicated: int
    tokens_borrowed: int
    borrowed_busy: float
    revocations: int
    recalls: int
    reprefill_tokens: int
    tokens_lost: int
    dropped: int
    stale: float
    length_bias: float | None
    staleness: float
    recovery_s: float
    unrecovered: int
    served: ServedFigures | None
    cost: Cost | None
    events: int
    digest: str

    @property
    def rollout_mean_s(self) -> float:
        """Return the mean rollout time of the versions; NaN without versions."""
        return float(np.mean(self.rollout_s)) if self.rollout_s else float("nan")

    @property
    def gap(self) -> float:
        """Return the rollout time relative to its lower bound."""
        return self.rollout_mean_s / self.bound_s if self.bound_s else float("nan")


def figures_of(
    scenario: Scenario, built: Built, outcome: ClusterOutcome, *, seed: int
) -> ArmFigures:
    """Return the figures of a run."""
    versions = sum(len(job.published_ms) for job in outcome.jobs)
    wanted = scenario.versions * len(scenario.jobs)
    used = used_count(built, outcome)
    ended_s = outcome.ended_ms / MS_PER_S
    is_dedicated = np.array([one.kind is WorkerKind.DEDICATED for one in built.world.workers])
    tokens = outcome.tokens_by_worker
    bounds_ms = np.concatenate(
        [rollout_bounds_ms(built.world, job, job=number) for number, job in enumerate(outcome.jobs)]
    )
    return ArmFigures(
        arm=built.arm,
        seed=seed,
        versions=versions,
        is_complete=versions == wanted,
        ended_s=ended_s,
        used=used,
        throughput_per_hour=used / ended_s * _S_PER_HOUR if ended_s else 0.0,
        rollout_s=tuple(
            float(ms) / MS_PER_S for job in outcome.jobs for ms in job.rollout_ms if np.isfinite(ms)
        ),
        bound_s=float(np.mean(bounds_ms)) / MS_PER_S if len(bounds_ms) else 0.0,
        tokens_dedicated=int(tokens[is_dedicated].sum()),
        tokens_borrowed=int(tokens[~is_dedicated].sum()),
        borrowed_busy=_borrowed_busy(built, outcome, is_dedicated),
        revocations=outcome.revocations,
        recalls=outcome.recalls,
        reprefill_tokens=outcome.reprefill_tokens,
        tokens_lost=outcome.tokens_lost,
        dropped=sum(job.dropped for job in outcome.jobs),
        stale=_stale(outcome),
        length_bias=_length_bias(built, outcome),
        staleness=_staleness(outcome),
        recovery_s=_recovery_s(outcome),
        unrecovered=int(np.isnan(outcome.recovery_ms).sum()),
        served=_served(built),
        cost=_cost(scenario, built, outcome),
        events=outcome.events,
        digest=outcome.digest,
    )


def _recovery_s(outcome: ClusterOutcome) -> float:
    known = outcome.recovery_ms[~np.isnan(outcome.recovery_ms)]
    return float(known.max()) / MS_PER_S if len(known) else 0.0


def _borrowed_busy(
    built: Built, outcome: ClusterOutcome, is_dedicated: npt.NDArray[np.bool_]
) -> float:
    total_ms = sum(
        lent_ms(worker.lending, outcome.ended_ms)
        for worker in built.world.workers
        if worker.lending is not None
    )
    return float(outcome.busy_ms_by_worker[~is_dedicated].sum()) / total_ms if total_ms else 0.0


def _thrown_away(job: JobOutcome) -> npt.NDArray[np.bool_]:
    """Return which finished trajectories were too old when the trainer took them."""
    return (job.used_by < 0) & (job.staleness >= 0)


def _stale(outcome: ClusterOutcome) -> float:
    stale = sum(int(_thrown_away(job).sum()) for job in outcome.jobs)
    used = sum(int((job.used_by >= 0).sum()) for job in outcome.jobs)
    return stale / (stale + used) if stale + used else 0.0


def _length_bias(built: Built, outcome: ClusterOutcome) -> float | None:
    lost: list[Column] = []
    used: list[Column] = []
    for made, job in zip(built.world.jobs, outcome.jobs, strict=True):
        output = made.trajectories.output_tokens.astype(np.float64)
        lengths = np.add.reduceat(output, made.trajectories.first_turn[:-1])
        lost.append(lengths[_thrown_away(job)])
        used.append(lengths[job.used_by >= 0])
    all_lost, all_used = np.concatenate(lost), np.concatenate(used)
    if not len(all_lost) or not len(all_used):
        return None
    return float(all_lost.mean() / all_used.mean()) - 1.0


def _staleness(outcome: ClusterOutcome) -> float:
    used = np.concatenate([job.staleness[job.used_by >= 0] for job in outcome.jobs])
    return float(used.mean()) if len(used) else 0.0


def _served(built: Built) -> ServedFigures | None:
    loans = built.loans
    latencies = joined(
        (one.latencies, len(one.lendings)) for one in loans if one.latencies is not None
    )
    alone = joined((one.alone, len(one.lendings)) for one in loans if one.alone is not None)
    if not len(latencies.weight):
        return None
    excess = [one.excess for one in loans if one.excess is not None]
    return ServedFigures(
        requests=len(latencies.ttft_ms),
        ttft_ms_p99=latencies.quantile("ttft_ms", 0.99),
        tpot_ms_p99=latencies.quantile("tpot_ms", 0.99),
        **price(latencies.quantile, alone.quantile),
        late=latencies.late,
        excess=sum(excess) if excess else None,
    )


def _cost(scenario: Scenario, built: Built, outcome: ClusterOutcome) -> Cost | None:
    if scenario.prices is None:
        return None
    gpus = scenario.trainer.count if scenario.trainer is not None else 0
    return cost_of(built, outcome, scenario.prices, trainer_gpus=gpus)
