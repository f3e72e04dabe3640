"""Serving waits for the whole device, the borrower for serving: one of them is let go on."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rose._core import CloseReason, CudaEvent, RecordKind
from rose.errors import Unavailable
from rose.executor import wiring
from tests.executor.conftest import Rig
from tests.executor.test_gpu import Rig as GpuRig
from tests.executor.test_safety import fail
from tests.fake_driver import Fake, in_child
from tests.waiting import LONG_S, wait_for

GATES = 5
# Many times the watchdog's patience: whoever waits so long without it waits for ever.
LONG_ENOUGH_S = 0.3
WATCHDOG_MS = 5.0


class DeadlockRig(Rig):
    """A borrower that is parked within its step, and serving that is busy."""

    def __init__(self, folder: Path, *, patience_ms: float = WATCHDOG_MS) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wiring, "WATCHDOG_MS", patience_ms)
            super().__init__(folder / "log")
        self.is_over = threading.Event()
        self.in_segment = threading.Event()
        self.may_go_on = threading.Event()
        self.start(lambda: self.step_once(self.body))
        assert self.in_segment.wait(LONG_S)
        self.serving.arrived("a", prompt_tokens=8)
        self.may_go_on.set()
        wait_for(lambda: not self.device.gate.is_running())

    def body(self) -> None:
        self.in_segment.set()
        assert self.may_go_on.wait(LONG_S)
        with contextlib.suppress(Unavailable):  # when all is given back
            for _ in range(GATES):
                self.rollout.gate()
        self.is_over.set()

    def device_wide_call(self, *, timeout_s: float = LONG_S) -> bool:
        """Return when nothing of the borrower's is left on the device, as `cudaFree` would."""
        return self.is_over.wait(timeout_s)

    def end(self) -> None:
        self.serving.finished("a")
        assert self.is_over.wait(LONG_S)
        self.close()

    @property
    def forced(self) -> int:
        return self.device.gate.stats().forced_opens


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DeadlockRig]:
    made = DeadlockRig(tmp_path)
    yield made
    made.end()


def test_a_declared_call_ends_though_the_borrower_is_parked(rig: DeadlockRig) -> None:
    with rig.serving.blocking():
        assert rig.device_wide_call()
    assert rig.forced == GATES
    assert rig.device.lender.log.count(RecordKind.FORCED) == GATES
    assert not rig.device.gate.is_open()
    assert rig.device.gate.close_reason is CloseReason.ARRIVAL
    assert rig.device.gave_back is None


def test_a_call_that_raises_ends_its_declaration(rig: DeadlockRig) -> None:
    with pytest.raises(ZeroDivisionError), rig.serving.blocking():
        raise ZeroDivisionError
    assert not rig.device._parts.serving._watchdog.is_declared
    assert rig.device.gave_back is None


@pytest.mark.parametrize("name", ["enter", "leave"])
def test_a_watchdog_that_fails_is_not_heard_of_in_serving(rig: DeadlockRig, name: str) -> None:
    fail(rig.serving, "_watchdog", name)
    with rig.serving.blocking():
        pass
    assert rig.device.gave_back == f"RuntimeError: planted in {name}"


@in_child()
def test_segments_in_a_stream_are_let_go_for_a_declared_call(fake: Fake) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "WATCHDOG_MS", WATCHDOG_MS)
        rig = GpuRig()
    stream = rig.rollout.stream
    gpu = rig.device._opened.gpu
    assert gpu is not None
    work = CudaEvent.create(gpu.device, has_timing=False)

    def left() -> int:
        fake.pump()  # a stream of the fake goes on when it is looked at
        return fake.pending(stream)

    with rig.step():
        fake.hold(stream)
        rig.rollout.gate()  # its gate lies in the stream, unseen
        rig.serving.arrived("a", prompt_tokens=8)
        fake.hold(gpu.serving.handle)
        work.record(gpu.serving.handle)  # stands for a long step of serving
        fake.release(stream)
        threading.Event().wait(LONG_ENOUGH_S)
        assert left() > 0
        with rig.serving.blocking():
            wait_for(lambda: left() == 0)
        assert rig.device.gate.stats().forced_opens == 1
    assert rig.serving.undeclared_waits == 0
    rig.serving.finished("a")
    fake.release(gpu.serving.handle)
    rig.close()
    assert fake.faults() == []


@in_child()
def test_undeclared_wait_of_serving_ends(fake: Fake) -> None:
    rig = GpuRig()
    stream = rig.rollout.stream

    def left() -> int:
        fake.pump()
        return fake.pending(stream)

    with rig.step():
        fake.hold(stream)
        rig.rollout.gate()
        rig.serving.arrived("a", prompt_tokens=8)
        fake.release(stream)
        wait_for(lambda: left() == 0)  # as a cudaFree of serving would
    assert rig.serving.undeclared_waits == rig.device.gate.stats().forced_opens > 0
    assert rig.device.lender.log.count(RecordKind.FORCED) == rig.serving.undeclared_waits
    rig.serving.finished("a")
    rig.close()
    assert fake.faults() == []
