"""Figures of a study are sums of what was simulated, and factors are those of a plain reference."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lab.suites.burst import burst_of
from rose.scheduler.worker import WorkerKind
from rose_lab.sim.scenario.scenario import Scenario, scenario_from
from rose_lab.sim.scenario.traffic import Inputs
from rose_lab.sim.study.figures import ArmFigures
from rose_lab.sim.study.paired import factor_of, rollout_time_under, throughput_over
from rose_lab.sim.study.run import ArmRun, study
from rose_lab.sim.study.validation import ERROR_MAX, PUBLISHED, validations
from tests.lab.sim.scenario.files import content

NOTHING = Inputs()
ARMS = ["rose", "resource-fixed", "elastic", "training-gpus"]


def scenario(**fields: object) -> Scenario:
    return scenario_from({**content(), "arms": ARMS, "seeds": [3, 4], "horizon_s": 300, **fields})


@pytest.fixture(scope="module")
def runs() -> Sequence[ArmRun]:
    return list(study(scenario(), NOTHING))


def figures_like(
    arm: str, seed: int, rate: float, rollout_s: float, like: ArmFigures
) -> ArmFigures:
    return replace(like, arm=arm, seed=seed, throughput_per_hour=rate, rollout_s=(rollout_s,))


def test_what_was_used_is_the_sum_over_the_versions(runs: Sequence[ArmRun]) -> None:
    for one in runs:
        (job,) = one.outcome.jobs
        by_version = [int((job.used_by == 1 + at).sum()) for at in range(one.figures.versions)]
        assert one.figures.used == sum(by_version) == 64
        hours = one.outcome.ended_ms / 3_600_000
        assert one.figures.throughput_per_hour == pytest.approx(64 / hours)
        assert one.figures.ended_s == pytest.approx(job.published_ms[-1] / 1000)
        assert len(one.figures.rollout_s) == one.figures.versions == 2
        assert one.figures.rollout_mean_s == pytest.approx(job.rollout_ms.mean() / 1000)


def test_tokens_by_kind_are_the_whole_output(runs: Sequence[ArmRun]) -> None:
    for one in runs:
        kinds = [worker.kind for worker in one.built.world.workers]
        by_kind = dict.fromkeys(WorkerKind, 0)
        for kind, tokens in zip(kinds, one.outcome.tokens_by_worker, strict=True):
            by_kind[kind] += int(tokens)
        assert one.figures.tokens_dedicated == by_kind[WorkerKind.DEDICATED]
        assert one.figures.tokens_borrowed == by_kind[WorkerKind.BORROWED]
        (job,) = one.outcome.jobs
        total = one.figures.tokens_dedicated + one.figures.tokens_borrowed
        assert total == job.tokens_delivered > 0


def test_only_what_is_lent_is_borrowed(runs: Sequence[ArmRun]) -> None:
    for one in runs:
        mine = one.figures
        if one.built.arm == "resource-fixed":
            assert (mine.tokens_borrowed, mine.borrowed_busy, mine.served) == (0, 0.0, None)
        if one.built.arm == "rose":
            assert mine.tokens_borrowed > 0
            assert 0 < mine.borrowed_busy < 1
            assert mine.served is not None
            assert 0 <= mine.served.late <= 1
        assert mine.gap >= 1


def geometric_mean(ratios: Sequence[float]) -> float:
    product = 1.0
    for ratio in ratios:
        product *= ratio ** (1 / len(ratios))
    return product


@given(st.lists(st.floats(0.05, 20.0), min_size=1, max_size=12))
def test_a_factor_is_the_geometric_mean_and_within_its_interval(ratios: list[float]) -> None:
    factor = factor_of(ratios)
    assert factor is not None
    assert factor.factor == pytest.approx(geometric_mean(ratios))
    if len(ratios) == 1:
        assert factor.low is factor.high is None
        return
    assert factor.low is not None
    assert factor.high is not None
    assert factor.low <= factor.factor * (1 + 1e-9)
    assert factor.high >= factor.factor * (1 - 1e-9)
    if len(set(ratios)) == 1:
        assert (factor.low, factor.high) == pytest.approx((factor.factor, factor.factor))


@pytest.mark.parametrize("seeds", [3, 8])
def test_an_interval_holds_the_truth_as_often_as_it_says(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    drawn = np.exp(rng.normal(math.log(1.3), 0.1, (2000, seeds)))
    hits = 0
    for ratios in drawn:
        factor = factor_of(list(ratios))
        assert factor is not None
        assert factor.low is not None
        assert factor.high is not None
        hits += factor.low <= 1.3 <= factor.high
    assert hits / len(drawn) == pytest.approx(0.95, abs=0.02)


def test_ratios_are_within_seeds_and_only_of_those_that_both_have(runs: Sequence[ArmRun]) -> None:
    like = runs[0].figures
    figures = [
        figures_like("rose", 1, 20.0, 5.0, like),
        figures_like("rose", 2, 30.0, 4.0, like),
        figures_like("rose", 9, 99.0, 1.0, like),
        figures_like("elastic", 2, 10.0, 8.0, like),
        figures_like("elastic", 1, 10.0, 5.0, like),
        figures_like("elastic", 8, 1.0, 90.0, like),
    ]
    over = throughput_over(figures, "rose", "elastic")
    under = rollout_time_under(figures, "rose", "elastic")
    assert over is not None
    assert under is not None
    assert over.ratios == (2.0, 3.0)
    assert over.factor == pytest.approx(math.sqrt(6))
    assert under.ratios == (1.0, 2.0)


def test_an_arm_without_throughput_gives_no_ratio(runs: Sequence[ArmRun]) -> None:
    like = runs[0].figures
    figures = [
        figures_like("rose", 1, 20.0, 5.0, like),
        replace(figures_like("elastic", 1, 0.0, 5.0, like), rollout_s=()),
    ]
    assert throughput_over(figures, "rose", "elastic") is None
    assert rollout_time_under(figures, "rose", "elastic") is None


def test_a_subject_without_throughput_has_a_factor_of_zero(runs: Sequence[ArmRun]) -> None:
    like = runs[0].figures
    figures = [
        figures_like("rose", 1, 0.0, 5.0, like),
        figures_like("rose", 2, 150.0, 5.0, like),
        figures_like("elastic", 1, 100.0, 5.0, like),
        figures_like("elastic", 2, 100.0, 5.0, like),
    ]
    factor = throughput_over(figures, "rose", "elastic")
    assert factor is not None
    assert (factor.factor, factor.low, factor.left_out) == (0.0, None, 0)


def test_a_burst_is_over_before_the_scheduler_s_bound() -> None:
    hit = scenario(
        seeds=[1], arms=["rose"], stress=[{"kind": "revoke-all", "at_s": 5, "for_s": 60}]
    )
    (one,) = study(hit, NOTHING)
    burst = burst_of(hit, one.built.world)
    assert 0 < burst.recovery_s <= burst.bound_s
    assert burst.recovery_s == pytest.approx(one.figures.recovery_s)


def test_a_burst_that_hits_no_turn_has_no_part_in_what_is_revoked_after_it() -> None:
    # All turns of the first version are over at 33 s, and the trainer learns until 53 s.
    flapping = {"kind": "flapping", "lent_s": 60, "away_s": 10}
    quiet = scenario(
        seeds=[1], arms=["rose"], stress=[{"kind": "revoke-all", "at_s": 40, "for_s": 2}, flapping]
    )
    (one,) = study(quiet, NOTHING)
    (job,) = one.outcome.jobs
    (rollout_s, _) = one.figures.rollout_s
    assert rollout_s < 40 < job.published_ms[0] / 1000
    assert one.figures.recovery_s > 0
    assert burst_of(quiet, one.built.world).recovery_s == 0


@pytest.mark.parametrize("size", ["8b", "32b"])
def test_table_1_is_the_same_wherever_it_is_shown(size: str, runs: Sequence[ArmRun]) -> None:
    name = f"paper-table1-{size}"
    seconds = {"rose-published": 10.0, "share-all": 12.0, "reserved-share": 15.0}
    figures = [figures_like(arm, 1, 1.0, s, runs[0].figures) for arm, s in seconds.items()]
    beside = PUBLISHED[name].rollout_time_under
    found = validations({name: figures})
    assert [one.predicted for one in found] == pytest.approx([1.2, 1.5])
    assert [one.published for one in found] == [beside["share-all"], beside["reserved-share"]]


def test_what_was_published_is_compared_and_a_large_error_warns(runs: Sequence[ArmRun]) -> None:
    like = runs[0].figures
    sixteen, more = (
        [figures_like("resource-fixed", 1, 1.0, rollout_s, like)] for rollout_s in (100.0, 80.0)
    )
    name = "pearl-scaling, dedicated[0].count"
    (close,) = validations({f"{name} 16": sixteen, f"{name} 24": more})
    assert close.predicted == pytest.approx(0.8)
    assert close.error == pytest.approx(0.8 / 0.897 - 1)
    assert abs(close.error) < ERROR_MAX
    assert close.warning is None
    half = [figures_like("resource-fixed", 1, 1.0, 50.0, like)]
    (far,) = validations({f"{name} 16": sixteen, f"{name} 24": half})
    assert far.warning is not None
    assert "44 % below the published value" in far.warning
    assert validations({"small": sixteen}) == ()
