"""A world is what its scenario says; arms of one seed differ in what the arm does alone."""

import dataclasses

import numpy as np
import pytest
from msgspec import structs

from bench.lab.suites.drawn_scenarios import drawn
from rose.errors import InvalidArgument
from rose.scheduler.settings import PlacementPolicy
from rose.scheduler.worker import WorkerKind
from rose_lab.sim.cluster.lending_kv import PublishedKv
from rose_lab.sim.cluster.simulate import simulate_cluster
from rose_lab.sim.cluster.world import LendingTimeline, TrainerMode
from rose_lab.sim.scenario.arms import PUBLISHED, RESERVED, RULES, rules_of
from rose_lab.sim.scenario.build import (
    Built,
    batches,
    build,
    check_size,
    idle_trainer,
    lent_engines,
)
from rose_lab.sim.scenario.cost import Cost, cost_of, lent_ms
from rose_lab.sim.scenario.loans import ServingGroups, first_started, kv_rule, until, whole_gpus
from rose_lab.sim.scenario.scenario import Scenario, scenario_from
from rose_lab.sim.scenario.traffic import Inputs, burst_variation, slow_wave
from rose_lab.sim.scenario.updates import UpdateScheme, update_time
from tests.lab.sim.scenario.files import changed, content, scenario

NOTHING = Inputs()


@pytest.fixture(scope="module")
def small() -> Scenario:
    return scenario()


@pytest.fixture(scope="module")
def serving(small: Scenario) -> ServingGroups:
    return ServingGroups(small, seed=7, inputs=NOTHING)


def test_workers_are_the_scenario_s_gpus(small: Scenario, serving: ServingGroups) -> None:
    made = build(small, "rose", seed=7, inputs=NOTHING, serving=serving)
    kinds = [worker.kind for worker in made.world.workers]
    assert kinds == [WorkerKind.DEDICATED] * 4 + [WorkerKind.BORROWED] * 4
    assert [worker.number for worker in made.world.workers] == list(range(8))
    # Nodes of eight that are dedicated, of two that are borrowed.
    assert [worker.domain for worker in made.world.workers] == [0, 0, 0, 0, 1, 1, 2, 2]
    for worker in made.world.workers:
        assert (worker.lending is None) == (worker.kind is WorkerKind.DEDICATED)
        assert worker.kv_tokens >= 32768
        assert worker.start_up_ms == (5000 if worker.lending is not None else 0)
    assert made.world.horizon_ms == 600_000
    assert made.world.versions == 2
    assert made.gpus == (1,) * 8


def test_arms_of_a_seed_differ_only_in_what_they_do(
    small: Scenario, serving: ServingGroups
) -> None:
    worlds = {
        arm: build(small, arm, seed=7, inputs=NOTHING, serving=serving).world for arm in RULES
    }
    rose = worlds["rose"]
    for arm, world in worlds.items():
        one, other = rose.jobs[0].trajectories, world.jobs[0].trajectories
        assert one.output_tokens.tobytes() == other.output_tokens.tobytes()
        assert one.tool_ms.tobytes() == other.tool_ms.tobytes()
        assert world.policy is rules_of(arm).policy
        assert world.settings == rose.settings
        assert world.workers[0].times == rose.workers[0].times
    assert len(worlds["resource-fixed"].workers) == 4
    for arm in ("least-loaded-sticky", "mlfq"):
        for one, other in zip(rose.workers, worlds[arm].workers, strict=True):
            same = dataclasses.replace(other, lending=one.lending)
            assert same == one
            if one.lending is not None and other.lending is not None:
                assert one.lending.share.tobytes() == other.lending.share.tobytes()
    assert worlds["least-loaded-sticky"].policy is PlacementPolicy.LEAST_LOADED_STICKY
    assert worlds["mlfq"].policy is PlacementPolicy.MLFQ
    assert worlds["elastic"].workers[-1].start_up_ms == 6300
    assert worlds["elastic"].workers[-1].update_ms > 10 * rose.workers[-1].update_ms
    assert worlds["reserved-share"].workers[-1].lending is not None
    assert worlds["reserved-share"].workers[-1].lending.share == pytest.approx(0.25)
    assert worlds["rose-published"].workers[0].seats == 16


def test_another_seed_has_other_trajectories_and_other_traffic(small: Scenario) -> None:
    one, other, again = (
        build(small, "rose", seed=seed, inputs=NOTHING).world for seed in (1, 2, 1)
    )
    for got, wanted in ((other, False), (again, True)):
        said = got.jobs[0].trajectories.output_tokens.tobytes()
        assert (said == one.jobs[0].trajectories.output_tokens.tobytes()) == wanted
        first, second = one.workers[-1].lending, got.workers[-1].lending
        assert first is not None
        assert second is not None
        assert (first.share.tobytes() == second.share.tobytes()) == wanted


