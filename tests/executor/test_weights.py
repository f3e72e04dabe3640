"""The borrower's weights: in slabs like any others, which leave by the deadline."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.errors import InternalError, InvalidArgument
from rose.executor import Reason, Refusal, WeightsLease
from rose.executor.revocation import Revocation
from rose.executor.weight_bins import HostUpload
from rose.executor.weights import WeightsState
from tests.executor.conftest import SLAB, Rig
from tests.waiting import wait_for

# One tensor of two slabs, some that share one, one of nothing.
SIZES = (5000, 900, 0, 3000, SLAB, 700, 1)
SLABS_NEEDED = 4
SLICE = 1000


class Uploads(HostUpload):
    """Counts copies, and does something on purpose before one."""

    def __init__(self) -> None:
        self.count = 0
        self.before: Callable[[], None] = lambda: None

    def copy(self, to, host) -> None:
        self.count += 1
        self.before()
        super().copy(to, host)


class Weights:
    """A lease on a rig, whose revocations take KV that no step pins, then the weights."""

    def __init__(self, rig: Rig, sizes: tuple[int, ...] = SIZES, **settings) -> None:
        rng = np.random.default_rng(7)
        self.rig = rig
        self.rows = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
        self.states: list[WeightsState] = []
        self.uploads = rig.rollout.upload = Uploads()
        self.lease = WeightsLease(
            rig.rollout,
            self.rows,
            on_state=self.states.append,
            **{"slice_bytes": SLICE, **settings},
        )
        rig.rollout.on_revoke = self.on_revoke

    def on_revoke(self, revocation: Revocation) -> None:
        weights = self.lease.slabs
        kv = [slab for slab in self.rig.rollout.slabs() if slab not in weights]
        self.rig.revocations.append(revocation)
        revocation.begin([*kv, *weights])
        self.lease.give_up(self.rig.rollout.leaving())
        self.rig.evacuate()

    def on_device(self) -> list[bytes]:
        return [self.lease.window_of(at).tobytes() for at in range(len(self.rows))]

    def are_right(self) -> bool:
        return self.on_device() == [row.tobytes() for row in self.rows]

    @property
    def held(self) -> int:
        return self.rig.counts()[1]


@pytest.fixture
def rig(open_rig) -> Rig:
    return open_rig(regrow_after_ms=0)


@pytest.fixture
def weights(rig: Rig) -> Weights:
    return Weights(rig)


def owners(weights: Weights) -> list[int]:
    """The partition that owns each slab of the weights, as the ledger has it."""
    records = weights.rig.records()
    return [records[slab].owner for slab in weights.lease.slabs]


# ---- activation ----------------------------------------------------------------------------------


def test_active_weights_are_the_hosts_in_slabs_of_the_borrower_alone(weights: Weights) -> None:
    lease = weights.lease
    assert lease.state is WeightsState.DORMANT
    assert lease.slabs_max == SLABS_NEEDED
    assert lease.size_bytes == sum(SIZES)
    assert lease.activate() is None
    assert lease.state is WeightsState.ACTIVE
    assert weights.states == [WeightsState.ACTIVE]
    assert weights.are_right()
    assert len(lease.slabs) == weights.held == SLABS_NEEDED
    assert owners(weights) == [weights.rig.rollout.kv.partition] * SLABS_NEEDED


def test_weights_without_room_are_refused_and_hold_nothing(open_rig) -> None:
    weights = Weights(open_rig(regrow_after_ms=0), sizes=(14 * SLAB,))
    refusal = weights.lease.activate()
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.RESERVE_AT_RISK
    assert weights.lease.state is WeightsState.DORMANT
    assert weights.held == 0
    assert weights.uploads.count == 0


def test_large_tensor_without_neighbouring_slabs_is_refused_and_holds_nothing(open_rig) -> None:
    weights = Weights(open_rig(regrow_after_ms=0), sizes=(3 * SLAB,))
    rig = weights.rig
    rig.device.lender.grow(10_000)
    allocator = rig.rollout.kv.allocator
    everything = allocator.alloc(allocator.free_blocks)
    assert len(everything) > 8 * 9
    kept = [block for block in everything if allocator.slab_of(block) % 3 == 0]
    allocator.free([block for block in everything if block not in kept])
    refusal = weights.lease.activate()
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.FRAGMENTED
    assert weights.lease.slabs == frozenset()
    assert weights.held == len({allocator.slab_of(block) for block in kept})
    allocator.free(kept)
    assert weights.lease.activate() is None
    assert weights.are_right()


@pytest.mark.parametrize("failing", [1, 12])
def test_copy_that_fails_gives_every_slab_back(weights: Weights, failing: int) -> None:
    def fail() -> None:
        if weights.uploads.count == failing:
            raise OSError("planted")

    weights.uploads.before = fail
    with pytest.raises(OSError, match="planted"):
        weights.lease.activate()
    assert weights.lease.state is WeightsState.DORMANT
    assert weights.held == 0
    assert weights.lease.activate() is None
    assert weights.are_right()


# ---- eviction ------------------------------------------------------------------------------------


def test_weights_given_up_during_any_copy_leave_and_never_become_active(weights: Weights) -> None:
    lease, uploads = weights.lease, weights.uploads
    lease.activate()
    copies = uploads.count
    lease.evict()
    for number in range(1, copies + 1):
        uploads.count = 0
        weights.states.clear()

        def take(number: int = number) -> None:
            if uploads.count == number:
                weights.rig.device.lender.take_back(1)
                assert lease.state is WeightsState.EVICTING

        uploads.before = take
        assert lease.activate() is None
        assert weights.states == [WeightsState.DORMANT]
        assert weights.held == 0
        revocation = weights.rig.revocations[-1]
        assert (revocation.slabs_pending(), revocation.slabs_returned) == (0, 1)
        weights.rig.serving.settle()


def test_pinned_weights_that_miss_the_deadline_are_fenced_and_come_home_when_let_go(
    open_rig,
) -> None:
    weights = Weights(open_rig(regrow_after_ms=0, revoke_ms=1.0))
    rig, lease = weights.rig, weights.lease
    assert lease.activate() is None
    assert lease.pin()
    rig.device.lender.take_back(2)
    wait_for(lambda: rig.revocations[0].slabs_pending() == 0)
    assert rig.revocations[0].slabs_fenced == 2
    assert rig.counts()[3] == 2
    lease.unpin()
    assert lease.state is WeightsState.DORMANT
    assert rig.counts()[1] == rig.counts()[3] == 0


@pytest.mark.parametrize("bound_slabs", [0, 2, 100])
def test_dormant_weights_hold_no_more_than_the_bound(open_rig, bound_slabs: int) -> None:
    weights = Weights(open_rig(regrow_after_ms=0), dormant_bytes_max=bound_slabs * SLAB)
    lease = weights.lease
    lease.activate()
    first = weights.uploads.count
    lease.evict()
    assert lease.state is WeightsState.DORMANT
    assert len(lease.slabs) == weights.held <= bound_slabs
    kept = weights.held
    weights.uploads.count = 0
    assert lease.activate() is None
    assert weights.are_right()
    assert (weights.uploads.count < first) == (kept > 0)
    # Dormant again, what is kept leaves to who wants it.
    lease.evict()
    weights.rig.device.lender.take_back(16)
    assert weights.held == 0
    assert lease.slabs == frozenset()


def test_half_filled_bins_are_not_kept(open_rig) -> None:
    weights = Weights(open_rig(regrow_after_ms=0), dormant_bytes_max=100 * SLAB)
    lease = weights.lease
    lease.begin()
    lease.pin()
    assert lease.advance()
    assert lease.advance()
    lease.evict()
    lease.unpin()
    assert lease.activate() is None
    assert weights.are_right()


def test_close_leaves_nothing_whatever_the_bound(open_rig) -> None:
    weights = Weights(open_rig(regrow_after_ms=0), dormant_bytes_max=100 * SLAB)
    weights.lease.activate()
    weights.lease.close()
    assert weights.held == 0
    weights.lease.close()
    weights.lease.activate()
    weights.lease.pin()
    with pytest.raises(InternalError, match="must not be pinned"):
        weights.lease.close()
    weights.lease.unpin()


# ---- the host's copy is the truth ----------------------------------------------------------------


@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, sum(SIZES)),
            st.integers(0, 6000),
            st.sampled_from(["pinned", "free", "half", "dormant"]),
        ),
        max_size=12,
    ),
    bound=st.sampled_from([0, SLAB, 3 * SLAB]),
)
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_the_host_changes_is_on_the_device_whenever_it_is_active(
    rig: Rig, changes: list[tuple[int, int, str]], bound: int
) -> None:
    weights = Weights(rig, dormant_bytes_max=bound)
    lease, flat = weights.lease, np.concatenate(weights.rows)
    for start, count, how in changes:
        if how in ("pinned", "free"):
            assert lease.activate() is None
        else:
            lease.evict()
        is_pinned = how in ("pinned", "half") and lease.begin() is None and lease.pin()
        if how == "half":
            lease.advance()
        flat[start : start + count] += 1
        for row, end in zip(weights.rows, np.cumsum(SIZES), strict=True):
            row[:] = flat[end - len(row) : end]
        lease.write(start, min(start + count, len(flat)))
        # Pinned weights are changed where they are.
        assert how != "pinned" or (lease.state is WeightsState.ACTIVE and weights.are_right())
        if is_pinned:
            lease.unpin()
        assert lease.activate() is None
        assert weights.are_right()
    lease.close()


@given(
    orders=st.lists(
        st.sampled_from(
            ["begin", "advance", "pin", "unpin", "evict", "revoke", "borrow", "return"]
        ),
        max_size=30,
    )
)
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_in_any_order_slabs_have_one_owner_and_active_weights_are_whole(
    weights: Weights, orders: list[str]
) -> None:
    rig, lease = weights.rig, weights.lease
    allocator = rig.rollout.kv.allocator
    is_pinned = False
    for order in orders:
        if order == "begin":
            lease.begin()
        elif order == "advance" and is_pinned:
            lease.advance()
        elif order == "pin" and not is_pinned:
            is_pinned = lease.pin()
        elif order == "unpin":
            lease.unpin()
            is_pinned = False
        elif order == "evict":
            lease.evict()
        elif order == "revoke":
            rig.device.lender.take_back(1)
        elif order == "borrow" and rig.rollout.ensure(3):
            rig.held += allocator.alloc(3)
        elif order == "return":
            allocator.free(rig.held)
            rig.held.clear()
        rig.device.arbiter.check_invariants()
        assert {allocator.slab_of(block) for block in rig.held}.isdisjoint(lease.slabs)
        # What is held after a pin may be on its way back: then it is the borrower's until unpin.
        assert set(owners(weights)) <= {rig.rollout.kv.partition}
        if lease.state is WeightsState.ACTIVE:
            assert weights.are_right()
        if lease.state is WeightsState.DORMANT:
            assert lease.slabs == frozenset()
    lease.unpin()
    lease.close()
    allocator.free(rig.held)
    rig.held.clear()
    rig.device.lender.take_back(16)
    assert weights.held == 0


def test_bad_terms_are_refused(open_rig) -> None:
    lane = open_rig().rollout
    row = np.zeros(8, np.uint8)
    for rows, terms in (
        ([], {}),
        ([row[:0]], {}),
        ([row], {"dormant_bytes_max": -1}),
        ([row], {"slice_bytes": 0}),
    ):
        with pytest.raises(InvalidArgument, match="must be at least 1"):
            WeightsLease(lane, rows, **terms)
