"""What is lent of the KV pool: serving's use is never touched, and growth waits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.memory.presets import find_model
from rose_lab.sim.cluster.lending_kv import KvPool, PublishedKv, ReservedKv, RoseKv

POOL = KvPool(slabs=100, serving_tokens=16, rollout_tokens=8)
BIN_MS = 10.0
uses = st.lists(st.lists(st.integers(0, 100), min_size=2, max_size=2), min_size=1, max_size=60)


def lent(rule, used, bin_ms=BIN_MS):
    used = np.array(used, dtype=np.int64).reshape(len(used), -1)
    return used, rule.lent_slabs(used, POOL, bin_ms=bin_ms)


@given(uses, st.floats(0, 1), st.sampled_from([0.0, 5.0, 10.0, 45.0, 1e4]))
def test_roses_loan_is_the_least_that_was_left_for_as_long_as_growth_waits(
    used, reserve, regrow
) -> None:
    used, loan = lent(RoseKv(reserve_share=reserve, regrow_after_ms=regrow), used)
    held = int(np.ceil(100 * reserve))
    for row in range(len(used)):
        window = range(max(0, row - int(np.ceil(regrow / BIN_MS))), row + 1)
        least = np.min([np.maximum(100 - held - used[past], 0) for past in window], axis=0)
        assert (loan[row] == least).all()
        # Shrinking is at once: what serving uses and what it may claim is never lent.
        assert ((loan[row] == 0) | (loan[row] + used[row] + held <= 100)).all()


@given(uses, st.integers(1, 20), st.floats(1.1, 8), st.floats(0, 1), st.floats(0, 1))
def test_the_published_budget_grows_only_when_a_step_begins(
    used, step, cut, headroom, watermark
) -> None:
    rule = PublishedKv(step * BIN_MS, headroom_share=headroom, cut=cut, watermark=watermark)
    used, loan = lent(rule, used)
    assert (loan >= 0).all()
    assert (loan + used <= 100).all()
    for row in range(1, len(used)):
        if row % step:
            assert (loan[row] <= loan[row - 1]).all()


def test_the_published_budget_is_halved_under_pressure_and_frozen_until_the_next_step() -> None:
    rule = PublishedKv(6 * BIN_MS)
    # 80 less 20 at first. Half of the headroom is eaten at 31, and all of it is free again at 20.
    _, loan = lent(rule, [20, 29, 30, 31, 20, 20, 20, 20])
    assert loan.ravel().tolist() == [60, 60, 60, 30, 30, 30, 60, 60]


@given(uses, st.floats(0, 1))
def test_a_reserved_part_stays_what_it_is(used, share) -> None:
    _, loan = lent(ReservedKv(share), used)
    assert (loan == int(100 * share)).all()


@given(st.sampled_from([RoseKv(), PublishedKv(50.0), ReservedKv(0.3)]), uses)
def test_a_device_of_many_is_lent_as_if_it_were_alone(rule, used) -> None:
    used, loan = lent(rule, used)
    for device in range(used.shape[1]):
        alone = rule.lent_slabs(used[:, [device]], POOL, bin_ms=BIN_MS)
        assert (loan[:, [device]] == alone).all()


def test_serving_takes_whole_slabs_and_no_more_than_there_are() -> None:
    tokens = np.array([0.0, 1.0, 16.0, 17.0, 1e6])
    assert POOL.used_slabs(tokens).tolist() == [0, 1, 1, 2, 100]


def test_the_pool_of_the_papers_device_is_what_two_models_leave() -> None:
    """80 GB less 15.2 and 16.4 GB of weights and two engines leave 44 GB, in slabs of 12 MiB."""
    pool = KvPool.of("H800", find_model("Qwen2.5-7B"), find_model("Qwen3-8B"))
    # A slab has 13 blocks of 896 KiB, or 5 of 2,304 KiB.
    assert (pool.serving_tokens, pool.rollout_tokens) == (13 * 16, 5 * 16)
    assert pool.slabs == pytest.approx(44.1e9 / (12 << 20), rel=0.01)


def test_a_pool_that_holds_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="each size must be at least 1"):
        KvPool(0, 1, 1)
