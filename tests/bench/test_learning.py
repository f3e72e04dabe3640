"""The statistics that judge the learning runs."""

import json
import math

import pytest

from bench.learning import (
    ARMS,
    MARGIN,
    Learning,
    area,
    equivalence,
    mean_within,
    p_above,
    read_runs,
    t_below,
    t_quantile,
)
from bench.learning_plot import draw_learning


@pytest.mark.parametrize(
    ("share", "freedom", "value"), [(0.95, 7, 1.8946), (0.975, 9, 2.2622), (0.99, 1, 31.8205)]
)
def test_quantiles_are_those_of_the_tables(share: float, freedom: int, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=5e-4)
    assert t_below(value, freedom) == pytest.approx(share, abs=1e-5)


def test_small_differences_with_little_noise_are_equivalent() -> None:
    noise = [0.01, -0.01, 0.005, -0.005, 0.0, 0.002, -0.002, 0.0]
    small = equivalence(noise)
    assert small.is_equivalent
    assert small.power > 0.99
    shifted = equivalence([MARGIN + one for one in noise])
    assert not shifted.is_equivalent
    assert shifted.power == pytest.approx(small.power)
    wide = equivalence([20 * one for one in noise])
    assert not wide.is_equivalent
    assert wide.power < 0.5
    assert equivalence([0.0] * 8).is_equivalent
    assert not equivalence([2 * MARGIN] * 8).is_equivalent


def test_a_gain_is_significant_if_it_is_far_above_its_noise() -> None:
    assert p_above([0.5, 0.6, 0.55, 0.52], 0.0) < 0.001
    assert p_above([0.5, -0.6, 0.55, -0.52], 0.0) > 0.2


def test_the_area_is_the_mean_height() -> None:
    assert area([0.0, 1.0]) == 0.5
    assert area([0.2, 0.4, 0.8]) == pytest.approx((0.1 + 0.4 + 0.4) / 2)


def run(seed: int, arm: str, curve: list[float]) -> dict[str, object]:
    met = True, arm == "dedicated", False
    ttft_ms = 10.0 if arm == "dedicated" else 11.0 + seed
    requests = [{"is_met": one, "ttft_ms": ttft_ms} for one in met]
    tokens = {"dedicated": 30, "borrowed": 0 if arm == "dedicated" else 70}
    return {
        "seed": seed,
        "arm": arm,
        "steps": 2,
        "curve": curve,
        "curve_s": [float(at) for at in range(len(curve))],
        "tokens_by_kind": tokens,
        "served": {"requests": requests},
    }


def runs(end: float) -> list[dict[str, object]]:
    return [
        run(seed, arm, [0.25, (0.25 + end) / 2 + 0.001 * (seed % 3) * place, end])
        for seed in range(8)
        for place, arm in enumerate(ARMS)
    ]


def test_a_curve_that_gains_too_little_or_saturates_proves_nothing() -> None:
    assert Learning(runs(1.0)).why_void() is None
    assert "gained" in str(Learning(runs(0.5)).why_void())
    saturated = [one | {"curve": [0.25, 1.0, 1.0, 1.0, 1.0, 1.0]} for one in runs(1.0)]
    assert "saturated" in str(Learning(saturated).why_void())


def test_only_seeds_with_all_arms_count_and_only_misses_that_serving_alone_met() -> None:
    learning = Learning(runs(1.0)[:-1])
    assert learning.seeds == list(range(7))
    assert learning.borrowed_share("chaos") == 0.7
    assert learning.excess_misses("borrowed") == 7
    assert learning.gain_p_value("chaos") < 0.01
    assert math.isclose(learning.equivalence("borrowed").mean, 0.0005, abs_tol=5e-4)


def test_latencies_are_ratios_to_serving_without_loans_with_their_interval() -> None:
    learning = Learning(runs(1.0))
    ratios = learning.latency_ratios("borrowed", "ttft_ms")
    assert ratios == [(11 + seed) / 10 for seed in range(8)]
    mean, (low, high) = mean_within(ratios)
    assert mean == pytest.approx(1.45)
    assert (low + high) / 2 == pytest.approx(mean)
    assert high - mean == pytest.approx(2.3646 * 0.244949 / 8**0.5, rel=1e-4)


def test_the_time_to_the_target_is_that_of_the_runs_that_reached_it() -> None:
    assert Learning(runs(1.0)).seconds_to_target("chaos") == [1.0] * 8
    slow = [one | {"curve": [0.25, 0.3, 0.5]} for one in runs(1.0)[:3]]
    assert len(Learning(slow + runs(1.0)[3:]).seconds_to_target("dedicated")) == 7


def test_the_figure_has_a_band_for_each_arm() -> None:
    svg = draw_learning(Learning(runs(1.0)))
    assert all(f">{arm}</text>" in svg for arm in ARMS)
    assert svg.count("FillBetweenPolyCollection") == len(ARMS)


def test_runs_are_those_of_one_commit(tmp_path) -> None:
    path = tmp_path / "runs.jsonl"
    assert read_runs(path) == []
    path.write_text("".join(json.dumps({"commit": one}) + "\n" for one in "aab"))
    assert len(read_runs(path)) == 1
    assert len(read_runs(path, "a")) == 2
