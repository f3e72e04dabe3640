"""The borrower's gate on a GPU: which is chosen, what is refused, and how many segments wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import CudaEvent, GateKind, HostGate, StreamGate, Verdict
from rose.compute import Gpu, SynchronousGate
from rose.compute import gpu as gpu_room
from rose.compute.gpu import largest_window
from rose.errors import InvalidArgument
from tests.compute.test_stream_gate import LONG_MS, running
from tests.fake_driver import Fake, in_child

NOT_SUPPORTED = 801


@in_child()
def test_host_gate_waits_for_the_segment_before(fake: Fake) -> None:
    gpu, gate = Gpu.open(0), HostGate()
    borrower = gpu.borrower_gate(gate, GateKind.HOST, window=1)
    gate.grant(3)
    assert gate.open(gate.close_epoch)
    stream = gpu.rollout.handle
    fake.hold(stream)
    event = CudaEvent.create(gpu.device, has_timing=False)
    event.record(stream)  # stands for the segment that runs there
    assert borrower.pass_(timeout_ms=1) is Verdict.TIMED_OUT
    assert gate.passed == 0
    fake.release(stream)
    assert borrower.pass_(timeout_ms=LONG_MS) is Verdict.PASSED


@in_child()
def test_borrower_of_another_process_gets_no_kernel_gate(fake: Fake) -> None:
    gpu = Gpu.open(0)
    fake.fail("cuStreamBatchMemOp", code=NOT_SUPPORTED)  # so MEMOP is refused
    with running(fake):
        gate, choice = gpu_room.tested_gate(gpu, HostGate(), window=2, in_one_process=False)
    assert choice is not None
    assert choice.kind is GateKind.HOST
    assert "from another process" in choice.why
    assert isinstance(gate, SynchronousGate)


def refuse(fake: Fake, connections: int) -> None:
    gpu = Gpu.open(0)
    with running(fake):
        found = gpu.probe(max_connections=connections, try_all=True)
        gate, choice = gpu_room.tested_gate(gpu, HostGate(), window=2)
    sentence = (
        f"CUDA_DEVICE_MAX_CONNECTIONS is {connections}, so a parked borrower would stall serving "
        "streams: set it to at least 8, or unset it"
    )
    assert (found.memop.why, found.kernel.why) == (sentence, sentence)
    assert fake.calls("cuStreamBatchMemOp") == 0
    assert isinstance(gate, SynchronousGate)
    assert choice is not None
    assert sentence in choice.why


@in_child(CUDA_DEVICE_MAX_CONNECTIONS="7")
def test_seven_connections_refuse_both_gates_in_one_sentence(fake: Fake) -> None:
    refuse(fake, 7)


@in_child(CUDA_DEVICE_MAX_CONNECTIONS="8")
def test_eight_connections_are_enough(fake: Fake) -> None:
    with running(fake):
        _, choice = gpu_room.tested_gate(Gpu.open(0), HostGate(), window=2)
    assert choice is not None
    assert choice.kind is GateKind.MEMOP


@given(st.integers(1, 1020))
def test_window_keeps_launches_below_the_queue(launches: int) -> None:
    window = largest_window(launches)
    each = launches + StreamGate.GATE_LAUNCHES
    assert window == 1 or window * each < StreamGate.LAUNCH_QUEUE
    assert (window + 1) * each >= StreamGate.LAUNCH_QUEUE


@in_child()
def test_window_shrinks_to_the_launch_queue_and_a_segment_beyond_it_is_refused(fake: Fake) -> None:
    gpu, gate = Gpu.open(0), HostGate()
    half = gpu.borrower_gate(gate, GateKind.MEMOP, window=8, launches=200)
    gate.grant(8)
    assert gate.open(gate.close_epoch)
    fake.hold(gpu.rollout.handle)
    half.begin_step()
    taken = 0
    while half.pass_(timeout_ms=1) is Verdict.PASSED:
        taken += 1
    assert taken == 5  # of 203 launches each
    fake.release(gpu.rollout.handle)
    with pytest.raises(InvalidArgument, match=r"1 segments of 1021 launches do not fit the launch"):
        gpu.borrower_gate(HostGate(), GateKind.MEMOP, window=8, launches=1021)
