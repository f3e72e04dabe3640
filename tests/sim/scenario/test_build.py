"""A world is what its scenario says; arms of one seed differ in what the arm does alone."""

import dataclasses

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose.scheduler.settings import PlacementPolicy
from rose.scheduler.worker import WorkerKind
from rose.sim.cluster.simulate import simulate_cluster
from rose.sim.cluster.world import Lending
from rose.sim.scenario.arms import RULES, Arm
from rose.sim.scenario.build import Built, build, idle_trainer
from rose.sim.scenario.cost import Cost, cost_of, lent_ms, swept
from rose.sim.scenario.drawn import drawn
from rose.sim.scenario.loans import Serving, repeated, whole_gpus
from rose.sim.scenario.scenario import Scenario, scenario_from
from rose.sim.scenario.sessions import Sessions
from rose.sim.scenario.traffic import Inputs, burst_variation, slow_wave
from tests.sim.scenario.files import changed, content, scenario

NOTHING = Inputs()


@pytest.fixture(scope="module")
def small() -> Scenario:
    return scenario()


@pytest.fixture(scope="module")
def serving(small: Scenario) -> Serving:
    return Serving(small, seed=7, inputs=NOTHING)


def test_workers_are_the_scenario_s_gpus(small: Scenario, serving: Serving) -> None:
    made = build(small, Arm.ROSE, seed=7, inputs=NOTHING, serving=serving)
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


def test_arms_of_a_seed_differ_only_in_what_they_do(small: Scenario, serving: Serving) -> None:
    worlds = {arm: build(small, arm, seed=7, inputs=NOTHING, serving=serving).world for arm in Arm}
    rose = worlds[Arm.ROSE]
    for arm, world in worlds.items():
        one, other = rose.jobs[0].trajectories, world.jobs[0].trajectories
        assert one.said_tokens.tobytes() == other.said_tokens.tobytes()
        assert one.tool_ms.tobytes() == other.tool_ms.tobytes()
        assert world.policy is RULES[arm].policy
        assert world.settings == rose.settings
        assert world.workers[0].times == rose.workers[0].times
    assert len(worlds[Arm.FIXED].workers) == 4
    for arm in (Arm.LEAST_LOADED, Arm.MLFQ):
        for one, other in zip(rose.workers, worlds[arm].workers, strict=True):
            same = dataclasses.replace(other, lending=one.lending)
            assert same == one
            if one.lending is not None and other.lending is not None:
                assert one.lending.share.tobytes() == other.lending.share.tobytes()
    assert worlds[Arm.LEAST_LOADED].policy is PlacementPolicy.LEAST_LOADED_STICKY
    assert worlds[Arm.MLFQ].policy is PlacementPolicy.MLFQ
    assert worlds[Arm.ELASTIC].workers[-1].start_up_ms == 67_400
    assert worlds[Arm.ELASTIC].workers[-1].update_ms > 10 * rose.workers[-1].update_ms
    assert worlds[Arm.RESERVED].workers[-1].lending is not None
    assert set(worlds[Arm.RESERVED].workers[-1].lending.share.tolist()) == {0.25}
    assert worlds[Arm.PUBLISHED].workers[0].seats == 16


def test_another_seed_has_other_trajectories_and_other_traffic(small: Scenario) -> None:
    one, other, again = (
        build(small, Arm.ROSE, seed=seed, inputs=NOTHING).world for seed in (1, 2, 1)
    )
    for got, wanted in ((other, False), (again, True)):
        said = got.jobs[0].trajectories.said_tokens.tobytes()
        assert (said == one.jobs[0].trajectories.said_tokens.tobytes()) == wanted
        first, second = one.workers[-1].lending, got.workers[-1].lending
        assert first is not None
        assert second is not None
        assert (first.share.tobytes() == second.share.tobytes()) == wanted


def test_a_world_runs_and_costs_what_its_prices_say(small: Scenario, serving: Serving) -> None:
    made = build(small, Arm.ROSE, seed=7, inputs=NOTHING, serving=serving)
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
    made = build(one, Arm.FIXED, seed=7, inputs=NOTHING)
    outcome = simulate_cluster(made.world)
    assert int((outcome.jobs[0].used_by >= 0).sum()) == 192
    assert one.prices is not None
    assert cost_of(made, outcome, one.prices, trainer_gpus=4).trajectories == 64