def test_a_world_runs_and_costs_what_its_prices_say(
    small: Scenario, serving: ServingGroups
) -> None:
    made = build(small, "rose", seed=7, inputs=NOTHING, serving=serving)
    outcome = simulate_cluster(made.world)
    assert len(outcome.jobs[0].published_ms) == 2
    assert outcome.tokens_lost == 0
    assert small.prices is not None
    cost = cost_of(made, outcome, small.prices, trainer_gpus=4)
    hours = outcome.ended_ms / 3_600_000
    busy_hours = outcome.busy_ms_by_worker[4:].sum() / 3_600_000
    assert cost.dedicated == pytest.approx(4 * hours * 2)
    assert cost.trainer == pytest.approx(4 * hours * 3)
    assert cost.borrowed == pytest.approx(busy_hours * 0.5)
    assert cost.opportunity == pytest.approx(busy_hours * 0.25)
    assert cost.trajectories == 64
    assert cost.total == cost.dedicated + cost.trainer + cost.borrowed + cost.opportunity


def test_trajectories_that_were_thrown_away_cost_and_do_not_count() -> None:
    job = {**content()["jobs"][0], "algorithm": "dapo"}
    job["redundancy"] = {"kind": "constant", "value": 3}
    one = scenario(jobs=[job])
    made = build(one, "resource-fixed", seed=7, inputs=NOTHING)
    outcome = simulate_cluster(made.world)
    assert int((outcome.jobs[0].used_by >= 0).sum()) == 192
    assert one.prices is not None
    assert cost_of(made, outcome, one.prices, trainer_gpus=4).trajectories == 64


def test_the_accept_rate_is_an_input_that_is_swept() -> None:
    cost = Cost(dedicated=6, trainer=3, borrowed=0.5, opportunity=0.5, trajectories=100)
    assert cost.per_trajectory == pytest.approx(0.1)
    assert tuple((rate, cost.per_correct_answer(rate)) for rate in (0.1, 0.5, 1)) == (
        (0.1, pytest.approx(1.0)),
        (0.5, pytest.approx(0.2)),
        (1, pytest.approx(0.1)),
    )
    nothing = dataclasses.replace(cost, trajectories=0)
    assert nothing.per_trajectory is None
    assert nothing.per_correct_answer(0.5) is None
    for rate in (0, 1.1, float("nan")):
        with pytest.raises(InvalidArgument, match="accept_rate is"):
            cost.per_correct_answer(rate)


def test_lent_time_is_the_integral_of_the_share() -> None:
    lending = LendingTimeline(np.array([0.0, 10, 30]), np.array([1.0, 0, 0.5]), np.array([1, 0, 1]))
    assert lent_ms(lending, 50) == 20
    assert lent_ms(lending, 30) == 10
    assert lent_ms(lending, 5) == 5


# --- jobs -----------------------------------------------------------------------------------------


def job_of(made: Built) -> tuple[int, int, int]:
    """Return what a version rolls out, how many batches there are, and how many are kept."""
    (job,), (kept,) = made.world.jobs, made.kept
    return job.batch, kept.size // job.batch, int(kept.sum())


def test_dapo_rolls_out_more_and_throws_whole_groups_away() -> None:
    content_of = changed("jobs[0].algorithm", "dapo")
    made = build(scenario_from(content_of), "resource-fixed", seed=3, inputs=NOTHING)
    batch, batches, kept = job_of(made)
    assert 32 < batch <= 5.7 * 32
    assert batch % 8 == 0
    assert (batches, kept) == (2, 64)
    of_group = made.kept[0].reshape(-1, 8)
    assert (of_group == of_group[:, :1]).all()
    of_version = made.kept[0].reshape(2, -1).sum(axis=1)
    assert of_version.tolist() == [32, 32]
    exactly = {**content_of["jobs"][0], "redundancy": {"kind": "constant", "value": 3}}
    tripled = build(
        scenario_from({**content_of, "jobs": [exactly]}), "resource-fixed", seed=3, inputs=NOTHING
    )
    assert job_of(tripled) == (96, 2, 64)


def test_off_policy_jobs_have_what_they_begin_before_the_last_version() -> None:
    jobs = [{**content()["jobs"][0], "mode": "asynchronous", "max_staleness": 2}]
    assert job_of(build(scenario(jobs=jobs), "resource-fixed", seed=3, inputs=NOTHING)) == (
        32,
        7,
        224,
    )


