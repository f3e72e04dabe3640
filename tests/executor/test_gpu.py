"""A device that is a GPU: the executor over the fake driver, whose streams execute."""

import gc
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rose._core import CudaDriver, CudaGraph, CudaStream, GateKind
from rose.errors import InvalidArgument, StepAborted, Unavailable
from rose.executor import SLO, CoServing, KVGeometry, Policy, Quantum, Refusal
from rose.memory import DeviceArray
from rose.units import MIB
from tests.compute.test_stream_gate import running
from tests.fake_driver import Fake, in_child
from tests.known_model import confirm
from tests.waiting import LONG_S, wait_for

SLAB = 2 * MIB
SLABS = 8
SERVING_KV = KVGeometry(layers=2, block_tokens=16, bytes_per_token=16384)  # 8 blocks in a slab
ROLLOUT_KV = KVGeometry(layers=4, block_tokens=8, bytes_per_token=16384)  # 16 blocks in a slab
# No deadline that a busy machine misses; an engine so slow that it takes little within one.
CALM: dict[str, Any] = {
    "revoke_ms": 5000.0,
    "blocking_ms": 50_000.0,
    "heartbeat_ttl_ms": 5000.0,
    "lease_ttl_ms": 600_000.0,
    "latency_prior_ms": (500.0, 0.0, 0.0, 0.0, 0.0),
}
OUT_OF_MEMORY = 2
LAUNCH_FAILED = 719
MEMOP_MISSING = {"FAKECUDA_MISSING": "cuStreamBatchMemOp"}