def test_the_accept_rate_is_an_input_that_is_swept() -> None:
    cost = Cost(dedicated=6, trainer=3, borrowed=0.5, opportunity=0.5, trajectories=100)
    assert cost.per_trajectory == pytest.approx(0.1)
    assert swept(cost, (0.1, 0.5, 1)) == (
        (0.1, pytest.approx(1.0)),
        (0.5, pytest.approx(0.2)),
        (1, pytest.approx(0.1)),
    )
    nothing = dataclasses.replace(cost, trajectories=0)
    assert nothing.per_trajectory is None
    assert nothing.per_correct_answer(0.5) is None
    for rate in (0, 1.1, float("nan")):
        with pytest.raises(InvalidArgument, match="accept rate"):
            cost.per_correct_answer(rate)


def test_lent_time_is_the_integral_of_the_share() -> None:
    lending = Lending(np.array([0.0, 10, 30]), np.array([1.0, 0, 0.5]), np.array([1, 0, 1]))
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
    made = build(scenario_from(content_of), Arm.FIXED, seed=3, inputs=NOTHING)
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
        scenario_from({**content_of, "jobs": [exactly]}), Arm.FIXED, seed=3, inputs=NOTHING
    )
    assert job_of(tripled) == (96, 2, 64)


def test_grpo_keeps_everything() -> None:
    assert job_of(build(scenario(), Arm.FIXED, seed=3, inputs=NOTHING)) == (32, 2, 64)


def test_off_policy_jobs_have_what_they_begin_before_the_last_version() -> None:
    jobs = [{**content()["jobs"][0], "mode": "asynchronous", "max_staleness": 2}]
    assert job_of(build(scenario(jobs=jobs), Arm.FIXED, seed=3, inputs=NOTHING)) == (32, 7, 224)


def test_jobs_share_the_engines_out_in_turn_or_have_their_own() -> None:
    twins = [{**content()["jobs"][0], "name": name} for name in ("a", "b")]
    made = build(scenario(jobs=twins), Arm.ROSE, seed=3, inputs=NOTHING)
    assert [worker.job for worker in made.world.workers] == [0, 1] * 4
    own = [{**content()["dedicated"][0], "job": name} for name in ("b", "a")]
    made = build(scenario(jobs=twins, dedicated=own), Arm.FIXED, seed=3, inputs=NOTHING)
    assert [worker.job for worker in made.world.workers] == [1] * 4 + [0] * 4
    first, second = made.world.jobs
    assert first.trajectories.said_tokens.tobytes() != second.trajectories.said_tokens.tobytes()


def test_a_stalled_trainer_takes_longer() -> None:
    stress = [{"kind": "stalled-trainer", "factor": 3}]
    made = build(scenario(stress=stress), Arm.FIXED, seed=3, inputs=NOTHING)
    assert made.world.jobs[0].train_ms == 60_000


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^jobs\[0\]\.context_tokens: an engine of Qwen3-8B"):
        build(
            scenario_from(changed("jobs[0].context_tokens", 1 << 20)),
            Arm.FIXED,
            seed=0,
            inputs=NOTHING,
        )
    twins = [{**content()["jobs"][0], "name": name} for name in ("a", "b")]
    own = [{**content()["dedicated"][0], "job": "a"}]
    with pytest.raises(InvalidArgument, match=r"^dedicated: job b has no engine"):
        build(scenario(jobs=twins, dedicated=own), Arm.FIXED, seed=0, inputs=NOTHING)


def test_a_replayed_job_needs_its_trace_among_the_inputs() -> None:
    replayed = scenario_from(
        changed("jobs[0].environment", {"kind": "replayed", "trace": "agents.csv"})
    )
    with pytest.raises(InvalidArgument, match=r"agents\.csv was not read"):
        build(replayed, Arm.FIXED, seed=0, inputs=NOTHING)
    sessions = Sessions(np.array([0, 2]), np.array([5, 6]), np.array([7, 8]), np.array([1.0, 0]))
    made = build(replayed, Arm.FIXED, seed=0, inputs=Inputs(sessions={"agents.csv": sessions}))
    assert set(made.world.jobs[0].trajectories.said_tokens.tolist()) == {7, 8}


