"""A table of what a device lends against the machine that fills it: no work is lost, and means."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.slo import SLO
from rose_lab.sim import DeviceModel, Request, excess_misses, missed, simulate
from rose_lab.sim.cluster.lending import (
    PIECE_BINS,
    PIECES,
    RATES_RPS,
    Mix,
    Pieces,
    RequestLatencies,
    SimulatedLender,
    capacity_of,
    joined,
    rate_of,
    row,
    run,
)
from tests.lab.sim.traffic import DEVICE, SMALL_SLO, Record, traces

FEW = settings(max_examples=6, deadline=None)
SCHEMES = ("rose", "rose_paper", "static_split", "share_all")
# Steps and segments that are long enough for minutes to be simulated in a moment.
SLOW = DeviceModel(
    base_ms=12.0, layer_ms=2.0, layers_per_segment=18, batch_max=16, chunk_tokens=256
)
CHAT = Mix(tuple((100 + 97 * n % 900, 20 + 4 * n) for n in range(64)), 0.5)


def lender(scheme="rose", *, slowdown=0.0, device=SLOW, slo=SMALL_SLO, mix=CHAT) -> SimulatedLender:
    return SimulatedLender(device, scheme, dataclasses.replace(slo, slowdown=slowdown), mix)


ALONE = lender("alone", slo=SLO(ttft_ms=500, tpot_ms=50))


@pytest.mark.parametrize("scheme", SCHEMES)
@FEW
@given(requests=traces())
def test_the_work_that_is_lent_is_the_work_that_was_done(scheme, requests) -> None:
    bins = int(requests[-1].arrival_ms / 1000) + 2
    found = run(lender(scheme, device=DEVICE), requests, bins=bins)
    assert ((found.share >= 0) & (found.share <= 1)).all()
    record, name = Record(), "rose_idle" if scheme == "rose" else scheme
    simulate(requests, DEVICE, name, slo=SMALL_SLO, seed=0, observer=record, until_ms=1000.0 * bins)
    done_ms = sum(
        DEVICE.layer_ms * event.number for event in record.of("layers") if event.at_ns <= 1e9 * bins
    )
    # The piece that runs at the end is cut there.
    step_ms = DEVICE.layers * DEVICE.layer_ms + 1e-6
    assert 1000 * found.share.sum() == pytest.approx(done_ms, abs=step_ms)


@FEW
@given(requests=traces(), scheme=st.sampled_from(SCHEMES), noise=st.sampled_from([0.0, 0.3]))
def test_latencies_are_those_of_the_simulation(requests, scheme, noise) -> None:
    device = dataclasses.replace(DEVICE, noise=noise)
    found, alone = (
        run(lender(one, device=device), requests, bins=4).latencies for one in (scheme, "alone")
    )
    name = "rose_idle" if scheme == "rose" else scheme
    arm, without = (
        simulate(requests, device, one, slo=SMALL_SLO, seed=0) for one in (name, "alone")
    )
    inside = [n for n, one in enumerate(requests) if one.arrival_ms < 4000]
    assert found.ttft_ms.tolist() == [arm.requests[n].ttft_ms for n in inside]
    late = missed(arm, slo=SMALL_SLO)
    assert np.flatnonzero(found.is_late).tolist() == [n for n in inside if n in late]
    excess = excess_misses(arm, without, slo=SMALL_SLO)
    mine = np.flatnonzero(found.is_late & ~alone.is_late).tolist()
    assert mine == [n for n in inside if n in excess]


def test_the_memory_of_a_second_is_the_most_that_contexts_had_in_it() -> None:
    """A prompt of 300 tokens in three chunks, and an answer of two seconds."""
    record = Record()
    request = Request(250.0, 300, 450)
    simulate([request], DEVICE, "alone", slo=SMALL_SLO, seed=0, observer=record)
    found = run(lender("alone", device=DEVICE), [request], bins=4)
    held = [(0, 0), *((event.at_ns, event.number) for event in record.of("context"))]
    for second, most in enumerate(found.context):
        begins, ends = 1e9 * second, 1e9 * (second + 1)
        spans = pairwise([*held, (int(1e12), 0)])
        assert most == max(
            tokens for (at, tokens), (until, _) in spans if at < ends and until > begins
        )
    assert found.context.max() == 748
    assert found.context[-1] == 0
    ended_ms = record.of("finished")[0].at_ns / 1e6
    assert found.busy == pytest.approx((ended_ms - 250) / 4000)


@given(
    st.lists(st.tuples(st.floats(0.1, 9), st.integers(0, 5)), min_size=1, max_size=20),
    st.sampled_from([0.01, 0.5, 0.99]),
)
def test_a_quantile_of_weights_is_that_of_repeated_values(rows, share) -> None:
    values, weights = np.array(rows).T
    latencies = RequestLatencies(values, np.full(len(values), np.nan), values > 5, weights)
    every = np.repeat(values, weights.astype(int))
    found = latencies.quantile("ttft_ms", share)
    if len(every):
        assert found == np.quantile(every, share, method="inverted_cdf")
        assert latencies.late == pytest.approx((every > 5).mean())
    else:
        assert np.isnan(found)
        assert latencies.late == 0
    assert np.isnan(latencies.quantile("tpot_ms", share))
    both = joined([(latencies, 2.0), (latencies, 1.0)])
    assert both.weight.sum() == pytest.approx(3 * weights.sum())


def test_requests_of_a_mix_are_as_many_and_as_long_as_it_says() -> None:
    requests = CHAT.requests(np.full(50, 0.5), np.random.default_rng(0))
    assert len(requests) == 25
    arrivals = [one.arrival_ms for one in requests]
    assert arrivals == sorted(arrivals)
    assert 0 <= arrivals[0] <= arrivals[-1] <= 50_000
    every = np.mean([output for _, output in CHAT.lengths])
    assert np.mean([one.output_tokens for one in requests]) == pytest.approx(every, rel=0.02)
    rising = CHAT.requests(np.array([0.0] * 10 + [9.0] * 10), np.random.default_rng(0))
    assert (len(rising), min(one.arrival_ms for one in rising) >= 10_000) == (90, True)
    assert CHAT.requests(np.zeros(9), np.random.default_rng(0)) == []
    for lengths, variation in (((), 0.0), (((0, 4),), 0.0), (((1, 1),), -1.0)):
        with pytest.raises(InvalidArgument):
            Mix(lengths, variation)


def test_bursts_make_seconds_vary_as_much_as_was_asked() -> None:
    for variation in (0.0, 0.55, 1.5):
        mix = Mix(((1, 1),), variation)
        requests = mix.requests(np.full(2000, 20.0), np.random.default_rng(3))
        counts = np.bincount([int(one.arrival_ms // 1000) for one in requests], minlength=2000)
        assert counts.mean() == pytest.approx(20)
        assert counts.std() / 20 == pytest.approx((variation**2 + 1 / 20) ** 0.5, rel=0.06)


@pytest.mark.parametrize(
    ("scheme", "slowdown", "load"),
    [
        ("rose", 0.0, 0.6),
        ("rose", np.inf, 0.6),
        ("rose_paper", 0.0, 0.4),
    ],
)
def test_a_wave_lends_from_the_table_what_the_machine_lends(scheme, slowdown, load) -> None:
    """Within 0.05 of the device, over five minutes at 0.4 to 1.6 times the mean rate."""
    mine = lender(scheme, slowdown=slowdown, slo=ALONE.slo)
    wave = 1 + 0.6 * np.sin(np.arange(10) * 2 * np.pi / 10)
    rates = rate_of(ALONE, load) * wave
    requests = CHAT.requests(np.repeat(rates, PIECE_BINS), np.random.default_rng(8))
    exact = run(mine, requests, bins=10 * PIECE_BINS)
    pieces = Pieces.draw(rates, devices=40, shared=0.0, random=np.random.default_rng(1))
    share, context = pieces.columns(mine)
    assert share.shape == context.shape == (10 * PIECE_BINS, 40)
    assert share.mean() == pytest.approx(exact.share.mean(), abs=0.05)
    assert context.mean() == pytest.approx(exact.context.mean(), rel=0.25)
    latencies = pieces.latencies(mine)
    assert latencies.quantile("tpot_ms", 0.5) == pytest.approx(
        exact.latencies.quantile("tpot_ms", 0.5), rel=0.1
    )


def test_a_device_is_as_busy_as_was_asked_and_late_above_its_capacity() -> None:
    loads = (0.0, 0.2, 0.5)
    rates = [rate_of(ALONE, load) for load in loads]
    assert rates[0] == 0
    assert rates == sorted(set(rates))
    for rate, load in zip(rates[1:], loads[1:], strict=True):
        requests = CHAT.requests(np.full(300, rate), np.random.default_rng(5))
        assert run(ALONE, requests, bins=300).busy == pytest.approx(load, abs=0.08)
    strict = lender("alone", slo=SLO(ttft_ms=150, tpot_ms=50))
    most = capacity_of(strict, 0.1)
    late = [
        run(
            strict, CHAT.requests(np.full(200, rate), np.random.default_rng(5)), bins=200
        ).latencies.late
        for rate in (0.5 * most, 2 * most)
    ]
    assert late[0] < 0.1 < late[1]


def test_pieces_are_of_the_rates_around_and_bursts_reach_all_devices() -> None:
    rates = np.array([0.0, 0.005, 0.04, 0.03, 1e9])
    pieces = Pieces.draw(rates, devices=4000, shared=0.0, random=np.random.default_rng(0))
    assert set(pieces.points[0]) == {0}
    assert pieces.points[1].mean() == pytest.approx(0.5, abs=0.05)
    assert {RATES_RPS[point] for point in pieces.points[2]} == {0.04}
    assert {RATES_RPS[point] for point in pieces.points[3]} == {0.02, 0.04}
    assert set(pieces.points[4]) == {len(RATES_RPS) - 1}
    assert set(pieces.places.ravel()) == set(range(PIECES))
    same = Pieces.draw(rates, devices=9, shared=1.0, random=np.random.default_rng(0))
    assert (same.points == same.points[:, :1]).all()
    assert (same.places == same.places[:, :1]).all()


def test_rows_are_kept_and_meet_every_scheme_with_the_same_requests() -> None:
    one, other = row(ALONE, 4), row(lender("share_all", slo=ALONE.slo), 4)
    assert row(ALONE, 4) is one
    assert (
        len(one.latencies.ttft_ms)
        == len(other.latencies.ttft_ms)
        == round(0.08 * PIECES * PIECE_BINS)
    )
    assert (other.latencies.ttft_ms >= one.latencies.ttft_ms).all()
