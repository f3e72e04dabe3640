"""The borrower's gate on a GPU: which is chosen, what is refused, and how many segments wait."""

import threading

import pytest

from rose._core import CudaEvent, GateKind, HostGate, StreamGate, Verdict, embedded_kernels
from rose.compute import Gpu, SynchronousGate
from rose.compute import gpu as gpu_room
from rose.errors import InvalidArgument, Unavailable
from tests.compute.test_stream_gate import LONG_MS, running
from tests.fake_driver import Fake, in_child
from tests.waiting import wait_for

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


UUID = "47474747-4747-4747-4747-4747474747"  # of the fake's GPUs, but the last byte


@in_child(FAKECUDA_DEVICES="3", FAKECUDA_UUIDS="7,5,6")
def test_servings_gpu_is_found_by_its_uuid(fake: Fake) -> None:
    for ordinal, last in enumerate(("07", "05", "06")):
        gpu = Gpu.of_serving(UUID + last)
        assert (gpu.device.ordinal, gpu.device.facts.uuid) == (ordinal, UUID + last)
    assert fake.faults() == []


@in_child(FAKECUDA_DEVICES="2", FAKECUDA_UUIDS="7,5")
def test_gpu_that_this_process_does_not_see_is_refused_with_all_uuids(fake: Fake) -> None:
    with pytest.raises(Unavailable) as caught:
        Gpu.of_serving(UUID + "06")
    assert str(caught.value) == (
        f"serving's GPU has UUID {UUID}06, but this process sees {UUID}07, {UUID}05: set "
        "CUDA_VISIBLE_DEVICES here to serving's GPU"
    )
    assert fake.live() == []


@in_child(FAKECUDA_ATTRIBUTES="133=1")
def test_borrower_of_another_process_is_refused_under_mps(fake: Fake) -> None:
    with pytest.raises(Unavailable, match="runs under MPS"):
        Gpu.of_serving(UUID + "00")
    assert Gpu.open(0).device.facts.uses_mps
    assert fake.faults() == []


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


@in_child()
def test_window_keeps_launches_below_the_queue(fake: Fake) -> None:
    half = gate_of(Gpu.open(0), HostGate(), window=64)
    for launches in range(1, StreamGate.LONGEST_SEGMENT + 1):
        half.set_launches(launches)
        each = launches + StreamGate.GATE_LAUNCHES
        assert half.window >= 1
        assert half.window * each < StreamGate.LAUNCH_QUEUE
        assert half.window == 64 or (half.window + 1) * each >= StreamGate.LAUNCH_QUEUE


def gate_of(gpu: Gpu, gate: HostGate, *, window: int, launches: int = 1) -> StreamGate:
    half = gpu.borrower_gate(gate, GateKind.MEMOP, window=window, launches=launches)
    assert isinstance(half, StreamGate)
    return half


class Filled:
    """A borrower of segments of 500 launches, and a stream that holds what a driver's does."""

    def __init__(self, fake: Fake, *, launches: int) -> None:
        fake.set_launch_queue(StreamGate.LAUNCH_QUEUE)
        self.gpu, gate = Gpu.open(0), HostGate()
        self.half = gate_of(self.gpu, gate, window=8)
        self.half.set_launches(launches)
        gate.grant(8)
        assert gate.open(gate.close_epoch)
        self.stream = self.gpu.rollout.handle
        fake.hold(self.stream)  # as a closed gate would
        self.taken = 0

    def run(self) -> None:
        event = CudaEvent.create(self.gpu.device, has_timing=False)
        self.half.begin_step()
        while self.taken < 3 and self.half.pass_(timeout_ms=1) is Verdict.PASSED:
            for _ in range(500):
                event.record(self.stream)
            self.taken += 1


@in_child()
def test_measured_launches_keep_the_host_out_of_a_full_queue(fake: Fake) -> None:
    filled = Filled(fake, launches=500)
    filled.run()
    assert filled.taken == 2
    assert 1000 < fake.pending(filled.stream) <= StreamGate.LAUNCH_QUEUE
    fake.release(filled.stream)


@in_child()
def test_launch_into_a_full_queue_blocks_its_host(fake: Fake) -> None:
    filled = Filled(fake, launches=1)  # a wrong number
    thread = threading.Thread(target=filled.run)
    thread.start()
    wait_for(lambda: fake.blocked() == 1)
    assert thread.is_alive()
    assert filled.taken == 2
    fake.release(filled.stream)
    thread.join()
    assert filled.taken == 3


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
    sentence = (
        "a segment of 1021 launches does not fit the launch queue of 1024, so a closed gate would "
        "block the host: the longest segment that fits has 1020 launches; use more gates per step"
    )
    with pytest.raises(InvalidArgument) as refused:
        gpu.borrower_gate(HostGate(), GateKind.MEMOP, window=8, launches=1021)
    assert str(refused.value) == sentence


@in_child(CUDA_LAUNCH_BLOCKING="1")
def test_launches_that_wait_for_their_end_are_refused(fake: Fake) -> None:
    with pytest.raises(Unavailable, match=r"^CUDA_LAUNCH_BLOCKING is set, so a launch behind a"):
        Gpu.open(0)


@in_child(CUDA_MODULE_LOADING="LAZY")
def test_lazy_loading_is_refused(fake: Fake) -> None:
    with pytest.raises(Unavailable, match=r"set CUDA_MODULE_LOADING=EAGER before this process"):
        Gpu.open(0)


@pytest.mark.skipif("gate" not in embedded_kernels(), reason="the probe's kernel is not built in")
@in_child()
def test_profiler_that_makes_launches_wait_costs_the_gates_in_streams(fake: Fake) -> None:
    gpu = Gpu.open(0)
    fake.set_launch_blocking(True)
    with running(fake):
        found = gpu.probe(max_connections=None)
    assert found.choice.kind is GateKind.HOST
    assert found.memop.why == (
        "a launch behind a closed gate blocks its host thread: CUDA_LAUNCH_BLOCKING or a profiler "
        "makes launches wait for their completion; unset it or detach the profiler"
    )


@in_child()
def test_default_stream_is_tested_too(fake: Fake) -> None:
    gpu = Gpu.open(0)
    fake.hold(0)
    with running(fake):
        found = gpu.probe(max_connections=None)
    assert found.choice.kind is GateKind.HOST
    assert "a parked borrower stalls serving streams: the default stream" in found.memop.why
