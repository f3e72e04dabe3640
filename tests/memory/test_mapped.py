"""Mapped loans: a borrower reaches the slabs it holds, finds zeros there, and nothing else."""

import ctypes
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bench.windows import keep, open_window, take
from rose._core import Arbiter, CudaDevice, Grant, ManualClock, MappedWindow
from rose.errors import InvalidArgument, OutOfMemory, RoseError
from rose.memory import KVGeometry, KVSpace, MappedLoans
from tests.fake_driver import Fake, in_child

PAGE = 2 << 20
SMALL = 64 << 10
SLABS = 4
HEADERS = 2
SECRET = 0x5A


def is_readable(address: int) -> bool:
    """Ask the kernel, which answers EFAULT where the processor would raise a signal."""
    ends = os.pipe()
    try:
        os.write(ends[1], cast("Any", ctypes.c_char.from_address(address)))
    except OSError:
        return False
    finally:
        for end in ends:
            os.close(end)
    return True


def descriptors() -> list[str]:
    return sorted(one.name for one in Path("/proc/self/fd").iterdir())


class Serving:
    """The arbiter's side: a pool full of serving's bytes, and a borrower without a slab."""

    def __init__(self, *, slab_bytes: int = SMALL, device: CudaDevice | None = None) -> None:
        self.clock = ManualClock()
        self.arbiter = Arbiter.create(
            slab_bytes=slab_bytes,
            slab_count=SLABS,
            header_slabs=HEADERS,
            object_bytes_max=slab_bytes,
            clock=self.clock,
            device=device,
        )
        ctypes.memset(self.arbiter.pool_address, SECRET, self.arbiter.pool_bytes)
        everything = {"reserve_slabs": 0, "limit_slabs": SLABS}
        self.partition = self.arbiter.add_partition("rollout", **everything)
        self.arbiter.allocator(self.partition, block_bytes=slab_bytes, origin_bytes=slab_bytes)
        self.loans = MappedLoans(self.arbiter, self.partition)

    def grant(self, slabs: int) -> list[int]:
        answer = self.arbiter.grant(self.partition, slabs, ttl_ns=10**12)
        assert isinstance(answer, Grant)
        return answer.slabs

    def revoke(self, slabs: int) -> int:
        return self.arbiter.revoke(self.partition, slabs, deadline_ns=10**12)

    def window(self, device: CudaDevice | None = None) -> MappedWindow:
        return open_window(self.arbiter, header_index=1, device=device)


def address(window: MappedWindow | Arbiter, slab: int) -> int:
    return window.pool_address + (HEADERS + slab) * window.slab_bytes


def content(window: MappedWindow | Arbiter, slab: int) -> set[int]:
    return set(ctypes.string_at(address(window, slab), window.slab_bytes))


# ---- serving's side


def test_failed_scrub_leaves_slab_and_descriptors_as_they_were() -> None:
    plain = {"slab_bytes": SMALL, "slab_count": 2, "header_slabs": 1, "object_bytes_max": SMALL}
    calls = 1 + 2 * 3 + 1  # the reservation, three objects, the header
    # MappedLoans exports once to see whether it can, then a slab: its scrub comes third.
    arbiter = Arbiter.create(**plain, fail_backend_call=calls + 3)
    partition = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=2)
    arbiter.allocator(partition, block_bytes=SMALL, origin_bytes=0)
    answer = arbiter.grant(partition, 1, ttl_ns=10**12)
    assert isinstance(answer, Grant)
    loans = MappedLoans(arbiter, partition)
    before = descriptors()
    with pytest.raises(OutOfMemory, match="on purpose"):
        loans.lend(answer.slabs)
    assert descriptors() == before
    revocation = arbiter.revoke(partition, 1, deadline_ns=10**18)
    assert arbiter.poll(revocation).returned == 1  # no pin is left


def test_loans_of_what_cannot_be_are_refused() -> None:
    serving = Serving()
    before = descriptors()
    with pytest.raises(InvalidArgument, match="slab 4 does not exist"):
        serving.loans.lend([0, SLABS])
    assert descriptors() == before
    with serving.loans.lend([0]) as lent:  # it was never granted
        assert lent.fds == {}
    assert content(serving.arbiter, 0) == {SECRET}
    large = Arbiter.create(slab_bytes=SMALL, slab_count=2, header_slabs=0)
    partition = large.add_partition("rollout", reserve_slabs=0, limit_slabs=2)
    with pytest.raises(InvalidArgument, match=r"memory objects of one slab .*object_bytes_max 65"):
        MappedLoans(large, partition)


# ---- the borrower's side


def test_views_of_a_window_lie_where_the_blocks_are() -> None:
    serving = Serving()
    window = serving.window()
    geometry = KVGeometry(layers=2, block_tokens=4, bytes_per_token=1024)
    rollout = serving.arbiter.add_partition("other", reserve_slabs=0, limit_slabs=SLABS)
    space = KVSpace(serving.arbiter, rollout, geometry, header_index=1, window=window)
    answer = serving.arbiter.grant(rollout, 1, ttl_ns=10**12)
    assert isinstance(answer, Grant)
    with MappedLoans(serving.arbiter, rollout).lend(answer.slabs) as lent:
        take(window, lent)
    ids = space.allocator.alloc(space.blocks_per_slab)
    assert ids is not None
    for layer, view in enumerate(space.views()):
        assert isinstance(view, np.ndarray)
        start = view.ctypes.data - window.pool_address
        assert 0 <= start < window.pool_bytes
        assert not view[ids].any()
        view[ids] = layer + 1
    assert content(serving.arbiter, answer.slabs[0]) == {1, 2}
    assert content(serving.arbiter, answer.slabs[0] + 1) == {SECRET}


