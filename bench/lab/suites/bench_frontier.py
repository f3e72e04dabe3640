"""The frontier: rollout harvest and its cost for serving, at four loads.

It is first modelled in virtual time (frontier.py), then measured on real engines
(frontier_engines.py). With FULL=1 on a clean commit the seeds of the model are derived from
the commit's hash, and the values of the bars are appended to bench/results/frontier-judged.jsonl.
Otherwise the even seeds for tuning are used. The picture is written beside the JSON.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pytest

from bench.conftest import Report
from bench.lab.suites.frontier import (
    ARMS,
    DEVICE,
    DIALS,
    LOADS,
    READINGS,
    Found,
    GateJob,
    Job,
    PriorityJob,
    capacity_rps,
    harvest_of,
    joined,
    priority_over_rose,
    simulate_job,
    without_gates,
)
from bench.lab.suites.frontier_engines import DIALS as ENGINE_DIALS
from bench.lab.suites.frontier_engines import (
    HALF_WIDTHS_MAX,
    METRICS,
    Rounds,
    Statistic,
    gate_overhead_percent,
    measure,
)
from bench.lab.suites.frontier_judged import (
    JUDGED,
    TUNING_SEEDS,
    append_judgement,
    count_missed,
    is_clean,
    judging_seeds,
)
from bench.lab.suites.frontier_trouble import FrozenHost, trouble, worst_blocking
from bench.rows import Bar, Peer, Term
from rose.whole_file import write_whole
from rose_lab.demo.frontier_plot import draw_frontier
from rose_lab.demo.record import RunRecord
from rose_lab.demo.summary import summarise_loads
from rose_lab.machine import commit
from rose_lab.sim import default_policy
from rose_lab.sim.governors import Priority
from rose_lab.sim.outcome import PRICES
from rose_lab.sim.simulation import SLOWDOWNS

REQUESTS: Final = 300  # per seed and load; a report of fewer requests has no P99
CAPACITY_REQUESTS: Final = 2000
NEAR: Final = Bar(at_least=0.9)
BLOCKING: Final = Bar(at_most=1.2)
PROCESSES: Final = 2
LOADS_BRIEF: Final = (LOADS[0], LOADS[-1])
ENGINE_LOADS: Final = (0.1, 0.3, 0.7)
ENGINE_LOAD_BRIEF: Final = 0.3
ENGINE_ROUNDS: Final = 20
GAP_REQUESTS: Final = (1, 4, 16)  # running at the same time
OTHERS_ON_ENGINES: Final = ("priority", "host_window")
ABLATED_ARMS: Final = ("rose_idle", "rose", "rose_slack")
ABLATED_LOADS: Final = (0.1, 0.3, 0.7)
PRIORITY_LOADS: Final = (0.1, 0.3)  # at higher loads priority harvests next to nothing

J = TypeVar("J")
R = TypeVar("R")


@dataclass(slots=True)
class Modelled:
    """The modelled part of one run.

    Args:
        capacity: capacity of serving at its targets, in requests/s.
        found: results of every seed at every load.
        bars: values of the bars so far.
    """

    seeds: tuple[int, ...]
    capacity: float
    found: list[Found]
    bars: dict[str, tuple[float, Bar]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def kept() -> dict[str, Modelled]:
    """Return the dict in which the first test stores its results for later tests, as "now"."""
    return {}


def seeds_of(report: Report) -> tuple[int, ...]:
    """Return the judging seeds on a clean commit with FULL=1, otherwise the seeds for tuning."""
    if not report.is_full:
        return TUNING_SEEDS[:1]
    if is_clean():
        return judging_seeds(commit(), len(TUNING_SEEDS))
    report.say("the code has changes that are not committed: nothing is judged")
    return TUNING_SEEDS


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"))


def simulated(
    report: Report, names: Sequence[str], simulate: Callable[[J], R], jobs: Sequence[J]
) -> dict[str, list[R]]:
    """Simulate jobs in parallel, and return their results by the rows to which they belong."""
    found: dict[str, list[R]] = {}

    def run() -> None:
        with processes() as pool:
            for name, result in zip(names, pool.map(simulate, jobs), strict=True):
                found.setdefault(name, []).append(result)

    report.once(run)
    return found


def named(name: str, load: float) -> str:
    return f"{name}_load{100 * load:.0f}"


def priority_row(reading: str, load: float) -> str:
    return named(f"p99_ttft_priority_over_rose_{reading}", load)


def ablation_row(arm: str, load: float) -> str:
    return named(f"gates_add_{arm}", load)


def test_modelled(
    report: Report, kept: dict[str, Modelled], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Simulate all arms, and for each arm of rose a clairvoyant scheduler with the same P99s."""
    seeds, loads = seeds_of(report), LOADS if report.is_full else LOADS_BRIEF

    def run() -> None:
        capacity = capacity_rps(report.count(CAPACITY_REQUESTS, at_least=REQUESTS))
        report.say(f"capacity {capacity:.2f} requests/s")
        jobs = [
            Job(seed, load, load * capacity, REQUESTS, tmp_path / str(seed))
            for load in loads
            for seed in seeds
        ]
        found = []
        with processes() as pool:
            for one in pool.map(simulate_job, jobs):
                found.append(one)
                report.say(f"load {one.job.load:g}, seed {one.job.seed}")
        kept["now"] = Modelled(seeds, capacity, found)

    report.once(run)
    modelled = kept["now"]
    record = joined(modelled.found, capacity=modelled.capacity)
    summary = summarise_loads(record)
    report.add("capacity_at_slo", modelled.capacity, "requests/s")
    for at in summary["loads"]:
        for arm in ARMS:
            add_arm(report, at, arm)
        here = [one for one in modelled.found if one.job.load == at["load"]]
        for arm in DIALS:
            add_clairvoyants(report, modelled, record, arm, here)
    document = request.config.getoption("--document")
    if document is not None:
        write_whole(document.with_suffix(".svg"), draw_frontier(summary).encode())