class Rig:
    """Both lanes on GPU 0."""

    def __init__(self, *, launches: int | None = 1, **knobs: Any) -> None:
        self.device = CoServing.open(
            "cuda:0",
            pool_bytes=(SLABS + 2) * SLAB,
            slab_bytes=SLAB,
            policy=Policy(**{**CALM, **knobs}),
        )
        self.serving = self.device.serving(
            SERVING_KV,
            slo=SLO(ttft_ms=200_000, tpot_ms=1000, slowdown=0.0),
            reserve_bytes=SLAB,
            step_tokens=32,
            request_tokens=64,
        )
        confirm(self.device._parts.model, 32)
        self.rollout = self.device.rollout(ROLLOUT_KV, limit_bytes=SLABS * SLAB)
        if launches is not None:
            self.rollout.set_launches(launches)

    def step(self) -> Quantum:
        """Start a step, whenever that is allowed."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            match self.rollout.try_step(timeout_ms=50):
                case Quantum() as quantum:
                    return quantum
        raise AssertionError("no step was allowed in time")

    def close(self) -> None:
        self.device.close()
        self.device.arbiter.check_invariants()


@in_child()
def test_tenants_get_streams_of_their_own_and_a_tested_gate(fake: Fake) -> None:
    rig = Rig()
    assert rig.device.gate_choice.kind is GateKind.MEMOP
    assert rig.serving.stream not in (None, 0, rig.rollout.stream)
    gpu = rig.device._opened.gpu
    assert gpu is not None
    lowest, highest = gpu.device.priority_range
    assert (gpu.serving.priority, gpu.rollout.priority) == (highest, lowest)
    assert highest < lowest
    rig.close()


@in_child()
def test_a_closed_device_leaves_nothing_on_the_gpu(fake: Fake) -> None:
    rig = Rig()
    with rig.step():
        rig.rollout.gate()
        rig.rollout.finish()
    rig.close()
    del rig
    gc.collect()
    assert fake.live() == []
    assert fake.faults() == []


def ends_a_segment_beside_a_held_stream(fake: Fake, rig: Rig, *, within_s: float) -> bool:
    """Whether the host passes a gate that its stream has not passed."""
    stream, has_passed, may_go_on = rig.rollout.stream, threading.Event(), threading.Event()
    assert stream is not None

    def run() -> None:
        with rig.step():
            fake.hold(stream)
            rig.rollout.gate()
            has_passed.set()
            assert may_go_on.wait(LONG_S)
            rig.rollout.finish()

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: fake.pending(stream) > 0)
    is_ahead = has_passed.wait(within_s)
    fake.release(stream)
    may_go_on.set()
    thread.join()
    return is_ahead


@in_child()
def test_host_runs_ahead_only_once_launches_are_known(fake: Fake) -> None:
    rig = Rig(launches=None)
    assert not rig.rollout.runs_ahead
    assert not ends_a_segment_beside_a_held_stream(fake, rig, within_s=0.2)
    with pytest.raises(InvalidArgument, match="the longest segment that fits has 1020 launches"):
        rig.rollout.set_launches(1021)
    assert not rig.rollout.runs_ahead
    rig.rollout.set_launches(1020)
    assert ends_a_segment_beside_a_held_stream(fake, rig, within_s=LONG_S)
    rig.close()
    assert fake.faults() == []


def captured(rig: Rig, gates: int, *, stream: int | None = None) -> CudaGraph:
    """Capture a step of kernels with gates between them, as an engine does in its warm-up."""
    device, at = rig.rollout.device, stream or rig.rollout.stream
    assert device is not None
    assert at is not None
    CudaGraph.begin_capture(device, at)
    for _ in range(gates):
        rig.rollout.capture_gate(stream)
    return CudaGraph.end_capture(device, at)


@in_child()
def test_gates_in_captured_graphs_count_and_hold(fake: Fake) -> None:
    rig = Rig()
    assert rig.rollout.has_stream_gates
    other = CudaStream.create(rig.rollout.device, highest=False)
    graphs = [captured(rig, 3), captured(rig, 2, stream=other.handle)]
    host_gate = rig.device.gate
    with rig.step(), running(fake):
        before = host_gate.passed
        for _ in range(2):
            for graph in graphs:
                rig.rollout.launch(graph)
        rig.rollout.gate()
        rig.rollout.finish()
        assert host_gate.passed == before + 2 * (3 + 2) + 2
    rig.close()
    assert fake.faults() == []


@in_child()
def test_abort_reaches_a_launch_behind_a_closed_gate(fake: Fake) -> None:
    rig = Rig()
    graph = captured(rig, 3)
    answers: list[Any] = []

    def run() -> None:
        with rig.step(), rig.serving.step():  # the gate closes
            try:
                rig.rollout.launch(graph)
            except StepAborted as abort:
                answers.append(abort)

    thread = threading.Thread(target=run)
    thread.start()
    host_gate = rig.device.gate
    deadline = time.monotonic() + LONG_S
    while not answers and time.monotonic() < deadline:
        host_gate.abort_step()
        time.sleep(0.01)
    thread.join(LONG_S)
    assert len(answers) == 1
    rig.close()
    assert fake.faults() == []


@in_child()
def test_step_of_one_segment_captures_no_gates_and_launches(fake: Fake) -> None:
    rig = Rig()
    rig.rollout._has_gates = False  # as without gates, for comparison
    with rig.step(), running(fake):
        before = rig.device.gate.passed
        graph = captured(rig, 3)
        rig.rollout.launch(graph)
        assert fake.calls("cuGraphLaunch") == 1
        rig.rollout.finish()
        assert rig.device.gate.passed == before
    rig.close()
    assert fake.faults() == []


@in_child()
def test_graph_without_gates_of_the_lane_is_refused(fake: Fake) -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument, match="not being captured"):
        rig.rollout.capture_gate()
    with rig.step(), pytest.raises(InvalidArgument, match="the graph has no gate"):
        rig.rollout.launch(captured(rig, 0))
    rig.close()
    assert fake.faults() == []


@in_child(**MEMOP_MISSING)
def test_gate_on_the_host_cannot_be_captured(fake: Fake) -> None:
    rig = Rig()
    assert not rig.rollout.has_stream_gates
    for call in (rig.rollout.capture_gate, lambda: rig.rollout.launch(captured(rig, 0))):
        with pytest.raises(Unavailable, match="capture each segment as a graph of its own"):
            call()
    rig.close()
    assert fake.faults() == []


@in_child()
def test_a_step_is_granted_when_its_first_segment_has_started_and_not_before(fake: Fake) -> None:
    rig = Rig()
    with rig.step():  # the creditor is there
        rig.rollout.finish()
    fake.hold(rig.rollout.stream)
    for _ in range(3):
        assert isinstance(rig.rollout.try_step(timeout_ms=30), Refusal)
    assert fake.pending(rig.rollout.stream) > 0
    fake.release(rig.rollout.stream)
    with rig.step():
        assert fake.pending(rig.rollout.stream) == 0
    rig.close()
    assert fake.faults() == []


@in_child()
def test_finish_waits_until_the_stream_has_done_the_last_segment(fake: Fake) -> None:
    rig = Rig()
    is_finished = threading.Event()

    def run() -> None:
        with rig.step():
            rig.rollout.gate()
            fake.hold(rig.rollout.stream)
            rig.rollout.finish()
            is_finished.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert not is_finished.wait(0.2)
    fake.release(rig.rollout.stream)
    assert is_finished.wait(30)
    thread.join(30)
    rig.close()


@in_child()
def test_a_stream_that_is_stuck_ends_the_attempt_to_lend(fake: Fake) -> None:
    device = CoServing.open("cuda:0", pool_bytes=(SLABS + 2) * SLAB, slab_bytes=SLAB)
    device.serving(
        SERVING_KV, slo=SLO(ttft_ms=1, tpot_ms=1), reserve_bytes=0, step_tokens=8, request_tokens=8
    )
    assert device._opened.gpu is not None
    fake.hold(device._opened.gpu.rollout.handle)
    with pytest.raises(Unavailable, match="so nothing can be lent on it"):
        device.rollout(ROLLOUT_KV, limit_bytes=SLAB)
    device.close()


@in_child()
def test_serving_steps_never_wait_for_the_gpu_on_the_host(fake: Fake) -> None:
    rig = Rig()
    quantum = rig.step()
    with rig.serving.step():
        pass
    assert list(rig.serving.blocked_ms) == []
    quantum.__exit__(None, None, None)
    rig.close()


@in_child()
def test_memory_goes_out_and_comes_home_without_a_driver_call(fake: Fake) -> None:
    rig = Rig()
    wait_for(lambda: rig.rollout.ensure(16))
    blocks = rig.rollout.kv.allocator.alloc(16)
    assert blocks is not None
    rig.rollout.on_revoke = lambda _notice: rig.rollout.kv.allocator.free(blocks)
    memory_calls = [line for line in fake.log() if line.startswith("cuMem")]
    free = rig.serving.kv.allocator.free_blocks
    assert rig.serving.ensure(free + SLABS * 8 - 8)  # all but serving's own slab
    assert [line for line in fake.log() if line.startswith("cuMem")] == memory_calls
    rig.close()


@in_child(**MEMOP_MISSING)
def test_without_gates_in_the_stream_the_host_waits_for_each_segment(fake: Fake) -> None:
    rig = Rig()
    assert rig.device.gate_choice.kind is GateKind.HOST
    with rig.step():
        before = fake.calls("cuStreamQuery")
        rig.rollout.gate()
        assert fake.calls("cuStreamQuery") > before
        rig.rollout.finish()
    rig.serving.arrived("a", prompt_tokens=8)
    assert isinstance(rig.rollout.try_step(timeout_ms=20), Refusal)
    rig.serving.finished("a")
    rig.close()
    assert fake.faults() == []


@in_child()
def test_stream_that_a_parked_borrower_stalls_costs_the_gates_in_streams(fake: Fake) -> None:
    device = CoServing.open("cuda:0", pool_bytes=4 * SLAB, slab_bytes=SLAB)
    device.serving(
        SERVING_KV,
        slo=SLO(ttft_ms=1000, tpot_ms=1000),
        reserve_bytes=SLAB,
        step_tokens=32,
        request_tokens=64,
    )
    gpu = device._opened.gpu
    assert gpu is not None
    copies = CudaStream.create(gpu.device, highest=False)
    fake.hold(copies.handle)
    device.rollout(ROLLOUT_KV, limit_bytes=SLAB, serving_streams=[copies.handle])
    assert device.gate_choice is not None
    assert device.gate_choice.kind is GateKind.HOST
    assert "a parked borrower stalls serving streams: stream number 1" in device.gate_choice.why
    fake.release(copies.handle)
    device.close()


@in_child()
def test_a_gate_that_fails_ends_lending_and_not_serving(fake: Fake) -> None:
    rig = Rig()
    with rig.step():
        fake.fail("cuStreamBatchMemOp", code=LAUNCH_FAILED)
        with pytest.raises(Unavailable, match="cuStreamBatchMemOp"):
            rig.rollout.gate()
    assert rig.device.gave_back is not None
    assert "cuStreamBatchMemOp" in rig.device.gave_back
    rig.serving.arrived("a", prompt_tokens=8)
    with rig.serving.step():
        pass
    rig.serving.finished("a")
    rig.close()


@in_child()
def test_kv_is_described_for_torch_and_cupy_and_never_touched_by_the_host(fake: Fake) -> None:
    rig = Rig()
    kv = rig.rollout.kv
    flat, views = kv.flat(), kv.views("float16")
    assert isinstance(flat, DeviceArray)
    about = flat.__cuda_array_interface__
    assert about["data"] == (rig.device.arbiter.pool_address + kv.origin_bytes, False)
    assert about["shape"] == (flat.nbytes,)
    assert len(views) == ROLLOUT_KV.layers
    steps = {b.address - a.address for a, b in itertools.pairwise(views)}
    assert steps == {kv.blocks_per_slab * ROLLOUT_KV.layer_block_bytes}
    ends = {view.address + view.nbytes for view in views}
    assert max(ends) <= rig.device.arbiter.pool_address + rig.device.arbiter.pool_bytes
    with pytest.raises(InvalidArgument):
        rig.device.arbiter.pool_view()
    rig.close()


@in_child()
def test_a_pool_that_does_not_fit_is_said_and_leaves_nothing(fake: Fake) -> None:
    fake.fail("cuMemCreate", code=OUT_OF_MEMORY)
    device = CoServing.open("cuda:0", pool_bytes=(SLABS + 2) * SLAB, slab_bytes=SLAB)
    with pytest.raises(MemoryError, match="cuMemCreate"):
        device.serving(
            SERVING_KV, slo=SLO(ttft_ms=1, tpot_ms=1), reserve_bytes=0, request_tokens=64
        )
    device.close()
    del device
    gc.collect()
    assert fake.live() == []


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:0,1", "CPU"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="must be 'cpu', 'cuda' or 'cuda:<n>', got"):
        CoServing.open(name, pool_bytes=64 * MIB)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_a_gpu_is_refused_in_one_sentence() -> None:
    with pytest.raises(Unavailable, match="no CUDA driver"):
        CudaDriver.open()
    with pytest.raises(Unavailable, match="no CUDA driver"):
        CoServing.open("cuda:0", pool_bytes=64 * MIB)
