"""The suite `frontier`: its traffic, its clairvoyant, its priority, its trouble, its bootstrap."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.lab.suites import frontier, frontier_engines, frontier_judged
from bench.lab.suites.bench_frontier import add_arm, add_measured
from bench.lab.suites.frontier import (
    ARMS,
    DEVICE,
    KERNELS,
    QUEUE,
    TARGETS,
    GateJob,
    Job,
    PriorityJob,
    QueuedPriority,
    RunningPriority,
    attainment,
    capacity_rps,
    clairvoyant_held,
    clairvoyant_within,
    harvest_of,
    joined,
    p99s,
    poisson,
    priority_over_rose,
    simulate_job,
    times_alone,
    without_gates,
)
from bench.lab.suites.frontier_engines import ARMS as ENGINE_ARMS
from bench.lab.suites.frontier_engines import Rounds, gate_overhead_percent
from bench.lab.suites.frontier_judged import (
    TUNING_SEEDS,
    append_judgement,
    count_missed,
    judging_seeds,
    read_judgements,
)
from bench.lab.suites.frontier_trouble import FrozenHost, trouble, worst_blocking
from bench.rows import Bar
from rose.slo import SLO
from rose_lab.demo.record import Answered, RunPlan, RunRecord, Slice
from rose_lab.demo.summary import summarise_loads
from rose_lab.sim import ArmOutcome, Request, simulate
from rose_lab.sim.governors import NoRollouts, Priority
from rose_lab.sim.simulation import govern

# ---- traffic and capacity


def test_a_higher_rate_brings_the_same_requests_sooner() -> None:
    slow, fast = (poisson(4, 50)(rate) for rate in (1.0, 4.0))
    for one, other in zip(slow, fast, strict=True):
        assert one.arrival_ms == pytest.approx(4 * other.arrival_ms)
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
    assert slow != poisson(6, 50)(1.0)


def test_the_capacity_is_the_last_rate_that_keeps_the_targets() -> None:
    count = 150
    capacity = capacity_rps(count)

    def attained(rate_rps: float) -> float:
        requests = poisson(0, count)(rate_rps)
        return attainment(simulate(requests, DEVICE, "alone", slo=TARGETS, seed=0))

    assert attained(capacity) >= 0.99
    assert attained(1.1 * capacity) < 0.99


# ---- whoever knows the future


@pytest.mark.parametrize(
    ("tpot_ms", "slowdown"), [(0.0, 0.0), (0.0, 0.1), (12.0, 0.0), (18.0, 0.0)]
)
def test_the_clairvoyant_keeps_every_request_within_its_limits(
    tpot_ms: float, slowdown: float
) -> None:
    requests = poisson(2, 25)(4.0)
    times_ns = times_alone(requests, seed=2)
    alone = simulate(requests, DEVICE, "alone", slo=TARGETS, seed=2)
    found = clairvoyant_within(
        requests, times_ns, ttft_ms=100.0, tpot_ms=tpot_ms, slowdown=slowdown, seed=2
    )
    for one, bare in zip(found.requests, alone.requests, strict=True):
        assert one.ttft_ms <= max(100.0, bare.ttft_ms)
        limit_ms = max(tpot_ms, (1 + slowdown) * bare.mean_tpot_ms)
        # Greedy: without room to spare, other requests in the batch later may cost a little more.
        assert one.mean_tpot_ms <= 1.03 * limit_ms
    least = {0.0: 0.0, 12.0: 0.5, 18.0: 0.65}[tpot_ms]
    assert found.harvest > least


def test_a_clairvoyant_over_its_limit_gets_a_lower_one_and_the_closest_try_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[tuple[float, float]] = []
    # P99s of TTFT and TPOT, over what they should be, of each try.
    overs = iter([(1.0, 1.1), (1.25, 1.0), (1.5, 1.0)])
    ended = simulate([Request(0.0, 10, 4)], DEVICE, "alone", slo=TARGETS, seed=0)

    def within(*_: object, ttft_ms: float, tpot_ms: float, **__: object) -> ArmOutcome:
        held.append((ttft_ms, tpot_ms))
        ttft_over, tpot_over = next(overs)
        one = replace(ended.requests[0], ttft_ms=100 * ttft_over, mean_tpot_ms=10 * tpot_over)
        return replace(ended, requests=(one,), harvest_ms=ended.wall_ms * len(held) / 10)

    monkeypatch.setattr(frontier, "clairvoyant_within", within)
    harvest, over = clairvoyant_held([], [], ttft_ms=100.0, tpot_ms=10.0, seed=0)
    assert (harvest, over) == (pytest.approx(0.1), pytest.approx(1.1))
    assert held[0] == (100.0, 10.0)
    assert held[1] == (100.0, pytest.approx(10 / 1.1))
    assert held[2] == (pytest.approx(80.0), pytest.approx(10 / 1.1))


# ---- priority


def test_launches_queued_at_an_arrival_run_or_are_overtaken() -> None:
    requests = [Request(1000.0, 100, 4)]
    alone, queued, overtaking = (
        govern(requests, KERNELS, rule(), slo=TARGETS, seed=0).requests[0].ttft_ms
        for rule in (NoRollouts, QueuedPriority, RunningPriority)
    )
    kernel_ms = KERNELS.layers_per_segment * KERNELS.layer_ms
    assert kernel_ms == pytest.approx(5.0)
    assert 0 <= overtaking - alone < 1.5 * kernel_ms
    assert queued - alone == pytest.approx((QUEUE - 0.5) * kernel_ms, rel=0.2)


def test_rose_is_held_against_priority_at_its_harvest() -> None:
    ratio, theirs, mine = priority_over_rose(PriorityJob(2, 0.1, 1.5, 20, "overtaking"))
    assert theirs <= mine <= 1.2 * theirs
    queued, _, _ = priority_over_rose(PriorityJob(2, 0.1, 1.5, 20, f"queue{QUEUE}"))
    assert queued > ratio


# ---- a job


def test_without_gates_a_first_token_may_wait_for_a_whole_step() -> None:
    mine, bare = without_gates(GateJob(0, 0.3, 1.2, 60, "rose_slack"))
    assert 0 < bare.harvest < mine.harvest
    assert mine.quantile("ttft_ms", 1.0) < bare.quantile("ttft_ms", 1.0)


def test_a_job_has_every_arm_and_joins_to_one_record(tmp_path: Path) -> None:
    found = [
        simulate_job(Job(seed, load, rate_rps, 6, tmp_path / str(seed)))
        for load, rate_rps in ((0.1, 4.0), (0.3, 8.0))
        for seed in (2, 4)
    ]
    record = joined(found, capacity=20.0)
    assert record.plan.settings["seeds"] == [2, 4]
    assert {one.round for one in record.slices} == {0, 1}
    summary = summarise_loads(record)
    assert [at["load"] for at in summary["loads"]] == [0.1, 0.3]
    for at in summary["loads"]:
        assert set(at["arms"]) == set(ARMS)
        share_all = [
            one for one in record.slices if (one.arm, one.load) == ("share_all", at["load"])
        ]
        shares = [harvest_of(record, one) for one in share_all]
        assert min(shares) <= at["arms"]["share_all"]["harvested_tokens_share"] <= max(shares)
    for one in found:
        assert set(one.equal_p99) == {"rose_idle", "rose", "rose_slack"}
        assert set(one.equal_slowdown) == {"rose_idle", "rose"}
        assert all(over < 1.03 for over in one.p99_over_limit.values())
        # Whoever is held to the P99s of all requests may harvest more than within each slowdown.
        assert one.equal_p99["rose_idle"] >= one.equal_slowdown["rose_idle"]
    (alone,) = [one for one in found[0].record.slices if one.arm == "alone"]
    ttft_ms, _ = p99s(alone)
    assert ttft_ms <= max(one.ttft_ms for one in alone.requests)


# ---- held out


def test_judging_seeds_are_odd_and_drawn_from_the_commit() -> None:
    seeds = judging_seeds("0123abcd", 3)
    assert all(seed > 1000 and seed % 2 == 1 for seed in seeds)
    assert len(set(seeds)) == 3
    assert seeds == judging_seeds("0123abcd", 3)
    assert seeds != judging_seeds("0123abce", 3)
    assert not any(seed % 2 for seed in TUNING_SEEDS)


def test_a_commit_is_judged_once_and_the_last_three_count(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    bar = Bar(at_least=0.9)
    assert count_missed(path) == 0
    for commit, value in (("a", 0.5), ("b", 0.95), ("b", 0.1), ("c", 0.8), ("d", 0.9)):
        append_judgement(path, commit, (1001,), {"row": (value, bar)})
    assert [one["commit"] for one in read_judgements(path)] == ["a", "b", "c", "d"]
    assert [one["missed"] for one in read_judgements(path)] == [["row"], [], ["row"], []]
    assert count_missed(path) == 1


def test_code_outside_git_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_judged, "ROOT", tmp_path)
    assert not frontier_judged.is_clean()


# ---- trouble


def test_a_frozen_host_stops_rollouts_until_it_is_back() -> None:
    calm, frozen = (trouble(3, is_freezing=is_freezing, seed=2) for is_freezing in (False, True))
    assert calm.at_ms == frozen.at_ms
    end_ms, freeze_ms = frozen.at_ms[1], frozen.freeze_ms[1]
    assert frozen.is_frozen(end_ms - 0.5 * freeze_ms)
    assert not frozen.is_frozen(end_ms)
    assert not frozen.is_frozen(end_ms - 1.1 * freeze_ms)
    assert not calm.is_frozen(end_ms - 1e-6)
    harvests = [
        govern(one.requests, DEVICE, FrozenHost(0.0, one), slo=TARGETS, seed=0).harvest
        for one in (calm, frozen)
    ]
    assert harvests[1] < harvests[0]


def test_in_trouble_rose_lets_a_segment_end_and_priority_a_step() -> None:
    troubled = trouble(3, is_freezing=False, seed=2)
    mine_ms, segment_ms = worst_blocking(FrozenHost(0.0, troubled), troubled, seed=0)
    theirs_ms, step_ms = worst_blocking(Priority(), troubled, seed=0)
    assert 0 < mine_ms <= 1.2 * segment_ms
    assert step_ms > 5 * segment_ms
    assert theirs_ms > mine_ms


# ---- real engines

SLO_MS = SLO(ttft_ms=100.0, tpot_ms=30.0)
# By arm: TTFT and TPOT of its requests, and rollout tokens a second.
FIGURES = {
    "alone": (50.0, 10.0, 0),
    "alone_again": (50.0, 10.0, 0),
    "priority": (60.0, 12.0, 40),
    "host_window": (70.0, 10.0, 30),
    "rose_idle": (50.0, 11.0, 20),
    "rose": (50.0, 13.0, 80),
    "rose_30": (50.0, 15.0, 85),
    "rose_slack": (60.0, 20.0, 100),
}


def slice_of(arm: str, number: int, *, factor: float = 1.0, late: int = 0) -> Slice:
    ttft_ms, tpot_ms, tokens_per_s = FIGURES[arm]
    requests = tuple(
        Answered(0.0, factor * ttft_ms + 200.0 * (place < late), factor * tpot_ms, 10)
        for place in range(4)
    )
    return Slice(arm, number, 0.0, 2.0, requests, 1.0, 2 * tokens_per_s, load=0.3)


def record_of(*slices: Slice, solo: tuple[Slice, ...] = ()) -> RunRecord:
    plan = RunPlan((), (0.3,), 0, {}, "", {})
    return RunRecord(plan, slices, solo, SLO_MS, "flags", complete=True)


def whole(factors: tuple[float, ...] = (1.0, 1.3, 0.8)) -> list[Slice]:
    """Return rounds that differ from each other, as slow machines do, but not within one."""
    return [
        slice_of(arm, number, factor=factor)
        for number, factor in enumerate(factors)
        for arm in ENGINE_ARMS
    ]


def test_drift_that_all_arms_of_a_round_share_widens_no_interval() -> None:
    rounds = Rounds(record_of(*whole()), 0.3)
    assert rounds.numbers == [0, 1, 2]
    control = rounds.estimate(rounds.times_alone("alone_again", "ttft", 95))
    assert (control.value, control.half_width) == (1.0, 0.0)
    assert rounds.estimate(rounds.times_alone("rose", "tpot", 50)).value == pytest.approx(1.3)


def test_a_round_with_a_void_slice_does_not_count() -> None:
    slices = whole()
    slices[0] = replace(slices[0], is_void=True)
    assert Rounds(record_of(*slices), 0.3).numbers == [1, 2]
    assert Rounds(record_of(*whole()), 0.7).numbers == []


def test_a_noisy_control_has_a_wide_interval() -> None:
    slices = [
        slice_of(one.arm, one.round, factor=1 + 0.2 * one.round)
        if one.arm == "alone_again"
        else one
        for one in whole((1.0, 1.0, 1.0))
    ]
    rounds = Rounds(record_of(*slices), 0.3)
    control = rounds.estimate(rounds.times_alone("alone_again", "ttft", 50))
    assert control.half_width > 0.03
    assert control.low <= control.value <= control.high


def test_the_median_is_of_the_ratios_of_the_same_requests() -> None:
    def with_ttfts(arm: str, *ttfts_ms: float) -> Slice:
        requests = tuple(Answered(0.0, ttft_ms, 10.0, 10) for ttft_ms in ttfts_ms)
        return replace(slice_of(arm, 0), requests=requests)

    slices = [slice_of(arm, 0) for arm in ENGINE_ARMS if arm not in ("alone", "rose")]
    slices += [with_ttfts("alone", 10.0, 20.0, 90.0), with_ttfts("rose", 30.0, 22.0, 90.0)]
    rounds = Rounds(record_of(*slices), 0.3)
    assert rounds.times_alone("rose", "ttft", 50)([0]) == pytest.approx(1.1)  # not 30 / 20
    assert rounds.times_alone("rose", "ttft", 95)([0]) == pytest.approx(84.0 / 83.0)


def test_the_frontier_is_read_at_the_peers_price() -> None:
    rounds = Rounds(record_of(*whole()), 0.3)
    # Priority pays 1.2; rose's dials give 20 tokens/s at 1.1 and 80 at 1.3, so 50 between them.
    assert rounds.frontier_over("priority")(rounds.numbers) == pytest.approx(50 / 40)
    # The host window pays 1.4: 80 at 1.3 and 85 at 1.5.
    assert rounds.frontier_over("host_window")(rounds.numbers) == pytest.approx(82.5 / 30)


def test_excess_misses_are_those_that_serving_alone_had_met() -> None:
    slices = [
        slice_of(one.arm, one.round, late={"rose": 2, "alone": 1}.get(one.arm, 0))
        for one in whole()
    ]
    rounds = Rounds(record_of(*slices), 0.3)
    assert rounds.excess_misses("rose")(rounds.numbers) == pytest.approx(1 / 4)
    assert rounds.excess_misses("alone_again")(rounds.numbers) == 0


def test_the_overhead_of_gates_is_what_rollouts_alone_lose() -> None:
    def solo(arm: str, tokens: int) -> Slice:
        return Slice(arm, -1, 0.0, 2.0, (), 0.0, tokens)

    record = record_of(solo=(solo("share_all", 100), solo("rose_idle", 98), solo("share_all", 100)))
    assert gate_overhead_percent(record) == pytest.approx(2.0)
    assert gate_overhead_percent(record_of(solo=(solo("share_all", 100),))) is None


def test_the_late_tokens_of_an_arm_of_rose_are_limited_by_epsilon() -> None:
    numbers = dict.fromkeys(("rollout_tokens_per_s", "slo_attainment"), 1.0)
    numbers["harvested_tokens_share"] = 0.5
    at = {
        "load": 0.1,
        "arms": dict.fromkeys(("alone", "share_all", "rose"), numbers),
        "ratios": {},
        "late_token_share": {"alone": 0.001, "share_all": 0.2, "rose": 0.004},
    }
    report = Rows()
    for arm in ("share_all", "rose"):
        add_arm(report, at, arm)  # type: ignore[arg-type]
    (row,) = (row for name, row in report.rows.items() if name.startswith("late_tokens"))
    assert row["value"] == pytest.approx(0.003)
    assert row["bar"] == Bar(at_most=0.01)


class Rows:
    """A report that stores its rows."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, object]] = {}
        self.said: list[str] = []
        self.left_out: list[str] = []

    def add(self, name: str, value: float, unit: str, **more: object) -> None:
        self.rows[name] = {"value": value, "unit": unit, **more}

    def say(self, line: str) -> None:
        self.said.append(line)

    def leave_out(self, names: list[str], _reason: str) -> None:
        self.left_out += names


