"""What is lent exactly is what the machine did: no work is lost, and memory follows contexts."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.sim import Request, excess_misses, missed, simulate
from rose.sim.cluster.lending import LendingArm, lend_exactly, lending_arms
from rose.sim.cluster.lending_columns import joined, mean_share, means, peak_context
from rose.sim.cluster.lending_kv import KvPool, ReservedKv, RoseKv
from tests.sim.traffic import DEVICE, SMALL_SLO, Record, traces

POOL = KvPool(slabs=40, serving_tokens=16, rollout_tokens=10)
ARMS = lending_arms(rl_step_ms=1000.0)
FEW = settings(max_examples=10, deadline=None)


def lend(requests, arm, *, device=DEVICE, slo=SMALL_SLO, seed=3, **options):
    horizon_ms = options.pop("horizon_ms", requests[-1].arrival_ms + 400.0)
    lending, felt = lend_exactly(
        requests, device, arm, pool=POOL, slo=slo, horizon_ms=horizon_ms, seed=seed, **options
    )
    return lending, felt, horizon_ms


@pytest.mark.parametrize("name", ARMS)
@FEW
@given(requests=traces())
def test_the_work_that_is_lent_is_the_work_that_was_done(name, requests) -> None:
    lending, _, horizon_ms = lend(requests, ARMS[name])
    assert lending.at_ms[0] == 0
    assert (np.diff(lending.at_ms) > 0).all()
    assert lending.at_ms[-1] < horizon_ms
    assert ((lending.share >= 0) & (lending.share <= 1)).all()
    assert ((lending.kv_tokens >= 0) & (lending.kv_tokens <= 400)).all()
    # Segments that ended before the horizon, from another run.
    record, scheme = Record(), ARMS[name].scheme
    simulate(requests, DEVICE, scheme, slo=SMALL_SLO, seed=3, observer=record, until_ms=horizon_ms)
    done_ms = sum(
        DEVICE.layer_ms * event.number
        for event in record.of("layers")
        if event.at_ns <= 1e6 * horizon_ms
    )
    share, _ = means(lending, horizon_ms=horizon_ms)
    # The piece that runs at the horizon is cut there.
    assert share * horizon_ms == pytest.approx(done_ms, abs=DEVICE.layers * DEVICE.layer_ms + 1e-6)


@FEW
@given(requests=traces(), bin_ms=st.sampled_from([7.0, 100.0, 1e6]))
def test_bins_keep_the_work(requests, bin_ms) -> None:
    """So a coarse timeline harvests what the exact one does."""
    exact, _, horizon_ms = lend(requests, ARMS["rose_slack"])
    coarse, _, _ = lend(requests, ARMS["rose_slack"], share_bin_ms=bin_ms)
    one, other = (means(lending, horizon_ms=horizon_ms) for lending in (exact, coarse))
    assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    assert set(coarse.at_ms.tolist()) <= {
        step * length for length in (bin_ms, 100.0) for step in range(int(1e5 / length) + 1)
    }


@FEW
@given(requests=traces(), name=st.sampled_from(sorted(ARMS)), noise=st.sampled_from([0.0, 0.3]))
def test_serving_felt_what_the_simulation_says(requests, name, noise) -> None:
    device = dataclasses.replace(DEVICE, noise=noise)
    _, felt, _ = lend(requests, ARMS[name], device=device)
    arm, alone = (
        simulate(requests, device, scheme, slo=SMALL_SLO, seed=3)
        for scheme in (ARMS[name].scheme, "alone")
    )
    assert felt.ttft_ms.tolist() == [one.ttft_ms for one in arm.requests]
    assert felt.longest_gap_ms.tolist() == [one.longest_gap_ms for one in arm.requests]
    assert felt.mean_tpot_ms.tolist() == [one.mean_tpot_ms for one in arm.requests]
    assert set(np.flatnonzero(felt.missed)) == missed(arm, slo=SMALL_SLO)
    assert set(np.flatnonzero(felt.excess)) == excess_misses(arm, alone, slo=SMALL_SLO)


def test_each_quantum_is_a_row() -> None:
    """One request: rollouts run until it arrives, and again once it is done."""
    lending, _, _ = lend([Request(100.0, 50, 5)], ARMS["rose_idle"])
    lent = [
        (begin, end)
        for (begin, share), (end, _) in pairwise(zip(lending.at_ms, lending.share, strict=True))
        if share > 0
    ]
    segment_ms = DEVICE.layers_per_segment * DEVICE.layer_ms + DEVICE.gate_ms
    # What runs at the arrival runs out.
    assert 100.0 <= max(end for _, end in lent if end < 110) <= 100.0 + segment_ms
    assert lending.share.max() == pytest.approx(1 - DEVICE.gate_ms / segment_ms, rel=1e-3)
    (silent,) = [
        begin - end
        for (_, end), (begin, _) in pairwise(lent)
        if 100.0 <= end <= 100.0 + segment_ms and begin > end
    ]
    assert 20 < silent < 50


def test_memory_follows_the_contexts_of_serving() -> None:
    """A prompt of 100 tokens is 7 slabs of 16; with its answer of 60 it is 10."""
    request = Request(250.0, 100, 61)
    kv = RoseKv(reserve_share=0.1, regrow_after_ms=300.0)
    lending, _, _ = lend([request], LendingArm("alone", kv), horizon_ms=1500.0, kv_bin_ms=50.0)
    assert lending.share.tolist() == [0.0] * len(lending.share)
    slabs = (40 - 4 - lending.kv_tokens / POOL.rollout_tokens).astype(int)
    assert slabs[0] == 0
    assert slabs.max() == 10
    peak = int(slabs.argmax())
    assert list(slabs[: peak + 1]) == sorted(slabs[: peak + 1])
    # All of it comes back together, when it has been free for as long as that takes.
    ended_ms = 250.0 + 0.5 + (4 + 0.023 * 100) + 60 * 4.02
    (back_ms,) = lending.at_ms[peak + 1 :]
    assert slabs[-1] == 0
    assert ended_ms + 300 <= back_ms <= ended_ms + 300 + 2 * 50


def test_a_prompt_takes_memory_chunk_by_chunk_and_an_answer_token_by_token() -> None:
    record = Record()
    request = Request(0.0, 300, 4)
    simulate([request], DEVICE, "alone", slo=SMALL_SLO, seed=0, observer=record)
    assert [event.number for event in record.of("context")] == [128, 256, 300, 301, 302, 0]


@FEW
@given(requests=traces())
def test_a_context_in_the_pool_is_a_prompt_and_what_was_said(requests) -> None:
    record = Record()
    simulate(requests, DEVICE, "alone", slo=SMALL_SLO, seed=0, observer=record)
    live, at_most = 0, []
    for event in record.of("context", "arrived", "finished"):
        if event.what == "context":
            at_most.append((event.number, live))
        else:
            one = requests[event.number]
            tokens = one.prompt_tokens + one.output_tokens - 1
            live += tokens if event.what == "arrived" else -tokens
    assert all(0 <= context <= most for context, most in at_most)
    assert at_most[-1][0] == 0


@given(
    st.lists(st.tuples(st.floats(0.5, 40), st.floats(0, 1)), min_size=1, max_size=12),
    st.floats(1, 60),
)
def test_columns_are_put_into_bins_as_a_plain_sum_does(rows, bin_ms) -> None:
    ends = np.cumsum([span for span, _ in rows])
    at_ms, share = np.concatenate(([0.0], ends[:-1])), np.array([one for _, one in rows])
    horizon_ms = float(ends[-1])
    times, mean = mean_share(at_ms, share, bin_ms=bin_ms, horizon_ms=horizon_ms)
    peaks = peak_context(at_ms, share, bin_ms=bin_ms, horizon_ms=horizon_ms)
    for begin, got, peak in zip(times, mean, peaks, strict=True):
        end = min(begin + bin_ms, horizon_ms)
        over = np.minimum(ends, end) - np.maximum(at_ms, begin)
        assert got == pytest.approx((share * np.maximum(over, 0)).sum() / (end - begin), abs=1e-6)
        assert peak == share[(at_ms < end) & (ends > begin)].max()


def test_columns_join_at_every_change_and_nowhere_else() -> None:
    lending = joined(
        np.array([0.0, 5.0, 9.0]), np.array([0.5, 0.5, 1.0]), horizon_ms=20.0,
        kv_at_ms=np.array([0.0, 7.0, 9.0, 20.0]), kv_tokens=np.array([3, 4, 4, 9]),
    )  # fmt: skip
    assert lending.at_ms.tolist() == [0.0, 7.0, 9.0]
    assert lending.share.tolist() == [0.5, 0.5, 1.0]
    assert lending.kv_tokens.tolist() == [3, 4, 4]


def test_what_is_reserved_is_constant_and_sharing_all_lends_all() -> None:
    requests = [Request(20.0 * n, 60, 8) for n in range(20)]
    reserved, _, horizon_ms = lend(requests, ARMS["reserved"])
    assert means(reserved, horizon_ms=horizon_ms)[0] == pytest.approx(DEVICE.split_share, rel=0.05)
    assert set(reserved.kv_tokens.tolist()) == {100}
    every, _, _ = lend(requests, ARMS["share_all"])
    assert set(every.kv_tokens.tolist()) == {400}
    assert every.share.min() > 0.4


def test_requests_belong_into_the_timeline() -> None:
    for requests in ([], [Request(500.0, 1, 1)]):
        with pytest.raises(InvalidArgument, match="needs requests, all of them in it"):
            lend_exactly(
                requests, DEVICE, LendingArm("alone", ReservedKv(1.0)), pool=POOL,
                slo=SMALL_SLO, horizon_ms=400.0, seed=0,
            )  # fmt: skip


@pytest.mark.parametrize(("bin_ms", "horizon_ms"), [(38.9, 272.3), (17.4, 522.0)])
def test_no_bin_is_empty_where_bins_divide_the_horizon_but_for_rounding(
    bin_ms: float, horizon_ms: float
) -> None:
    at_ms, share = np.array([0.0]), np.array([0.5])
    times, mean = mean_share(at_ms, share, bin_ms=bin_ms, horizon_ms=horizon_ms)
    assert times[-1] < horizon_ms
    assert mean == pytest.approx(np.full(len(times), 0.5))
