"""The fluid against the machine: the same columns within 5 %, at any load, at a small cost."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.sim import DeviceModel, Request, simulate
from rose.sim.cluster.lending import LendingArm, lend_exactly, lending_arms
from rose.sim.cluster.lending_columns import means
from rose.sim.cluster.lending_fluid import lend_as_fluid
from rose.sim.cluster.lending_kv import KvPool, ReservedKv, RoseKv
from rose.sim.cluster.lending_modes import FLUID_SCHEMES
from rose.sim.cluster.lending_traffic import Envelope, FleetTraffic, Lengths, bursty
from rose.slo import SLO

DEVICE = DeviceModel()
TARGETS = SLO(ttft_ms=500, tpot_ms=50)
# About a third of the pool is serving's at the highest load.
POOL = KvPool(slabs=300, serving_tokens=208, rollout_tokens=80)
ARMS = lending_arms(rl_step_ms=10_000)
# Requests per second at which serving alone has a request for 0.2, 0.5 and 0.8 of the time.
RATES = {0.2: 0.3, 0.5: 0.9, 0.8: 2.0}
HORIZON_MS = 20_000.0
NEAR = 0.05


def like_chat(devices, rate_rps, seed, *, variation=0.55):
    """Return traffic with the quartiles of the public chat trace, in bursts."""
    random = np.random.default_rng(seed)
    lengths = Lengths(
        np.clip(random.lognormal(6.6, 1.0, 500), 10, 4000).astype(np.int64),
        np.clip(random.lognormal(5.0, 0.9, 500), 2, 700).astype(np.int64),
    )
    return bursty(
        random, envelope=Envelope(np.array([rate_rps]), 600e3), lengths=lengths,
        devices=devices, duration_ms=HORIZON_MS, variation=variation,
    )  # fmt: skip


def both(traffic, arm, *, device=DEVICE):
    """Return the means over devices, (share, lent tokens), exactly and as a fluid."""
    exact = [
        lend_exactly(
            traffic.requests(number), device, arm, pool=POOL, slo=TARGETS,
            horizon_ms=HORIZON_MS, seed=number,
        )[0]
        for number in range(traffic.devices)
    ]  # fmt: skip
    fluid = lend_as_fluid(
        traffic, device, arm.scheme, kv=arm.kv, pool=POOL, slo=TARGETS, horizon_ms=HORIZON_MS
    )
    mean = [
        np.mean([means(one, horizon_ms=HORIZON_MS) for one in lendings], axis=0)
        for lendings in (exact, [fluid.lending(i) for i in range(traffic.devices)])
    ]
    return mean[0], mean[1]


@pytest.mark.slow
@pytest.mark.parametrize("busy", RATES)
@pytest.mark.parametrize("name", ARMS)
def test_eight_devices_lend_as_much_as_a_fluid_as_exactly(name, busy) -> None:
    device = dataclasses.replace(DEVICE, noise=0.05)
    exact, fluid = both(like_chat(8, RATES[busy], seed=11), ARMS[name], device=device)
    assert fluid == pytest.approx(exact, rel=NEAR)


@pytest.mark.parametrize("name", ["rose_idle", "rose", "rose_slack", "rose_published", "share_all"])
def test_two_devices_lend_as_much_as_a_fluid_as_exactly(name) -> None:
    exact, fluid = both(like_chat(2, 1.5, seed=5), ARMS[name])
    # As a fluid, steps with a part of a prompt earn no budget.
    assert fluid == pytest.approx(exact, rel=0.03 if name == "rose" else 0.015)


def test_noise_costs_the_margin_that_certificates_have() -> None:
    device = dataclasses.replace(DEVICE, noise=0.2)
    exact, fluid = both(like_chat(2, 1.5, seed=6), ARMS["rose_slack"], device=device)
    assert fluid == pytest.approx(exact, rel=NEAR)


def test_a_full_batch_makes_requests_wait() -> None:
    """At four seats and a burst of twenty, waiting is most of a request's life."""
    device = DeviceModel(batch_max=4)
    requests = [Request(100.0 + 5 * n, 300, 200) for n in range(20)]
    alone = simulate(requests, device, "alone", slo=TARGETS, seed=0)
    fluid = lend_as_fluid(
        FleetTraffic.of([requests]), device, "alone", kv=RoseKv(), pool=POOL, slo=TARGETS,
        horizon_ms=HORIZON_MS,
    )  # fmt: skip
    waits = np.array([one.ttft_ms for one in alone.requests])
    assert waits.max() > 10 * waits.min()
    assert fluid.ttft_ms.mean() == pytest.approx(waits.mean(), rel=0.05)
    assert fluid.ttft_ms.max() == pytest.approx(waits.max(), rel=0.05)


