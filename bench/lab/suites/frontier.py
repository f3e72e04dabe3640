"""The frontier in virtual time: rollout harvest, and its cost for serving.

Serving's capacity is the highest Poisson rate at which serving alone meets its targets for 99 % of
the requests. Loads are shares of that rate. Lengths follow the chat profile.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from rose.errors import check
from rose.slo import SLO
from rose_lab.demo.record import RunPlan, RunRecord, Slice
from rose_lab.demo.schemes import SCHEMES
from rose_lab.demo.virtual import VirtualExperiment, run_virtual
from rose_lab.sim import ArmOutcome, DeviceModel, Request, simulate, stretched
from rose_lab.sim.clairvoyant import Clairvoyant, Deadline, Progress
from rose_lab.sim.device import ns_of
from rose_lab.sim.governor import Grain
from rose_lab.sim.governors import NoRollouts, Priority
from rose_lab.sim.simulation import SLOWDOWNS, default_policy, govern, noises
from rose_lab.traces import generate

TARGETS: Final = SLO(ttft_ms=500.0, tpot_ms=25.0)
DEVICE: Final = DeviceModel(noise=0.1)
LOADS: Final = (0.1, 0.3, 0.5, 0.7)
DIALS: Final = tuple(SLOWDOWNS)
ARMS: Final = (
    "alone",
    "share_all",
    "priority",
    "host_window",
    "static_split",
    *DIALS,
    "clairvoyant",
)
PROMPT_MAX: Final = 4096  # 99 % of the Azure trace's prompts are shorter
ATTAINED: Final = 0.99
CLOSE: Final = 1.05  # ratio of the bounds at which the search for the capacity ends
CAPACITY_SEED: Final = 0
HOLD_TRIES: Final = 3
HELD: Final = 1.01  # ratio up to which two P99s count as equal

# For the comparison with priority: kernels of 5 ms, and 16 launches in the lower stream.
KERNELS: Final = replace(DEVICE, layers=30, layers_per_segment=15)
QUEUE: Final = 16


def poisson(seed: int, count: int) -> Callable[[float], list[Request]]:
    """Return a function that makes `count` requests of a Poisson process at a rate, in requests/s.

    For one seed, requests at different rates differ only in their arrival times.
    """
    arrival_s = np.cumsum(np.random.default_rng(seed).exponential(1.0, count))
    lengths = generate("chat", duration_s=2.0 * count, rate_rps=1.0, seed=seed)
    lengths = lengths.with_lengths(prompt_max=PROMPT_MAX).head(count)
    check(len(lengths) == count, f"there are lengths for {len(lengths)} of {count} requests")
    columns = zip(arrival_s, lengths.prompt_tokens, lengths.output_tokens, strict=True)
    return stretched(
        [Request(1e3 * float(at), int(prompt), int(out)) for at, prompt, out in columns]
    )


def attainment(outcome: ArmOutcome) -> float:
    """Return the share of requests whose TTFT and mean TPOT meet the targets."""
    return float(
        np.mean(
            [
                one.ttft_ms <= TARGETS.ttft_ms and one.mean_tpot_ms <= TARGETS.tpot_ms
                for one in outcome.requests
            ]
        )
    )


def capacity_rps(count: int) -> float:
    """Return the highest rate at which serving alone meets its targets, within 5 %.

    Args:
        count: requests per attempt.
    """
    requests_at = poisson(CAPACITY_SEED, count)

    def is_kept(rate_rps: float) -> bool:
        requests = requests_at(rate_rps)
        alone = simulate(requests, DEVICE, "alone", slo=TARGETS, seed=CAPACITY_SEED)
        return attainment(alone) >= ATTAINED

    kept, missed = 0.5, 1.0
    check(is_kept(kept), f"serving alone misses its targets at {kept} requests/s")
    while is_kept(missed):
        kept, missed = missed, 2 * missed
    while missed / kept > CLOSE:
        middle = (kept + missed) / 2
        kept, missed = (middle, missed) if is_kept(middle) else (kept, middle)
    return kept


@dataclass(frozen=True, slots=True)
class Job:
    """One seed at one load.

    Args:
        rate_rps: rate of the requests.
        count: number of requests.
        logs: folder for certificates, created if necessary.
    """

    seed: int
    load: float
    rate_rps: float
    count: int
    logs: Path


@dataclass(frozen=True, slots=True)
class Found:
    """Results of a job.

    Args:
        record: results of all arms.
        equal_p99: harvest of a clairvoyant scheduler within the P99s of an arm of rose, by arm.
        p99_over_limit: larger of the clairvoyant's two P99s, divided by its limit.
        equal_slowdown: the clairvoyant's harvest within the slowdown promised to each request and
            within the arm's P99 of TTFT; for arms with a limited slowdown.
    """

    job: Job
    record: RunRecord
    equal_p99: dict[str, float]
    p99_over_limit: dict[str, float]
    equal_slowdown: dict[str, float]


def simulate_job(job: Job) -> Found:
    """Simulate all arms, then a clairvoyant scheduler for each arm of rose."""
    requests = poisson(job.seed, job.count)(job.rate_rps)
    plan = RunPlan(
        schemes=tuple(SCHEMES[name] for name in ARMS),
        loads=(job.load,),
        seed=job.seed,
        settings={"traffic": "Poisson, lengths of the chat profile", "requests": job.count},
        command="make bench SUITE=frontier",
        machine={},
    )
    job.logs.mkdir(parents=True, exist_ok=True)
    experiment = VirtualExperiment(plan, lambda _: requests, TARGETS, DEVICE)
    record = run_virtual(experiment, job.logs, lambda _: None)
    slices = {one.arm: one for one in record.slices}
    times_ns = times_alone(requests, seed=job.seed)
    equal_p99, over, equal_slowdown = {}, {}, {}
    for arm in DIALS:
        # Where rose is faster than serving alone, the limit is that of serving alone.
        ttft_ms, tpot_ms = np.maximum(p99s(slices[arm]), p99s(slices["alone"])).tolist()
        equal_p99[arm], over[arm] = clairvoyant_held(
            requests, times_ns, ttft_ms=ttft_ms, tpot_ms=tpot_ms, seed=job.seed
        )
        slowdown = SLOWDOWNS[arm]
        if math.isfinite(slowdown):
            equal_slowdown[arm] = clairvoyant_within(
                requests, times_ns, ttft_ms=ttft_ms, tpot_ms=0.0, slowdown=slowdown, seed=job.seed
            ).harvest
    return Found(job, record, equal_p99, over, equal_slowdown)


def joined(found: Sequence[Found], *, capacity: float) -> RunRecord:
    """Return all jobs as one record in which each seed is a round."""
    first = found[0].record
    seeds = sorted({one.job.seed for one in found})
    loads = tuple(sorted({one.job.load for one in found}))
    settings = {**first.plan.settings, "capacity_rps": capacity, "seeds": seeds}
    return replace(
        first,
        plan=replace(first.plan, loads=loads, settings=settings),
        slices=tuple(
            replace(slice_, round=seeds.index(one.job.seed))
            for one in found
            for slice_ in one.record.slices
        ),
        audits=tuple(audit for one in found for audit in one.record.audits),
        complete=all(one.record.complete for one in found),
    )


def harvest_of(record: RunRecord, one: Slice) -> float:
    """Return a slice's rollout tokens, divided by those of rollouts alone in the same time."""
    (solo,) = record.solo
    return one.rollout_tokens / one.seconds * solo.seconds / solo.rollout_tokens