# --- loans ----------------------------------------------------------------------------------------


def test_the_exact_resolution_lends_about_what_the_fluid_does() -> None:
    group = {**content()["borrowed"][0], "count": 2}
    shares = []
    for resolution in ("exact", "fluid"):
        one = scenario(resolution=resolution, horizon_s=60, borrowed=[group])
        (loan,) = Serving(one, seed=3, inputs=NOTHING).loans(Arm.ROSE)
        assert len(loan.felt) == (2 if resolution == "exact" else 0)
        shares.append(lent_ms(loan.lendings[0], 60_000) / 60_000)
    assert shares[0] == pytest.approx(shares[1], abs=0.1)


def test_a_timeline_is_repeated_up_to_the_horizon() -> None:
    once = Lending(np.array([0.0, 40]), np.array([1.0, 0.5]), np.array([9, 3]))
    many = repeated(once, cycle_ms=100, horizon_ms=230)
    assert many.at_ms.tolist() == [0, 40, 100, 140, 200]
    assert many.share.tolist() == [1, 0.5, 1, 0.5, 1]
    assert many.kv_tokens.tolist() == [9, 3, 9, 3, 9]


def test_whole_gpus_are_lent_when_the_load_of_a_minute_leaves_them() -> None:
    """Three devices: two minutes of 0.2 busy each, one of 0.7, one of 0.2."""
    busy = np.repeat([0.2, 0.2, 0.7, 0.2], 60)[:, None] * np.ones(3)
    lendings = whole_gpus(busy, 5, bin_ms=1000, release_ms=3000)
    first, second, third = ([*zip(one.at_ms, one.share, strict=True)] for one in lendings)
    assert first == [(0, 0)]  # one is always kept
    assert second == third == [(0, 1), (117_000, 0), (180_000, 1)]
    assert set(lendings[1].kv_tokens.tolist()) == {0, 5}


def test_a_trainer_lends_while_it_waits() -> None:
    idle = idle_trainer(np.array([100.0, 200]), train_ms=30, release_ms=10, horizon_ms=300)
    assert idle.at_ms.tolist() == [0, 60, 100, 160, 200, 290]
    assert idle.share.tolist() == [1, 0, 1, 0, 1, 0]
    busy = idle_trainer(np.array([100.0, 200]), train_ms=100, release_ms=0, horizon_ms=200)
    assert busy.share.sum() == 0


def test_the_trainer_s_gpus_roll_out_while_it_waits(small: Scenario) -> None:
    idle = idle_trainer(np.array([60_000.0]), train_ms=20_000, release_ms=0, horizon_ms=600_000)
    made = build(small, Arm.TRAINING_GPUS, seed=3, inputs=NOTHING, trainer_idle=idle)
    assert len(made.world.workers) == 8
    assert [worker.kind for worker in made.world.workers[4:]] == [WorkerKind.BORROWED] * 4
    assert made.world.workers[-1].lending is not None
    assert made.world.workers[-1].lending.kv_tokens.max() == made.world.workers[0].kv_tokens
    outcome = simulate_cluster(made.world)
    assert outcome.tokens_by_worker[4:].sum() > 0


@pytest.mark.parametrize("load", [0.1, 0.5, 0.85])
def test_serving_alone_is_as_busy_as_the_scenario_says(load: float) -> None:
    calm = {"kind": "synthetic", "load": load, "minute_peak": 1, "second_peak": 1, "wave_s": 600}
    made = scenario_from({**changed("borrowed[0].traffic", calm), "horizon_s": 1800})
    (loan,) = Serving(made, seed=3, inputs=NOTHING).loans(Arm.PUBLISHED)
    fleet = Serving(made, seed=3, inputs=NOTHING)
    busy = fleet.busy_shares()
    assert busy == pytest.approx([load], abs=0.08)
    assert loan.ttft_ms.size > 0


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


@pytest.mark.parametrize("seed", [1, 9])
def test_a_drawn_scenario_s_world_can_be_built(seed: int) -> None:
    one = drawn(seed)
    made = build(one, Arm.ROSE, seed=seed, inputs=NOTHING)
    assert made.world.jobs[0].trajectories.said_tokens.size < 200_000
    assert len(made.world.workers) == sum(
        group.count // group.tp for group in (*one.dedicated, *one.borrowed)
    )