def test_serving_alone_is_as_fast_as_a_fluid() -> None:
    traffic = like_chat(3, 1.5, seed=8)
    fluid = lend_as_fluid(
        traffic, DEVICE, "alone", kv=RoseKv(), pool=POOL, slo=TARGETS, horizon_ms=HORIZON_MS
    )
    served = [
        one
        for number in range(3)
        for one in simulate(traffic.requests(number), DEVICE, "alone", slo=TARGETS, seed=0).requests
    ]
    ttft = np.mean([one.ttft_ms for one in served])
    tpot = np.mean([one.mean_tpot_ms for one in served])
    assert fluid.ttft_ms.mean() == pytest.approx(ttft, rel=0.03)
    assert fluid.mean_tpot_ms.mean() == pytest.approx(tpot, rel=0.03)


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    scheme=st.sampled_from(FLUID_SCHEMES),
    seed=st.integers(0, 1000),
)
def test_a_device_lends_the_same_whoever_is_beside_it(sizes, scheme, seed) -> None:
    random = np.random.default_rng(seed)
    fleet = [
        [
            Request(at, int(random.integers(1, 3000)), int(random.integers(1, 400)))
            for at in sorted(random.uniform(0, 5000, size).tolist())
        ]
        for size in sizes
    ]

    def lend(devices):
        return lend_as_fluid(
            FleetTraffic.of(devices), DEVICE, scheme, kv=RoseKv(), pool=POOL, slo=TARGETS,
            horizon_ms=5500.0,
        )  # fmt: skip

    together = lend(fleet)
    assert together.share.shape == together.kv_tokens.shape == (6, len(fleet))
    assert ((together.share >= 0) & (together.share <= 1)).all()
    assert (together.ttft_ms > 0).all()
    first = 0
    for device, requests in enumerate(fleet):
        alone = lend([requests])
        # Where the last digits decide whether something fits, a bin differs by what it was.
        assert together.share[:, device] == pytest.approx(alone.share[:, 0], abs=1e-2)
        assert together.busy[:, device] == pytest.approx(alone.busy[:, 0], abs=5e-3)
        assert together.kv_tokens[:, device] == pytest.approx(alone.kv_tokens[:, 0], abs=160)
        rows = slice(first, first + len(requests))
        assert together.ttft_ms[rows] == pytest.approx(alone.ttft_ms, rel=0.02)
        first += len(requests)


@pytest.mark.parametrize("scheme", FLUID_SCHEMES)
def test_a_device_without_requests_lends_what_is_idle(scheme) -> None:
    arm = LendingArm(scheme, ReservedKv(0.5))
    fluid = lend_as_fluid(
        FleetTraffic.of([[], [Request(1500.0, 10, 2)], []]), DEVICE, scheme, kv=arm.kv, pool=POOL,
        slo=TARGETS, horizon_ms=4000.0,
    )  # fmt: skip
    exact, _ = lend_exactly(
        [Request(3999.0, 1, 1)], DEVICE, arm, pool=POOL, slo=TARGETS, horizon_ms=4000.0, seed=0
    )
    assert (fluid.busy[:, [0, 2]] == 0).all()
    # A probe more or less in one second is one part in sixty.
    assert fluid.share[:, 0] == pytest.approx(exact.share[exact.at_ms <= 0][-1], abs=0.02)
    assert fluid.share[:, 0] == pytest.approx(fluid.share[:, 2])
    assert set(fluid.kv_tokens.ravel().tolist()) == {150 * 80}
    assert fluid.lending(1).at_ms[0] == 0


def test_what_has_no_fluid_is_refused() -> None:
    def lend(scheme, at_ms):
        lend_as_fluid(
            FleetTraffic.of([[Request(at_ms, 1, 1)]]), DEVICE, scheme, kv=RoseKv(), pool=POOL,
            slo=TARGETS, horizon_ms=10.0,
        )  # fmt: skip

    with pytest.raises(InvalidArgument, match="'clairvoyant' is not known as a fluid"):
        lend("clairvoyant", 1.0)
    with pytest.raises(InvalidArgument, match="after the horizon"):
        lend("rose_idle", 11.0)
