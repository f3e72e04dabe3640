"""One GPU shared by two engines that are plain threads: a loan, a step, an abort, a return."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from rose.errors import StepAborted
from rose.executor import SLO, CoServing, KVGeometry, Policy, Quantum
from rose.executor.revocation import Notice
from rose.slo.verify import verify_log
from rose.units import MIB
from tests.known_model import confirm
from tests.waiting import wait_for

pytestmark = pytest.mark.gpu

SLAB: Final = 2 * MIB
SLABS: Final = 16
KV: Final = KVGeometry.from_attention(
    layers=2, kv_heads=4, head_dim=64, dtype_bytes=2, block_tokens=16
)
BLOCKS: Final = KV.blocks_per_slab(SLAB)
LONG_S: Final = 20.0
SEGMENTS: Final = 6
# Targets that leave room for any quantum, and deadlines that a busy host keeps.
CALM: Final = {
    "revoke_ms": 2000.0,
    "blocking_ms": 5000.0,
    "heartbeat_ttl_ms": 5000.0,
    "latency_prior_ms": (500.0, 0.0, 0.0, 0.0, 0.0),
    "regrow_after_ms": 1.0,
}


class Rig:
    """A device with both lanes; the borrower frees what lies in a slab that is leaving."""

    def __init__(self, log_path: Path) -> None:
        import torch

        from rose.engines.torch import as_tensor, stream_of

        self.log_path = log_path
        place = torch.device("cuda:0")
        self.device = CoServing.open(
            "cuda:0",
            pool_bytes=(SLABS + 2) * SLAB,
            slab_bytes=SLAB,
            log_path=log_path,
            policy=Policy(**CALM),
        )
        self.serving = self.device.serving(
            KV,
            slo=SLO(ttft_ms=20_000, tpot_ms=1000),
            reserve_bytes=2 * SLAB,
            step_tokens=64,
            request_tokens=256,
        )
        confirm(self.device._parts.model, 64)
        self.rollout = self.device.rollout(KV, limit_bytes=SLABS * SLAB)
        self.rollout.on_revoke = self.on_revoke
        self.held: list[int] = []
        self.lock = threading.Lock()
        self.serving_stream = stream_of(self.serving.stream or 0, place)
        self.rollout_stream = stream_of(self.rollout.stream or 0, place)
        self.views = [as_tensor(one, place) for one in self.rollout.kv.views(np.int16)]
        # What a segment launches is loaded before anything is parked.
        with torch.cuda.stream(self.rollout_stream):
            self.index = torch.zeros(1, dtype=torch.int64, device=place)
            self.views[0].index_fill_(0, self.index, 0)
            torch.cuda._sleep(1000)
        self.rollout_stream.synchronize()

    def on_revoke(self, _notice: Notice) -> None:
        self.evacuate()

    def evacuate(self) -> None:
        with self.lock:
            leaving = self.rollout.leaving()
            allocator = self.rollout.kv.allocator
            slabs = allocator.slabs_of(self.held)
            found = zip(self.held, slabs, strict=True)
            gone = [block for block, slab in found if slab in leaving]
            self.held = [block for block in self.held if block not in gone]
            allocator.free(gone)

    def borrow(self, blocks: int) -> list[int]:
        wait_for(lambda: self.rollout.ensure(blocks))
        return list(self.rollout.kv.allocator.alloc(blocks))

    def quantum(self) -> Quantum:
        end_s = time.monotonic() + LONG_S
        while time.monotonic() < end_s:
            answer = self.rollout.try_step(timeout_ms=100)
            if isinstance(answer, Quantum):
                return answer
        raise AssertionError("no quantum was granted")

    def slabs_of_rollout(self) -> int:
        return int(self.device.arbiter.snapshot().partitions[1].held)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "certificates.log")
    yield made
    made.device.close()
    made.device.arbiter.check_invariants()
    assert made.device.gave_back is None
    answer = verify_log(made.log_path)
    assert answer.violations == []
    assert answer.verified == answer.granted


def step(rig: Rig, blocks: list[int], value: int, *, cycles: int = 200_000) -> None:
    """Write `value` into every block, one layer in each segment, and wait for the end."""
    import torch

    index = torch.tensor(blocks, device=rig.index.device)
    torch.cuda.current_stream().synchronize()
    with rig.quantum():
        pin = rig.rollout.pin(blocks)
        try:
            with torch.cuda.stream(rig.rollout_stream):
                for segment in range(SEGMENTS):
                    rig.views[segment % KV.layers].index_fill_(0, index, value)
                    torch.cuda._sleep(cycles)
                    if segment + 1 < SEGMENTS:
                        rig.rollout.gate()
                rig.rollout.finish()
            # Nothing of the step waits at a gate any more.
            rig.rollout_stream.synchronize()
        finally:
            rig.rollout.unpin(pin)


def test_graph_with_gates_runs_as_a_step(rig: Rig) -> None:
    import torch
    from torch import nn

    from rose.engines.torch import captured_gates, gated_graph

    if not rig.rollout.has_stream_gates:
        pytest.skip("this GPU has no gate in streams")

    class Layer(nn.Module):
        def forward(self, total: torch.Tensor) -> torch.Tensor:
            return total.add_(1)

    model = nn.Module()
    model.layers = nn.ModuleList([Layer() for _ in range(SEGMENTS)])

    def run() -> None:
        for layer in model.layers:
            layer(total)

    total = torch.zeros(1, device=rig.index.device)
    with torch.cuda.stream(rig.rollout_stream):
        run()  # loads the kernel: a capture must not
    torch.cuda.synchronize()
    total.zero_()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with (
        captured_gates(rig.rollout, model, every=2),
        torch.cuda.graph(graph, stream=rig.rollout_stream, capture_error_mode="thread_local"),
    ):
        run()
    step_graph = gated_graph(rig.rollout, graph)
    before = rig.device.gate.passed
    for steps in (1, 2, 3):
        with rig.quantum():
            rig.rollout.launch(step_graph)
            rig.rollout.finish()
        assert float(total.item()) == steps * SEGMENTS
    assert rig.device.gate.passed - before >= 3 * (SEGMENTS // 2 + 2)


def test_a_gate_was_chosen_by_trying(rig: Rig) -> None:
    choice = rig.device.gate_choice
    print(choice.kind, choice.why)
    assert choice.why
    assert rig.serving.stream != rig.rollout.stream


def test_a_step_writes_borrowed_memory(rig: Rig) -> None:
    blocks = rig.borrow(3 * BLOCKS)
    rig.held = list(blocks)
    assert rig.slabs_of_rollout() >= 3
    for value in (11, 12):
        step(rig, blocks, value)
        for view in rig.views:
            assert bool((view[blocks] == value).all())
    assert rig.device.gate.stats().segments >= SEGMENTS


def test_idle_slabs_come_home_at_once(rig: Rig) -> None:
    blocks = rig.borrow(4 * BLOCKS)
    rig.held = list(blocks)
    step(rig, blocks, 5)
    everything = SLABS * BLOCKS - BLOCKS
    assert rig.serving.ensure(everything)
    assert rig.slabs_of_rollout() <= 1
    assert len(rig.held) <= BLOCKS


def test_serving_works_while_a_step_is_parked_and_takes_its_memory(rig: Rig) -> None:
    import torch

    blocks = rig.borrow(4 * BLOCKS)
    outcome: list[str] = []
    index = torch.tensor(blocks, device=rig.index.device)
    total = torch.zeros(1, device=rig.index.device)
    with torch.cuda.stream(rig.serving_stream):
        total.add_(1)
    torch.cuda.synchronize()
    in_step = threading.Event()

    def run() -> None:
        with rig.quantum():
            pin = rig.rollout.pin(blocks)
            try:
                with torch.cuda.stream(rig.rollout_stream):
                    while True:
                        rig.views[0].index_fill_(0, index, 9)
                        torch.cuda._sleep(200_000)
                        in_step.set()
                        rig.rollout.gate()
            except StepAborted:
                outcome.append("aborted")
            finally:
                rig.rollout_stream.synchronize()  # an abort has drained it
                rig.rollout.unpin(pin)
                with rig.lock:
                    rig.held += blocks
                rig.evacuate()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert in_step.wait(LONG_S)
        rig.serving.arrived("request", prompt_tokens=32)
        # Parked: the borrower's stream stands, serving's goes on.
        time.sleep(0.05)
        passed = rig.device.gate.passed
        done = torch.cuda.Event()
        for _ in range(20):
            with torch.cuda.stream(rig.serving_stream):
                total.add_(1)
                done.record()
            wait_for(done.query)
        assert rig.device.gate.passed == passed
        assert rig.serving.ensure(SLABS * BLOCKS - BLOCKS)
    finally:
        rig.serving.finished("request")
        thread.join(LONG_S)
    assert not thread.is_alive()
    assert outcome == ["aborted"]
    assert rig.slabs_of_rollout() <= 1
    assert float(total.item()) == 21.0


def test_memory_comes_back_to_the_borrower(rig: Rig) -> None:
    blocks = rig.borrow(2 * BLOCKS)
    rig.held = list(blocks)
    assert rig.serving.ensure(SLABS * BLOCKS - BLOCKS)
    rig.serving.settle()
    again = rig.borrow(2 * BLOCKS)
    step(rig, again, 3)
    assert bool((rig.views[1][again] == 3).all())
    with rig.lock:
        rig.held += again