# ---- the clairvoyant scheduler -------------------------------------------------------------------


class TokenTimes(NoRollouts):
    """Serving alone; stores the times of each request's tokens, in ns."""

    def __init__(self, count: int) -> None:
        self.times_ns: list[list[int]] = [[] for _ in range(count)]

    def tokens(self, now_ms: float, requests: Sequence[int]) -> None:
        for request in requests:
            self.times_ns[request].append(ns_of(now_ms))


def times_alone(requests: Sequence[Request], *, seed: int) -> list[list[int]]:
    """Return the times of each request's tokens when serving is alone, in ns."""
    alone = TokenTimes(len(requests))
    govern(requests, DEVICE, alone, slo=TARGETS, seed=seed)
    return alone.times_ns


def within(
    requests: Sequence[Request],
    times_alone_ns: Sequence[Sequence[int]],
    *,
    ttft_ms: float,
    tpot_ms: float,
    slowdown: float,
) -> Deadline:
    """Return deadlines that keep the given P99s of TTFT and of mean TPOT.

    A request may be as late as these two allow, or as it is with serving alone, whichever is later.
    The mean TPOT counts from the request's own first token. The TPOT of serving alone is first
    multiplied by 1 + `slowdown`.
    """
    arrivals_ns = [ns_of(one.arrival_ms) for one in requests]
    firsts_ns = [
        max(at + ns_of(ttft_ms), times[0])
        for at, times in zip(arrivals_ns, times_alone_ns, strict=True)
    ]
    paces_ns = [
        [
            max(ns_of(tpot_ms * gaps), round((1 + slowdown) * (at - times[0])))
            for gaps, at in enumerate(times)
        ]
        for times in times_alone_ns
    ]

    def deadline_ns(number: int, progress: Progress | None) -> int:
        if progress is None:
            return firsts_ns[number]
        first_ns, _, tokens = progress
        return first_ns + paces_ns[number][tokens]

    return deadline_ns


def clairvoyant_within(
    requests: Sequence[Request],
    times_alone_ns: Sequence[Sequence[int]],
    *,
    ttft_ms: float,
    tpot_ms: float,
    slowdown: float,
    seed: int,
) -> ArmOutcome:
    """Return the harvest of a clairvoyant scheduler that keeps the deadlines of `within`."""
    step_noise, rollout_noise = noises(seed, DEVICE)
    knowing = Clairvoyant(
        requests,
        DEVICE,
        within(requests, times_alone_ns, ttft_ms=ttft_ms, tpot_ms=tpot_ms, slowdown=slowdown),
        patience_ms=ttft_ms,
        step_noise=step_noise,
        rollout_noise=rollout_noise,
    )
    return govern(requests, DEVICE, knowing, slo=TARGETS, seed=seed)


