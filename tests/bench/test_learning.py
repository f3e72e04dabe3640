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
    p_above,
    read_runs,
    t_below,
    t_quantile,
)


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


def run(seed: int, arm: str, curve: list[float], **changed: object) -> dict[str, object]:
    requests = [{"is_met": True}, {"is_met": arm == "dedicated"}, {"is_met": False}]
    tokens = {"dedicated": 30, "borrowed": 0 if arm == "dedicated" else 70}
    served = {"requests": requests}
    return {"seed": seed, "arm": arm, "curve": curve, "tokens_by_kind": tokens, "served": served}


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


def test_runs_are_those_of_one_commit(tmp_path) -> None:
    path = tmp_path / "runs.jsonl"
    assert read_runs(path) == []
    path.write_text("".join(json.dumps({"commit": one}) + "\n" for one in "aab"))
    assert len(read_runs(path)) == 1
    assert len(read_runs(path, "a")) == 2