def add_arm(report: Report, at: Mapping[str, Any], arm: str) -> None:
    """Report an arm's harvest, its four costs and, for an arm of rose, its late tokens."""
    numbers, ratios = at["arms"][arm], at["ratios"].get(arm)
    terms = [Term("rollout_tokens_per_s", numbers["rollout_tokens_per_s"], "tokens/s")]
    terms.append(Term("slo_attainment", numbers["slo_attainment"], "share"))
    if ratios is not None:
        terms += [Term(one, ratios[one.removesuffix("_times_alone")], "ratio") for one in PRICES]
    report.add(
        named(f"harvest_{arm}", at["load"]), numbers["harvested_tokens_share"], "share", terms=terms
    )
    if arm in DIALS:  # Certificates may be wrong for a share epsilon of the steps.
        late, late_alone = (at["late_token_share"][one] for one in (arm, "alone"))
        bar = Bar(at_most=default_policy(DEVICE).epsilon)
        name = named(f"late_tokens_over_alone_{arm}", at["load"])
        report.add(name, max(0.0, late - late_alone), "share of tokens", bar=bar)


def add_clairvoyants(
    report: Report, modelled: Modelled, record: RunRecord, arm: str, found: Sequence[Found]
) -> None:
    """Report an arm's harvest, divided by that of a clairvoyant with the arm's limits."""
    load = found[0].job.load
    mine = [harvest_of(record, one) for job in found for one in job.record.slices if one.arm == arm]
    over = [one.p99_over_limit[arm] for one in found]
    terms = [Term("p99_over_limit", statistics.median(over), "ratio")]
    theirs = [one.equal_p99[arm] for one in found]
    name = named(f"harvest_over_clairvoyant_equal_p99_{arm}", load)
    value, peer = _over(mine, theirs)
    report.add(name, value, "ratio", peer=peer, bar=NEAR, terms=terms)
    modelled.bars[name] = value, NEAR
    theirs = [one.equal_slowdown.get(arm, 0.0) for one in found]
    if all(theirs):
        value, peer = _over(mine, theirs)
        name = named(f"harvest_over_clairvoyant_equal_slowdown_{arm}", load)
        report.add(name, value, "ratio", peer=peer)


def _over(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, Peer]:
    """Return the median of the paired ratios, and the clairvoyant's own median."""
    ratios = [ours / one for ours, one in zip(mine, theirs, strict=True)]
    return statistics.median(ratios), Peer("clairvoyant", statistics.median(theirs), "share")