def test_views_outlive_the_window_object() -> None:
    serving = Serving()
    window = serving.window()
    view = window.pool_view()
    del window
    assert view[SMALL] == SECRET  # its own header slab


class Windows(RuleBasedStateMachine):
    """Loans in any order: what is readable is what is held, or given and not yet swept."""

    def __init__(self) -> None:
        super().__init__()
        self.serving = Serving()
        self.window = self.serving.window()
        self.held: set[int] = set()
        self.leaving: list[int] = []

    @rule(slabs=st.integers(1, SLABS))
    def lend(self, slabs: int) -> None:
        slabs = min(slabs, self.serving.arbiter.snapshot().unowned)
        if slabs == 0:
            return
        granted = self.serving.grant(slabs)
        with self.serving.loans.lend(granted) as lent:
            take(self.window, lent)
        for slab in granted:
            assert content(self.window, slab) == {0}
            ctypes.memset(address(self.window, slab), slab + 1, SMALL)
        self.held |= set(granted)
        self.leaving = [one for one in self.leaving if one not in self.held]

    @rule(slabs=st.integers(1, SLABS))
    def take_back(self, slabs: int) -> None:
        self.serving.revoke(slabs)
        views = self.serving.arbiter.candidates(self.serving.partition)
        now = {one.slab for one in views}
        for slab in sorted(self.held - now):  # serving's again, at once
            ctypes.memset(address(self.serving.arbiter, slab), SECRET, SMALL)
        keep(self.window, now)
        self.leaving += sorted(self.held - now)
        self.held = now

    @rule(at_most=st.integers(0, SLABS))
    def sweep(self, at_most: int) -> None:
        assert self.window.sweep(at_most) == min(at_most, len(self.leaving))
        del self.leaving[:at_most]

    @invariant()
    def reachable_is_held_or_leaving(self) -> None:
        assert self.window.held == sorted(self.held)
        assert self.window.leaving == len(self.leaving)
        for slab in range(SLABS):
            expected = slab in self.held or slab in self.leaving
            assert is_readable(address(self.window, slab)) == expected, f"slab {slab}"
        # Of the header slabs only the borrower's own.
        assert [is_readable(address(self.window, one - HEADERS)) for one in (0, 1)] == [False, True]


TestWindows = Windows.TestCase
TestWindows.settings = settings(stateful_step_count=20, deadline=None)


# ---- a device


@in_child()
def test_device_slab_is_scrubbed_on_a_stream_and_mapped(fake: Fake) -> None:
    device = CudaDevice.open(0)
    serving = Serving(slab_bytes=PAGE, device=device)
    window = serving.window(device)
    fake.reset()
    granted = serving.grant(1)
    assert fake.log() == []
    with serving.loans.lend(granted) as lent:
        names = [line.split("(")[0] for line in fake.log()]
        assert "cuStreamCreateWithPriority" not in names  # The stream was made with the pool.
        assert names.index("cuMemsetD32Async") < names.index("cuStreamQuery")
        assert "cuMemMap" not in names
        take(window, lent)
    assert content(window, granted[0]) == {0}
    fake.reset()
    with serving.loans.lend(serving.grant(1)):
        assert fake.calls("cuStreamCreateWithPriority") == 0
    serving.revoke(2)
    keep(window, [])
    log = fake.log()
    assert not any(line.startswith(("cuMemUnmap", "cuMemMap")) for line in log)
    assert window.sweep(8) == 1
    assert fake.calls("cuMemUnmap") == 1
    assert not is_readable(address(window, granted[0]))
    del serving, window, device
    assert (fake.live(), fake.faults()) == ([], [])


@in_child()
def test_nothing_leaks_when_the_nth_driver_call_of_a_loan_fails(fake: Fake) -> None:
    device = CudaDevice.open(0)
    serving = Serving(slab_bytes=PAGE, device=device)
    opened = descriptors()
    raised = n = 0
    while True:
        n += 1
        fake.reset()
        before = fake.live()
        fake.fail("*", nth=n, code=2)
        try:
            window = serving.window(device)
            with serving.loans.lend(serving.grant(1)) as lent:
                take(window, lent)
        except RoseError:
            raised += 1
        window = None  # type: ignore[assignment]
        fake_left = [one for one in fake.live() if not one.startswith("streams")]
        assert fake_left == [one for one in before if not one.startswith("streams")], f"call {n}"
        assert (fake.faults(), fake.depth(), descriptors()) == ([], 0, opened)
        serving.revoke(SLABS)
        assert serving.arbiter.snapshot().unowned == SLABS  # no pin is left
        if fake.is_fail_pending():
            break
    assert raised > 20