def clairvoyant_held(
    requests: Sequence[Request],
    times_alone_ns: Sequence[Sequence[int]],
    *,
    ttft_ms: float,
    tpot_ms: float,
    seed: int,
) -> tuple[float, float]:
    """Return the harvest of a clairvoyant scheduler that is limited to two P99s, and its precision.

    The greedy scheduler does not see all consequences of a delay. If its P99s exceed the limits,
    the limits are reduced by the excess and it runs again, which may also make it worse.

    Returns:
        The harvest, and the larger of both P99s divided by its limit, of the closest attempt.
    """
    tries: list[tuple[float, float]] = []
    held_ttft_ms, held_tpot_ms = ttft_ms, tpot_ms
    for _ in range(HOLD_TRIES):
        found = clairvoyant_within(
            requests,
            times_alone_ns,
            ttft_ms=held_ttft_ms,
            tpot_ms=held_tpot_ms,
            slowdown=0.0,
            seed=seed,
        )
        over_ttft = found.quantile("ttft_ms", 0.99) / ttft_ms
        over_tpot = found.quantile("tpot_ms", 0.99) / tpot_ms
        tries.append((found.harvest, max(over_ttft, over_tpot)))
        if tries[-1][1] <= HELD:
            break
        held_ttft_ms /= max(1.0, over_ttft)
        held_tpot_ms /= max(1.0, over_tpot)
    return min(tries, key=lambda one: one[1])


def p99s(one: Slice) -> tuple[float, float]:
    """Return the P99 of TTFT and that of mean TPOT, in ms."""
    tpot_ms = [request.tpot_ms for request in one.requests if request.tpot_ms is not None]
    ttft_ms = [request.ttft_ms for request in one.requests]
    return float(np.percentile(ttft_ms, 99)), float(np.percentile(tpot_ms, 99))


# ---- priority ------------------------------------------------------------------------------------


class QueuedPriority(Priority):
    """The lower stream has launches in its queue; those at the device's front end run on.

    A launch cannot be recalled: launches that are queued when a request arrives run before
    serving's step.
    """

    grain = Grain.SEGMENT
    window = QUEUE


class RunningPriority(Priority):
    """The most favourable model of priority: the running kernel ends, then serving overtakes the
    queued kernels.
    """

    grain = Grain.SEGMENT


READINGS: Final[dict[str, type[Priority]]] = {
    f"queue{QUEUE}": QueuedPriority,
    "overtaking": RunningPriority,
}


@dataclass(frozen=True, slots=True)
class PriorityJob:
    """One model of priority, compared with rose on one seed at one load."""

    seed: int
    load: float
    rate_rps: float
    count: int
    reading: str


def priority_over_rose(job: PriorityJob) -> tuple[float, float, float]:
    """Return P99 of TTFT under priority divided by that under rose, and both harvests.

    Rose has the smallest slowdown with at least the same harvest.
    """
    requests = poisson(job.seed, job.count)(job.rate_rps)
    rule = READINGS[job.reading]()
    theirs = govern(requests, KERNELS, rule, slo=TARGETS, seed=job.seed)
    mine = rose_at_harvest(requests, theirs.harvest, seed=job.seed)
    ratio = theirs.quantile("ttft_ms", 0.99) / mine.quantile("ttft_ms", 0.99)
    return ratio, theirs.harvest, mine.harvest


def rose_at_harvest(requests: Sequence[Request], harvest: float, *, seed: int) -> ArmOutcome:
    """Return rose at a slowdown, at most 0.1, with this harvest or up to 2 % more, if possible."""

    def at(slowdown: float) -> ArmOutcome:
        return simulate(requests, KERNELS, "rose", slo=TARGETS, slowdown=slowdown, seed=seed)

    low, high = 0.0, 0.1
    best = at(low)
    if best.harvest >= harvest:
        return best
    best = at(high)
    while high - low > 0.001 and best.harvest > 1.02 * harvest:
        middle = (low + high) / 2
        found = at(middle)
        if found.harvest >= harvest:
            high, best = middle, found
        else:
            low = middle
    return best


# ---- ablations -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GateJob:
    """Rose at one slowdown, with and without gates inside a rollout step."""

    seed: int
    load: float
    rate_rps: float
    count: int
    arm: str


def without_gates(job: GateJob) -> tuple[ArmOutcome, ArmOutcome]:
    """Return rose's outcome, and its outcome when a rollout step is a single segment."""
    requests = poisson(job.seed, job.count)(job.rate_rps)
    policy = default_policy(DEVICE)
    with_gates, without = (
        simulate(requests, DEVICE, job.arm, slo=TARGETS, policy=one, seed=job.seed)
        for one in (policy, replace(policy, without=frozenset({"gate"})))
    )
    return with_gates, without