def test_priority_at_equal_harvest(report: Report, kept: dict[str, Modelled]) -> None:
    """Both arms use kernels of 5 ms. When a request arrives, launches in the queue still run, or
    serving overtakes them.
    """
    modelled = kept.get("now")
    if modelled is None:
        names = [priority_row(one, load) for one in READINGS for load in PRIORITY_LOADS]
        report.leave_out(names, "the modelled part did not run")
        return
    jobs = [
        PriorityJob(seed, load, load * modelled.capacity, REQUESTS, reading)
        for reading in READINGS
        for load in PRIORITY_LOADS
        for seed in modelled.seeds
    ]
    names = [priority_row(job.reading, job.load) for job in jobs]
    for name, each in simulated(report, names, priority_over_rose, jobs).items():
        ratio, theirs, mine = (statistics.median(column) for column in zip(*each, strict=True))
        terms = Term("harvest_priority", theirs, "share"), Term("harvest_rose", mine, "share")
        report.add(name, ratio, "ratio", terms=terms)


def test_ablation_of_gates(report: Report, kept: dict[str, Modelled]) -> None:
    """Report the harvest that gates inside a rollout step add, at three slowdowns."""
    modelled = kept.get("now")
    if modelled is None:
        names = [ablation_row(arm, load) for arm in ABLATED_ARMS for load in ABLATED_LOADS]
        report.leave_out(names, "the modelled part did not run")
        return
    jobs = [
        GateJob(seed, load, load * modelled.capacity, REQUESTS, arm)
        for arm in ABLATED_ARMS
        for load in ABLATED_LOADS
        for seed in modelled.seeds
    ]
    names = [ablation_row(job.arm, job.load) for job in jobs]
    for name, pairs in simulated(report, names, without_gates, jobs).items():
        points = statistics.median(100 * (mine.harvest - bare.harvest) for mine, bare in pairs)
        p99s_ms = [[one.quantile("ttft_ms", 0.99) for one in pair] for pair in pairs]
        mine_ms, bare_ms = (statistics.median(column) for column in zip(*p99s_ms, strict=True))
        terms = [Term("p99_ttft_with", mine_ms, "ms"), Term("p99_ttft_without", bare_ms, "ms")]
        report.add(name, points, "points of harvest", terms=terms)


def test_trouble(report: Report) -> None:
    """Report the longest wait over all slowdowns; priority waits for the whole running step."""
    bursts, seed = report.count(100, at_least=10), TUNING_SEEDS[0]
    worst: dict[str, tuple[float, float]] = {}

    def run() -> None:
        for name, is_freezing in (("burst", False), ("frozen_host", True)):
            troubled = trouble(bursts, is_freezing=is_freezing, seed=seed)
            mine = [
                worst_blocking(FrozenHost(slowdown, troubled), troubled, seed=seed)
                for slowdown in SLOWDOWNS.values()
            ]
            theirs, _ = worst_blocking(Priority(), troubled, seed=seed)
            segment_ms = max(took_ms for _, took_ms in mine)
            worst[name] = max(ms for ms, _ in mine) / segment_ms, theirs / segment_ms

    report.once(run)
    for name, (mine, theirs) in worst.items():
        report.add(
            f"worst_blocking_ms_over_segment_{name}",
            mine,
            "ratio",
            peer=Peer("priority", theirs, "ratio"),
            bar=BLOCKING,
        )
    policy = default_policy(DEVICE)
    terms = Term("wait", policy.park_wait_ms, "ms"), Term("segment", policy.segment_prior_ms, "ms")
    report.add(
        "worst_blocking_ms_over_segment_stuck_borrower",
        policy.park_wait_ms / policy.segment_prior_ms,
        "ratio",
        bar=BLOCKING,
        terms=terms,
    )


def test_judged(report: Report, kept: dict[str, Modelled]) -> None:
    """Record this commit's bars on seeds that were not used for tuning."""
    name, modelled = "judged_commits_that_miss_a_bar", kept.get("now")
    if modelled is None or not modelled.bars:
        report.leave_out([name], "the modelled part did not run")
    elif modelled.seeds != judging_seeds(commit(), len(TUNING_SEEDS)):
        report.leave_out([name], "seeds for tuning judge nothing")
    else:
        report.once(lambda: append_judgement(JUDGED, commit(), modelled.seeds, modelled.bars))
        report.add(name, count_missed(JUDGED), "commits", bar=Bar(at_most=0))