def test_jobs_share_the_engines_out_in_turn() -> None:
    twins = [{**content()["jobs"][0], "name": name} for name in ("a", "b")]
    made = build(scenario(jobs=twins), "rose-published", seed=3, inputs=NOTHING)
    assert [worker.job for worker in made.world.workers] == [0, 1] * 4
    first, second = made.world.jobs
    assert first.trajectories.output_tokens.tobytes() != second.trajectories.output_tokens.tobytes()


def test_a_stalled_trainer_takes_longer() -> None:
    stress = [{"kind": "stalled-trainer", "factor": 3}]
    for one in (scenario(stress=stress), scenario(stress=stress, borrowed=[])):
        made = build(one, "resource-fixed", seed=3, inputs=NOTHING)
        assert made.world.jobs[0].train_ms == 60_000


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^jobs\[0\]\.context_tokens: an engine of Qwen3-8B"):
        build(
            scenario_from(changed("jobs[0].context_tokens", 1 << 20)),
            "resource-fixed",
            seed=0,
            inputs=NOTHING,
        )
    many = [{**content()["jobs"][0], "name": name} for name in "abcde"]
    with pytest.raises(InvalidArgument, match=r"^dedicated: job e has no engine"):
        build(scenario(jobs=many), "resource-fixed", seed=0, inputs=NOTHING)


# --- loans ----------------------------------------------------------------------------------------


def test_an_arm_lends_at_its_slowdown() -> None:
    serving = ServingGroups(scenario(), seed=3, inputs=NOTHING)
    arms = ("rose", "rose@inf")
    shares, prices = [], []
    for arm in arms:
        (loan,) = serving.loans(arm)
        assert loan.latencies is not None
        assert loan.excess == 0
        shares.append(sum(lent_ms(one, 600_000) for one in loan.lendings))
        prices.append(loan.latencies.quantile("tpot_ms", 0.5))
    assert shares == sorted(shares)
    assert prices == sorted(prices)
    assert prices[1] > 5 * prices[0]
    assert serving.loans("mlfq@inf") is serving.loans("rose@inf")
    for arm in ("rose@", "rose@-1", "rose@nan", "elastic@0", "best"):
        with pytest.raises(InvalidArgument):
            serving.loans(arm)


def test_the_paper_s_memory_grows_with_each_step_of_rl(small: Scenario) -> None:
    quick = scenario_from(changed("jobs[0].train_s", 10))
    # Training is a quarter of a step, which takes a minute at least.
    rules = [kv_rule(PUBLISHED, one) for one in (small, quick)]
    assert rules == [PublishedKv(step_ms) for step_ms in (80_000.0, 60_000.0)]
    assert kv_rule(RESERVED, small) == RESERVED.kv


def test_a_timeline_ends_at_the_horizon() -> None:
    whole = LendingTimeline(np.array([0.0, 40, 80]), np.array([1.0, 0.5, 1]), np.array([9, 3, 9]))
    made = until(whole, 80)
    assert (made.at_ms.tolist(), made.share.tolist()) == ([0, 40], [1, 0.5])
    assert made.kv_tokens.tolist() == [9, 3]


def test_whole_gpus_are_lent_while_serving_is_in_time_without_them() -> None:
    """Three devices, bins of a second: two are needed from 20 s on, and again for all but 4 s."""
    kept = np.array([1] * 20 + [2] * 10 + [1] * 4 + [2] * 6 + [1] * 10)
    lendings = whole_gpus(
        kept, devices=3, full_tokens=5, bin_ms=1000, release_ms=3000, shortest_ms=2000
    )
    first, second, third = ([*zip(one.at_ms, one.share, strict=True)] for one in lendings)
    assert first == [(0, 0)]  # one is always kept
    # Not to the whole minute, and not for a second: letting go takes three of those four.
    assert second == [(0, 1), (17_000, 0), (40_000, 1)]
    assert third == [(0, 1)]
    assert set(lendings[1].kv_tokens.tolist()) == {0, 5}


def test_only_the_first_start_on_a_gpu_is_the_long_one() -> None:
    def started(*at_ms: float, begins: int) -> list[float]:
        share = (np.arange(len(at_ms)) + begins) % 2
        once = LendingTimeline(np.array(at_ms), share * 1.0, share * 7)
        made = first_started(once, 60)
        assert (made.kv_tokens == 7 * made.share).all()
        return [float(at) for at in made.at_ms]

    assert started(0, 100, 200, 300, begins=0) == [0, 160, 200, 300]
    assert started(0, 100, 200, 300, begins=1) == [0, 100, 200, 300]  # it runs from the beginning
    assert started(0, 100, 150, 300, 400, begins=0) == [0, 360, 400]  # the first is over too soon
    assert started(0, 100, 150, begins=0) == [0]
    assert started(0, begins=0) == [0]
    rules = RULES["elastic"]
    assert (rules.start_up_ms(8_000_000_000), rules.start_up_ms(32_000_000_000)) == (6300, 6100)
    assert rules.first_longer_ms(8_000_000_000) == pytest.approx(67_400 - 6300)
    assert rules.first_longer_ms(32_000_000_000) == pytest.approx(85_000 - 6100)
    assert RULES["rose"].first_longer_ms(8_000_000_000) == 0


