"""The borrower on shares of a device: which stream, in which order, and what a refusal leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import CudaEvent, GateKind, HostGate, StreamGate, Verdict
from rose.compute import SHARES, ConfinedGate, Confinement, Gpu, SynchronousGate
from rose.compute import gpu as gpu_room
from rose.compute.gpu import largest_window
from rose.errors import InvalidArgument
from tests.compute.test_stream_gate import LONG_MS, running
from tests.fake_driver import Fake, in_child
from tests.reference.confinement import share_for

NOT_SUPPORTED = 801


class Plain:
    """Stands for a stream: only its handle matters."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


def of(shares: set[int]) -> Confinement:
    return Confinement(Plain(0), {share: Plain(share) for share in shares})  # type: ignore[dict-item, arg-type]


@given(st.sets(st.integers(1, 200)), st.none() | st.integers(0, 300))
def test_share_is_the_largest_that_is_not_larger(shares: set[int], wanted: int | None) -> None:
    assert of(shares).stream_for(wanted).handle == (share_for(sorted(shares), wanted) or 0)


def test_share_whose_stream_fails_is_left_out() -> None:
    kept = of({16, 32, 64}).only(lambda one: "it stalls serving" if one.handle == 32 else "")
    assert kept.shares == (16, 64)
    assert kept.stream_for(32).handle == 16
    assert kept.why_not == "no share of 32 multiprocessors: it stalls serving"


@in_child()
def test_every_share_has_a_stream_from_the_start(fake: Fake) -> None:
    gpu = Gpu.open(0, shares=SHARES)
    assert gpu.confinement.shares == (16, 32, 64)
    assert gpu.confinement.why_not == ""
    streams = {gpu.confinement.stream_for(share).handle for share in (None, *SHARES)}
    assert len(streams) == 4
    assert gpu.confinement.stream_for(None).handle == gpu.rollout.handle
    assert {gpu.confinement.stream_for(share).priority for share in SHARES} == {0}
    assert "green contexts 3" in fake.live()
    fake.reset()
    for share in SHARES:
        gpu.confinement.stream_for(share)
    assert fake.log() == []
    del gpu
    assert fake.live() == []
    assert fake.faults() == []


@in_child()
def test_driver_without_green_contexts_leaves_the_plain_stream(fake: Fake) -> None:
    fake.fail("cuDeviceGetDevResource", code=NOT_SUPPORTED)
    gpu = Gpu.open(0, shares=(16,))
    assert gpu.confinement.shares == ()
    assert gpu.confinement.why_not.startswith(
        "no share of 16 multiprocessors: cuDeviceGetDevResource: CUDA_ERROR_NOT_SUPPORTED"
    )
    assert gpu.confinement.stream_for(16) is gpu.rollout
    assert isinstance(gpu.borrower_gate(HostGate(), GateKind.MEMOP, window=2), StreamGate)


@in_child()
def test_share_that_is_too_large_leaves_the_others(fake: Fake) -> None:
    gpu = Gpu.open(0, shares=(16, 4096))
    assert gpu.confinement.shares == (16,)
    assert "cannot take 4096 of 132" in gpu.confinement.why_not
    assert fake.faults() == []


@in_child()
def test_confined_segments_follow_one_another_across_streams(fake: Fake) -> None:
    gpu, gate = Gpu.open(0, shares=(16, 32)), HostGate()
    confined = gpu.borrower_gate(gate, GateKind.MEMOP, window=8)
    assert isinstance(confined, ConfinedGate)
    gate.grant(8)
    assert gate.open(gate.close_epoch)
    fake.hold(gpu.rollout.handle)
    places = []
    confined.begin_step()
    assert confined.pass_(timeout_ms=LONG_MS) is Verdict.PASSED
    for wanted in (32, 32, None, 16):
        confined.confine(wanted)
        assert confined.pass_confined(timeout_ms=LONG_MS) is Verdict.PASSED
        places.append(confined.stream)
    names = {gpu.confinement.stream_for(one).handle: one for one in (None, 16, 32)}
    assert [names[one] for one in places] == [32, 32, None, 16]
    fake.pump()
    assert gate.passed == 0  # all wait behind the first stream, and nobody has waited for it
    fake.release(gpu.rollout.handle)
    assert gate.passed == 5
    assert confined.pass_(timeout_ms=LONG_MS) is Verdict.PASSED  # the end of a step
    assert confined.stream == gpu.rollout.handle
    confined.leave()
    confined.end_step()
    assert fake.faults() == []


@in_child()
def test_host_gate_waits_for_the_stream_that_was_left(fake: Fake) -> None:
    gpu, gate = Gpu.open(0, shares=(16,)), HostGate()
    confined = gpu.borrower_gate(gate, GateKind.HOST, window=1)
    assert isinstance(confined, ConfinedGate)
    gate.grant(3)
    assert gate.open(gate.close_epoch)
    plain = gpu.rollout.handle
    fake.hold(plain)
    event = CudaEvent.create(gpu.device, has_timing=False)
    event.record(plain)  # stands for the segment that runs there
    confined.confine(16)
    assert confined.pass_confined(timeout_ms=1) is Verdict.TIMED_OUT
    assert gate.passed == 0
    fake.release(plain)
    assert confined.pass_confined(timeout_ms=LONG_MS) is Verdict.PASSED
    assert confined.stream != plain


@in_child()
def test_share_whose_channel_stalls_serving_is_not_used(fake: Fake) -> None:
    gpu = Gpu.open(0, shares=(16, 32))
    with running(fake):
        gate, choice = gpu_room.tested_gate(gpu, HostGate(), window=2)
    assert choice is not None
    assert choice.kind is GateKind.MEMOP
    assert isinstance(gate, ConfinedGate)
    # Now every parked stream holds serving's up, as one channel for all would.
    fake.hold(gpu.serving.handle)
    with running(fake):
        kept = gpu.with_usable_shares(GateKind.MEMOP, max_connections=None, in_one_process=True)
    fake.release(gpu.serving.handle)
    assert kept.confinement.shares == ()
    assert "stalls serving streams" in kept.confinement.why_not
    assert fake.faults() == []


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


@in_child(CUDA_DEVICE_MAX_CONNECTIONS="1")
def test_one_connection_refuses_both_gates_in_one_sentence(fake: Fake) -> None:
    refuse(fake, 1)


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