def test_gaps(report: Report) -> None:
    """The time between two forward passes of serving, and how much of it the core is idle."""
    pytest.importorskip("transformers", reason="real engines need transformers")
    from bench.lab.suites.gaps import Gaps, measure_gaps

    found: list[tuple[int, Gaps]] = []
    report.once(lambda: found.extend((count, measure_gaps(count)) for count in GAP_REQUESTS))
    for count, gaps in found:
        terms = [
            Term("gap_p95", float(np.percentile(gaps.wall_ms, 95)), "ms"),
            Term("idle_p50", statistics.median(gaps.idle_ms), "ms"),
            Term("idle_p95", float(np.percentile(gaps.idle_ms, 95)), "ms"),
            Term("idle_of_all_time", 100 * gaps.idle_share, "%"),
        ]
        gap_ms = statistics.median(gaps.wall_ms)
        report.add(f"engines_gap_p50_requests{count}", gap_ms, "ms", terms=terms)


@pytest.mark.parametrize("load", ENGINE_LOADS, ids=lambda load: f"load{100 * load:.0f}")
def test_on_engines(report: Report, tmp_path: Path, load: float) -> None:
    """Measure on one core of this machine, at a share of serving's saturated throughput."""
    pytest.importorskip("transformers", reason="real engines need transformers")
    row = named("frontier_over_priority_lower95", load)
    if not report.is_full and load != ENGINE_LOAD_BRIEF:
        report.leave_out([row], "FULL=1 measures it, in twenty minutes")
        return
    rounds = report.count(ENGINE_ROUNDS, at_least=2, brief=2)
    records = []
    report.once(lambda: records.append(measure((load,), rounds=rounds, logs=tmp_path)))
    (record,) = records
    measured = Rounds(record, load)
    if len(measured.numbers) < 2:
        report.leave_out([row], "fewer than two rounds have a slice of each arm that is not void")
    else:
        add_measured(report, measured, load)
    name, overhead = named("gate_overhead_idle_percent", load), gate_overhead_percent(record)
    if overhead is None:
        report.leave_out([name], "no slice of rollouts alone is complete")
    else:
        report.add(name, overhead, "%", bar=Bar(at_most=1.0))


def add_measured(report: Report, measured: Rounds, load: float) -> None:
    """Report the control first: its width shows whether the other rows are meaningful."""
    is_void = False
    uppers = []  # for metrics and ranks whose control can resolve a slowdown of 0.05
    for metric in METRICS:
        for rank, most in HALF_WIDTHS_MAX.items():
            control = measured.estimate(measured.times_alone("alone_again", metric, rank))
            bar, name = Bar(at_most=most), f"aa_half_width_{metric}_p{rank}"
            report.add(named(name, load), control.half_width, "ratio", bar=bar)
            is_void = is_void or not bar.is_met(control.half_width)
            if control.half_width <= SLOWDOWNS["rose"]:
                mine = measured.estimate(measured.times_alone("rose", metric, rank))
                uppers.append(Term(f"{metric}_p{rank}_upper95", mine.high, "x alone"))
    if is_void:
        report.say(f"load {load:g} is void: the A/A control is wider than its bar")

    def add(name: str, unit: str, statistic: Statistic, bar: Bar | None = None) -> None:
        found = measured.estimate(statistic)
        interval = found.low, found.high
        report.add(
            named(name, load), found.value, unit, bar=bar, is_void=is_void, interval=interval
        )

    for arm in (*OTHERS_ON_ENGINES, *ENGINE_DIALS):
        add(f"engines_harvest_{arm}", "tokens/s", partial(measured.harvest, arm))
        for metric in METRICS:
            for rank in HALF_WIDTHS_MAX:
                name = f"engines_{metric}_p{rank}_{arm}"
                add(name, "x alone", measured.times_alone(arm, metric, rank))
    frontier = measured.estimate(measured.frontier_over("priority"))
    report.add(
        named("frontier_over_priority_lower95", load),
        frontier.low,
        "ratio",
        peer=Peer("the estimate", frontier.value, "ratio"),
        bar=Bar(at_least=0.95),
        is_void=is_void,
    )
    name, most = named("slowdown_kept", load), 1 + SLOWDOWNS["rose"]
    if uppers:
        kept = float(all(one.value <= most for one in uppers))
        bar = Bar(at_least=1.0)
        report.add(name, kept, "yes = 1", bar=bar, is_void=is_void, terms=uppers)
    else:
        report.leave_out([name], "every control is wider than the slowdown that it should judge")
    again = measured.excess_misses("alone_again")
    for arm in ENGINE_DIALS:
        mine = measured.excess_misses(arm)
        add(
            f"excess_misses_over_aa_{arm}",
            "share",
            lambda rounds, mine=mine: mine(rounds) - again(rounds),
            Bar(at_most=0.0),
        )
