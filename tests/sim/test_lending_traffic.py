"""Traffic of many devices: nothing is lost on its way, and bursts are as they were asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.sim import Request
from rose.sim.cluster.lending_traffic import (
    Envelope,
    FleetTraffic,
    Lengths,
    Routing,
    bursty,
    least_outstanding,
    route,
)

LENGTHS = Lengths(np.array([10, 200, 3000]), np.array([1, 20, 300]))
FLAT = Envelope(np.array([2.0]), 600e3)
services = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 99), st.integers(1, 99)), max_size=40
).map(lambda rows: [Request(float(at), prompt, out) for at, prompt, out in sorted(rows)])


@given(services, st.integers(1, 7), st.sampled_from(Routing))
def test_each_request_comes_to_one_device_in_order(service, devices, routing) -> None:
    traffic = route(service, devices=devices, routing=routing, request_ms=3.0, token_ms=0.5)
    fleet = [traffic.requests(device) for device in range(traffic.devices)]
    assert len(fleet) == devices
    assert sorted((one for own in fleet for one in own), key=repr) == sorted(service, key=repr)
    assert all(own == sorted(own, key=lambda one: one.arrival_ms) for own in fleet)


@given(services, st.lists(st.integers(1, 6), min_size=40, max_size=40))
def test_the_router_takes_the_device_with_the_fewest_outstanding(service, there) -> None:
    """A plain count over all requests before, each time."""
    stays = [0.5 * request.output_tokens for request in service]
    goes_to = least_outstanding(service, stays, there[: len(service)])
    for number, request in enumerate(service):
        outstanding = [
            sum(
                goes_to[before] == device
                and service[before].arrival_ms + stays[before] > request.arrival_ms
                for before in range(number)
            )
            for device in range(there[number])
        ]
        assert goes_to[number] == outstanding.index(min(outstanding))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 20))
def test_blocks_are_the_traffic_in_pieces_of_whole_devices(sizes, most) -> None:
    fleet = [
        [Request(float(at), 1 + device, 1) for at in range(n)] for device, n in enumerate(sizes)
    ]
    traffic = FleetTraffic.of(fleet)
    blocks = list(traffic.blocks(most))
    assert [block.requests(i) for block in blocks for i in range(block.devices)] == fleet
    for block in blocks:
        assert block.devices == 1 or len(block.arrival_ms) <= most


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1), st.sampled_from([0.0, 0.5, 2.0]))
def test_drawn_traffic_is_sound_and_the_same_for_one_seed(seed, shared, variation) -> None:
    one, other = (
        bursty(
            np.random.default_rng(seed), envelope=FLAT, lengths=LENGTHS, devices=3,
            duration_ms=10_500.0, variation=variation, shared=shared,
        )
        for _ in range(2)
    )  # fmt: skip
    assert (one.arrival_ms == other.arrival_ms).all()
    for device in range(3):
        arrivals = [request.arrival_ms for request in one.requests(device)]
        assert arrivals == sorted(arrivals)
        assert all(0 <= at <= 10_500.0 for at in arrivals)
    drawn = set(zip(one.prompt_tokens.tolist(), one.output_tokens.tolist(), strict=True))
    assert drawn <= {(10, 1), (200, 20), (3000, 300)}


def per_second(traffic, seconds):
    """Return (devices, seconds) of counts."""
    owner = np.arange(traffic.devices).repeat(np.diff(traffic.first))
    counts = np.zeros((traffic.devices, seconds))
    np.add.at(counts, (owner, (traffic.arrival_ms // 1000).astype(int)), 1)
    return counts


def test_a_second_varies_as_much_as_was_asked() -> None:
    rate, seconds = 50.0, 4000
    for variation in (0.0, 0.55, 1.5):
        traffic = bursty(
            np.random.default_rng(3), envelope=Envelope(np.array([rate]), 600e3), lengths=LENGTHS,
            devices=4, duration_ms=1e3 * seconds, variation=variation, shared=0.5,
        )  # fmt: skip
        counts = per_second(traffic, seconds)
        assert counts.mean() == pytest.approx(rate, rel=0.06)
        expected = (variation**2 + 1 / rate) ** 0.5
        assert counts.std() / counts.mean() == pytest.approx(expected, rel=0.06)
        together = np.corrcoef(counts)[0, 1]
        # Half of the factors' variance is shared.
        assert together == pytest.approx(0.5 * variation**2 / expected**2, abs=0.08)


def test_a_services_busiest_second_has_about_four_times_the_mean() -> None:
    traffic = bursty(
        np.random.default_rng(5), envelope=Envelope(np.array([5.0]), 600e3), lengths=LENGTHS,
        devices=20, duration_ms=3600e3, shared=1.0,
    )  # fmt: skip
    service = per_second(traffic, 3600).sum(axis=0)
    assert 3.2 < service.max() / service.mean() < 5.2


def test_the_envelope_goes_round() -> None:
    envelope = Envelope(np.array([1.0, 2.0, 3.0]), 10.0)
    times = np.array([0.0, 9.9, 10.0, 29.9, 30.0, 45.0])
    assert envelope.at(times).tolist() == [1, 1, 2, 3, 1, 2]
    quiet = Envelope(np.array([0.0, 5.0]), 10_000.0)
    traffic = bursty(
        np.random.default_rng(0), envelope=quiet, lengths=LENGTHS, devices=2,
        duration_ms=20_000.0, from_ms=10_000.0,
    )  # fmt: skip
    assert len(traffic.arrival_ms) > 0
    assert traffic.arrival_ms.max() < 10_000.0


def test_what_cannot_be_is_refused() -> None:
    good = {"envelope": FLAT, "lengths": LENGTHS, "devices": 1, "duration_ms": 1.0}
    for bad in (
        {"devices": 0}, {"duration_ms": 0.0}, {"variation": -1.0}, {"burst_ms": 0.0},
        {"shared": 1.5}, {"from_ms": -1.0},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="no traffic of"):
            bursty(np.random.default_rng(0), **(good | bad))
    for make in (
        lambda: Envelope(np.array([]), 1.0),
        lambda: Envelope(np.array([-1.0]), 1.0),
        lambda: Lengths(np.array([], dtype=np.int64), np.array([], dtype=np.int64)),
        lambda: Lengths(np.array([0]), np.array([1])),
        lambda: route([Request(0.0, 1, 1)], devices=0, routing=Routing.ROUND_ROBIN),
        lambda: route([Request(0.0, 1, 1)], devices=0, routing=Routing.LEAST_OUTSTANDING),
    ):
        with pytest.raises(InvalidArgument):
            make()