def test_a_run_with_a_wide_control_is_void_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_engines, "DRAWS", 100)
    noisy = [
        slice_of(one.arm, one.round, factor=1 + 0.2 * one.round)
        if one.arm == "alone_again"
        else one
        for one in whole((1.0, 1.0, 1.0))
    ]
    for slices, is_void in ((whole(), False), (noisy, True)):
        report = Rows()
        add_measured(report, Rounds(record_of(*slices), 0.3), 0.3)  # type: ignore[arg-type]
        assert report.rows["frontier_over_priority_lower95_load30"]["is_void"] is is_void
        assert ("slowdown_kept_load30" in report.left_out) is is_void
        assert any("void" in line for line in report.said) is is_void
    assert report.rows["aa_half_width_ttft_p50_load30"]["bar"] == Bar(at_most=0.03)
    assert report.rows["aa_half_width_tpot_p95_load30"]["bar"] == Bar(at_most=0.08)
    for arm in ("rose_idle", "rose", "rose_30", "rose_slack"):
        assert f"excess_misses_over_aa_{arm}_load30" in report.rows


def test_a_slowdown_is_kept_if_the_upper_end_of_every_price_is_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frontier_engines, "DRAWS", 100)
    for factor, kept in ((1.0, 0.0), (0.8, 1.0)):
        slices = [
            slice_of(one.arm, one.round, factor=factor if one.arm == "rose" else 1.0)
            for one in whole((1.0, 1.0, 1.0))
        ]
        report = Rows()
        add_measured(report, Rounds(record_of(*slices), 0.3), 0.3)  # type: ignore[arg-type]
        row = report.rows["slowdown_kept_load30"]
        assert (row["value"], row["bar"], row["is_void"]) == (kept, Bar(at_least=1.0), False)
        assert len(row["terms"]) == 4  # type: ignore[arg-type]
