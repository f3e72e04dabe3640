"""Weights as a lease on a GPU: copies in the borrower's stream, over the fake driver."""

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest

from rose.errors import DeadlineExceeded, Unavailable
from rose.executor import WeightsLease
from rose.executor.weights import WeightsState
from rose.memory import DeviceArray
from rose.units import MIB
from tests.executor import test_gpu as gpu
from tests.fake_driver import Fake, in_child

SIZES = (gpu.SLAB + 100, 4096, gpu.SLAB // 2, 77)
COPY = "cuMemcpyHtoDAsync"


class Rig(gpu.Rig):
    """Both lanes on GPU 0, and weights for the borrower."""

    def __init__(self) -> None:
        super().__init__(regrow_after_ms=0.0)
        self.lane = self.rollout
        rng = np.random.default_rng(3)
        self.rows = [rng.integers(0, 256, size, dtype=np.uint8) for size in SIZES]
        self.lease = WeightsLease(self.lane, self.rows, slice_bytes=MIB)

    def on_device(self) -> list[bytes]:
        """What is there: the fake's device memory is the host's."""
        windows = [self.lease.window_of(at) for at in range(len(self.rows))]
        assert all(isinstance(one, DeviceArray) for one in windows)
        return [ctypes.string_at(one.address, one.nbytes) for one in windows]

    def expected(self) -> Sequence[bytes]:
        return [row.tobytes() for row in self.rows]

    @property
    def held(self) -> int:
        return self.device.arbiter.snapshot().partitions[1].held

    def end(self, fake: Fake) -> None:
        self.lease.close()
        self.close()
        assert fake.faults() == []


@in_child()
def test_weights_are_copied_once_and_in_the_borrowers_stream(fake: Fake) -> None:
    rig = Rig()
    assert rig.lease.activate() is None
    assert rig.lease.state is WeightsState.ACTIVE
    assert rig.on_device() == rig.expected()
    calls = [line for line in fake.log() if line.startswith(COPY)]
    assert len(calls) == fake.calls(COPY) == 6  # Pieces of up to a MiB: three of the large one.
    assert all(f"{rig.lane.stream:#x}" in line for line in calls)
    rig.end(fake)


@in_child()
def test_slabs_do_not_leave_under_copies_that_wait_in_the_stream(fake: Fake) -> None:
    rig = Rig()
    assert rig.lease.begin() is None
    assert rig.lease.pin()
    fake.hold(rig.lane.stream)
    while rig.lease.advance():
        pass
    assert rig.lease.state is WeightsState.ACTIVE  # For who comes later in the same stream.
    assert fake.pending(rig.lane.stream) > 0
    rig.lane.on_revoke = lambda revocation: (
        revocation.begin(rig.lease.slabs),
        rig.lease.give_up(rig.lane.leaving()),
    )
    rig.device.lender.take_back(2)
    assert rig.lease.state is WeightsState.EVICTING
    assert rig.held == rig.lease.slabs_max
    fake.release(rig.lane.stream)
    rig.lane.upload.wait()
    assert rig.on_device() == rig.expected()
    rig.lease.unpin()
    assert rig.held == 0
    rig.end(fake)


@in_child()
def test_stream_that_does_not_end_keeps_the_slabs_pinned(fake: Fake) -> None:
    rig = Rig()

    def late() -> None:
        raise DeadlineExceeded("the stream has work left")

    rig.lane.upload.wait = late
    with pytest.raises(DeadlineExceeded):
        rig.lease.activate()
    rig.lease.evict()
    assert rig.lease.state is WeightsState.EVICTING
    assert rig.held == rig.lease.slabs_max
    rig.lease.unpin()
    assert rig.held == 0
    rig.end(fake)


@in_child()
def test_every_copy_that_fails_gives_all_slabs_back_and_is_said(fake: Fake) -> None:
    rig = Rig()
    for number in range(1, 7):
        fake.fail(COPY, nth=number, code=gpu.LAUNCH_FAILED)
        with pytest.raises(Unavailable, match=COPY):
            rig.lease.activate()
        assert not fake.is_fail_pending()
        assert rig.lease.state is WeightsState.DORMANT
        assert rig.held == 0
    assert rig.lease.activate() is None
    assert rig.on_device() == rig.expected()
    rig.end(fake)
