"""The gate in a stream as Python sees it, over the fake driver: meaning, errors, and the GIL."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rose._core import (
    CudaDevice,
    CudaGraph,
    CudaStream,
    GateKind,
    HostGate,
    StreamGate,
    Verdict,
    embedded_kernels,
    probe_gates,
)
from rose.errors import InvalidArgument, Unavailable
from tests.fake_driver import Fake, in_child

LONG_MS = 200_000.0  # bounds a hang, no more
SOME_ERROR = 719


class Rig:
    """A device of the fake with one borrower's stream and its gate."""

    def __init__(self, fake: Fake, *, window: int = 2) -> None:
        self.fake = fake
        self.device = CudaDevice.open(0)
        self.stream = CudaStream.create(self.device, highest=False)
        self.gate = HostGate()
        self.borrower = StreamGate.create(
            self.device,
            self.gate,
            stream=self.stream.handle,
            kind=GateKind.MEMOP,
            window=window,
        )

    def open_with(self, segments: int) -> None:
        self.gate.grant(segments)
        assert self.gate.open(self.gate.close_epoch)

    def capture(self, gates: int) -> CudaGraph:
        CudaGraph.begin_capture(self.device, self.stream.handle)
        for _ in range(gates):
            self.borrower.insert(self.stream.handle)
        return CudaGraph.end_capture(self.device, self.stream.handle)


@contextmanager
def running(fake: Fake) -> Iterator[None]:
    """A device that goes on by itself: the fake's streams move when it is called."""
    over = threading.Event()

    def pump() -> None:
        while not over.wait(0.0001):
            fake.pump()

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@in_child()
def test_waiting_borrower_lets_other_python_threads_run(fake: Fake) -> None:
    rig = Rig(fake)
    verdicts: list[Verdict] = []
    with running(fake):
        waiting = threading.Thread(
            target=lambda: verdicts.append(rig.borrower.pass_(timeout_ms=LONG_MS))
        )
        waiting.start()
        rig.open_with(1)  # needs the GIL that the waiting thread must have given up
        waiting.join()
        settling = threading.Thread(
            target=lambda: verdicts.append(rig.borrower.settle(timeout_ms=LONG_MS))
        )
        settling.start()
        settling.join()
    assert verdicts == [Verdict.PASSED, Verdict.PASSED]
    assert rig.gate.passed == 1


@in_child()
def test_graph_of_somebody_else_is_launched_too(fake: Fake) -> None:
    rig = Rig(fake, window=4)
    theirs = rig.capture(2)  # stands for one that torch captured and keeps
    ours = CudaGraph.instantiate(rig.device, theirs.handle)
    rig.open_with(2)
    assert rig.borrower.launch(ours, timeout_ms=1) is Verdict.PASSED
    fake.pump()
    assert rig.gate.passed == 2
    del ours
    assert "graphs 1" in fake.live()
    assert fake.faults() == []


@in_child()
def test_abortable_graph_needs_device_code_or_stops_at_its_gates(fake: Fake) -> None:
    rig = Rig(fake, window=4)
    segments = [rig.capture(0), rig.capture(0)]
    handles = [one.handle for one in segments]
    if "gate" not in embedded_kernels():
        with pytest.raises(Unavailable, match="device code"):
            rig.borrower.make_abortable(handles)
        return
    fake.on_kernel("branch_kernel", lambda _: None)
    graph = rig.borrower.make_abortable(handles)
    rig.open_with(0)
    assert rig.borrower.launch(graph, timeout_ms=1) is Verdict.PASSED
    fake.pump()
    assert fake.kernels() == []
    rig.gate.grant(2)
    fake.pump()
    assert len(fake.kernels()) == 2
    with pytest.raises(InvalidArgument, match="at least one segment, got none"):
        rig.borrower.make_abortable([])


@in_child()
def test_failures_name_the_call_and_leave_the_gate_usable(fake: Fake) -> None:
    rig = Rig(fake)
    rig.open_with(1)
    fake.fail("cuStreamBatchMemOp", code=SOME_ERROR)
    with pytest.raises(Exception, match=rf"cuStreamBatchMemOp.*{SOME_ERROR}"):
        rig.borrower.pass_(timeout_ms=1)
    assert rig.borrower.enqueued == 0
    assert rig.borrower.pass_(timeout_ms=1) is Verdict.PASSED
    with pytest.raises(InvalidArgument, match="not being captured"):
        rig.borrower.insert(rig.stream.handle)
    graph = rig.capture(0)
    with pytest.raises(InvalidArgument, match="no gate"):
        rig.borrower.launch(graph, timeout_ms=1)
    with pytest.raises(InvalidArgument, match="timeout_ms"):
        rig.borrower.pass_(timeout_ms=-1)
    assert fake.faults() == []


@in_child()
def test_bad_arguments_are_refused_before_anything_is_registered(fake: Fake) -> None:
    device = CudaDevice.open(0)
    stream = CudaStream.create(device, highest=False)
    alive = fake.live()
    with pytest.raises(InvalidArgument, match="window is 65, but must be from 1 to 64"):
        StreamGate.create(device, HostGate(), stream=stream.handle, kind=GateKind.MEMOP, window=65)
    with pytest.raises(InvalidArgument, match="HostGate itself"):
        StreamGate.create(device, HostGate(), stream=stream.handle, kind=GateKind.HOST)
    assert fake.live() == alive


@in_child()
def test_dropped_gate_leaves_nothing(fake: Fake) -> None:
    rig = Rig(fake)
    assert rig.gate.open(rig.gate.close_epoch)
    assert rig.borrower.pass_(timeout_ms=1) is Verdict.PASSED
    with running(fake):  # which needs the GIL while the gate drains
        del rig.borrower
    assert fake.pending(rig.stream.handle) == 0
    assert fake.live() == ["contexts 1", "streams 1"]
    assert fake.faults() == []


@in_child()
def test_probe_chooses_and_says_why(fake: Fake) -> None:
    device = CudaDevice.open(0)
    borrower = CudaStream.create(device, highest=False)
    serving = [CudaStream.create(device, highest=True) for _ in range(2)]
    streams = [one.handle for one in serving]

    def probe(max_connections: int | None = None):
        with running(fake):
            return probe_gates(
                device,
                borrower_stream=borrower.handle,
                serving_streams=streams,
                max_connections=max_connections,
                in_one_process=False,
                try_all=True,
            )

    found = probe()
    assert found.memop.is_usable
    assert not found.kernel.is_usable
    assert "another process" in found.kernel.why
    assert found.choice.kind is GateKind.MEMOP
    assert found.memop.wake_us > 0
    assert found.memop.alias_us > 0

    few = probe(max_connections=1)
    assert few.choice.kind is GateKind.HOST
    assert "CUDA_DEVICE_MAX_CONNECTIONS is 1" in few.choice.why

    fake.hold(streams[1])
    stalled = probe()
    fake.release(streams[1])
    assert stalled.choice.kind is GateKind.HOST
    assert "stalls serving streams" in stalled.memop.why
    assert fake.pending(borrower.handle) == 0
    # The code of a kernel in a stalled stream stays, in a build with device code.
    left = [one for one in fake.live() if not one.startswith("libraries")]
    assert left == ["contexts 1", "streams 3"]
    assert fake.faults() == []
