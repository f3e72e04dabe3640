"""Whole devices come and go as serving needs them, and starting up takes its time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.sim import DeviceModel, Request
from rose.sim.cluster.lending_whole import WholeDevices, lend_whole
from rose.slo import SLO

RULE = WholeDevices(device_rps=1.0, spare=1, window_ms=1000.0, calm_windows=3)
TARGETS = SLO(ttft_ms=500, tpot_ms=50)


def at(lending, time_ms):
    row = np.searchsorted(lending.at_ms, time_ms, side="right") - 1
    return float(lending.share[row]), int(lending.kv_tokens[row])


def test_devices_go_after_a_calm_time_and_come_back_after_one_window() -> None:
    arrivals = np.array([100.0, 200.0, 300.0, 7100.0, 7200.0])
    serving = RULE.serving_devices(arrivals, devices=6, horizon_ms=12_000.0)
    # Three in the first window and a spare; nothing after that but two in the eighth.
    assert serving.tolist() == [6, 6, 6, 4, 1, 1, 1, 1, 3, 3, 3, 1]


def test_a_first_loan_starts_slowly_and_a_later_one_faster() -> None:
    serving = np.array([2] * 2 + [1] * 80 + [2] * 3 + [1] * 20)
    first, second = RULE.lendings(serving, devices=2, kv_tokens=7)
    assert first.share.tolist() == [0.0]
    # 56.3 + 11.1 s for a new worker; 6.3 s for one that is activated again; the end is at once.
    assert second.at_ms.tolist() == pytest.approx([0, 2000 + 67_400, 82_000, 85_000 + 6300])
    assert second.share.tolist() == [0, 1, 0, 1]
    assert second.kv_tokens.tolist() == [0, 7, 0, 7]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_a_device_is_lent_only_while_serving_does_not_have_it(serving) -> None:
    rule = WholeDevices(device_rps=1.0, window_ms=1000.0, first_ms=2500.0, again_ms=700.0)
    lendings = rule.lendings(np.array(serving), devices=4, kv_tokens=7)
    for number, lending in enumerate(lendings):
        assert (np.diff(lending.at_ms) > 0).all()
        had = 0
        for window, count in enumerate(serving):
            had = had + 1 if count <= number else 0
            for offset in (0.0, 699.0, 701.0, 999.0):
                share, tokens = at(lending, 1000.0 * window + offset)
                assert tokens == 7 * share
                # Nothing before a start-up of the shorter kind; all after one of the longer.
                least_ms = 1000.0 * (had - 1) + offset
                if had == 0 or least_ms < 700:
                    assert share == 0
                elif least_ms >= 2500:
                    assert share == 1


def test_serving_on_fewer_devices_feels_it_when_a_burst_comes() -> None:
    """Calm for ten seconds, then forty requests a second: one device has them at first."""
    calm = [Request(500.0 * n, 400, 30) for n in range(20)]
    burst = [Request(10_000.0 + 25 * n, 2000, 30) for n in range(80)]
    rule = WholeDevices(device_rps=4.0, spare=0, window_ms=1000.0, calm_windows=2)
    lendings, felt = lend_whole(
        [*calm, *burst], DeviceModel(), rule, devices=4, kv_tokens=9, slo=TARGETS,
        horizon_ms=14_000.0, seed=1,
    )  # fmt: skip
    assert len(lendings) == 4
    assert len(felt.ttft_ms) == 100
    assert felt.excess.sum() > 20
    assert not felt.excess[:20].any()
    # With a device for everybody there is nothing to feel.
    kept = WholeDevices(device_rps=0.01, window_ms=1000.0, calm_windows=2)
    none, unfelt = lend_whole(
        [*calm, *burst], DeviceModel(), kept, devices=4, kv_tokens=9, slo=TARGETS,
        horizon_ms=14_000.0, seed=1,
    )  # fmt: skip
    assert not unfelt.excess.any()
    assert all(lending.share.tolist() == [0.0] for lending in none)


def test_a_rule_without_a_meaning_is_refused() -> None:
    for bad in ({"device_rps": 0.0}, {"spare": -1}, {"window_ms": 0.0}, {"calm_windows": 0}):
        with pytest.raises(InvalidArgument, match="out of its range"):
            WholeDevices(**({"device_rps": 1.0} | bad))
    with pytest.raises(InvalidArgument, match="without requests"):
        lend_whole(
            [], DeviceModel(), RULE, devices=2, kv_tokens=9, slo=TARGETS, horizon_ms=10.0, seed=0
        )