@pytest.mark.parametrize("load", [0.1, 0.95])
def test_serving_keeps_no_more_whole_gpus_than_it_needs_to_be_in_time(load: float) -> None:
    made = scenario_from(changed("borrowed[0].traffic.load", load))
    (loan,) = ServingGroups(made, seed=3, inputs=NOTHING).loans("elastic")
    assert loan.latencies is not None
    assert loan.alone is not None
    assert loan.latencies.late < 0.02
    shares = [lent_ms(one, 600_000) / 600_000 for one in loan.lendings]
    assert shares == sorted(shares)
    # Of four, three go when one of them can do it all; some are needed when all have work.
    assert shares[0] == 0
    assert shares[1] > 0.9 if load == 0.1 else shares[1] < 1
    # What requests feel is that of fewer devices: later than with all of them.
    assert loan.latencies.quantile("tpot_ms", 0.5) > loan.alone.quantile("tpot_ms", 0.5)


def test_an_update_of_all_weights_goes_to_those_that_are_lent() -> None:
    half = LendingTimeline(np.array([0.0, 50]), np.array([1.0, 0]), np.array([9, 0]))
    whole = LendingTimeline(np.array([0.0]), np.array([1.0]), np.array([9]))
    assert lent_engines([half] * 4 + [whole], horizon_ms=100) == 3
    assert lent_engines([half], horizon_ms=10_000) == 1
    made = scenario_from(changed("borrowed[0].traffic.load", 0.1))
    built = build(made, "elastic", seed=3, inputs=NOTHING)
    borrowed = [one for one in built.world.workers if one.kind is WorkerKind.BORROWED]
    expected = update_time(
        made.model,
        gpu="H800",
        tp=1,
        engines=3,
        trainer_tp=4,
        is_far=True,
        network=made.network,
        scheme=UpdateScheme.DENSE,
    )
    assert {one.update_ms for one in borrowed} == {expected.update_ms}


def test_a_scenario_that_would_run_for_hours_is_refused_before_it_starts() -> None:
    long = scenario_from({**changed("jobs[0].batch", 3200), "versions": 100_000})
    for mode, more in (("synchronous", 1), ("asynchronous", 2)):
        job = structs.replace(long.jobs[0], mode=TrainerMode(mode))
        assert batches(job, 100) == pytest.approx(100 * more, abs=1)
    with pytest.raises(InvalidArgument, match=r"^versions: 100000 versions make about \d+ million"):
        build(long, "rose", seed=3, inputs=NOTHING)
    check_size(scenario_from({**content(), "versions": 1000}))


def test_a_trainer_lends_while_it_waits() -> None:
    idle = idle_trainer(np.array([100.0, 200]), train_ms=30, release_ms=10, horizon_ms=300)
    assert idle.at_ms.tolist() == [0, 60, 100, 160, 200, 290]
    assert idle.share.tolist() == [1, 0, 1, 0, 1, 0]
    busy = idle_trainer(np.array([100.0, 200]), train_ms=100, release_ms=0, horizon_ms=200)
    assert busy.share.sum() == 0


@pytest.mark.parametrize("peak", [1.0, 1.2, 1.7, 3.0])
def test_a_wave_has_the_peak_that_was_asked_for(peak: float) -> None:
    wave = slow_wave(peak)
    assert wave.mean() == pytest.approx(1)
    assert wave.max() == pytest.approx(peak, rel=0.01)
    assert peak == 1 or wave.argmax() == pytest.approx(len(wave) / 2, abs=1)


@pytest.mark.parametrize("peak", [1.5, 2.5, 4.0, 8.0])
def test_bursts_have_the_busiest_second_that_was_asked_for(peak: float) -> None:
    variation = burst_variation(peak)
    factors = np.random.default_rng(0).gamma(variation**-2, variation**2, (200, 3600))
    assert np.median(factors.max(axis=1)) == pytest.approx(peak, rel=0.15)
    assert burst_variation(1.0) == 0


def test_a_drawn_scenario_s_world_can_be_built() -> None:
    seed = 9
    one = drawn(seed)
    made = build(one, "rose-published", seed=seed, inputs=NOTHING)
    assert made.world.jobs[0].trajectories.output_tokens.size < 200_000
    assert len(made.world.workers) == sum(
        group.count // group.tp for group in (*one.dedicated, *one.borrowed)
    )
