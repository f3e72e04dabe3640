"""One device with fake engines: plain threads that call the lanes, on the real core."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rose._core import Clock, LedgerView, SlabRecord
from rose.errors import StepAborted, Unavailable
from rose.executor import SLO, CoServing, KVGeometry, Policy, Quantum, Reason
from rose.executor.revocation import Notice, Revocation
from rose.memory import Isolation
from rose.slo.verify import verify_log
from tests.known_model import confirm
from tests.waiting import LONG_S, wait_for

SLAB = 4096
SLABS = 16
HEADERS = 2
SERVING_KV = KVGeometry(layers=1, block_tokens=16, bytes_per_token=64)  # 4 blocks in a slab
ROLLOUT_KV = KVGeometry(layers=1, block_tokens=8, bytes_per_token=64)  # 8 blocks in a slab

# Deadlines that a busy machine does not miss, targets that leave room for any quantum, and an
# engine so slow that it takes little within a deadline.
CALM = {
    "revoke_ms": 2000.0,
    "blocking_ms": 5000.0,
    "heartbeat_ttl_ms": 5000.0,
    "lease_ttl_ms": 600_000.0,
    "latency_prior_ms": (500.0, 0.0, 0.0, 0.0, 0.0),
}


class Rig:
    """A device with both lanes, and what a borrower's engine would remember."""

    def __init__(
        self,
        log_path: Path,
        *,
        lends: bool = True,
        reserve_slabs: int | None = 2,
        limit_slabs: int = SLABS,
        tpot_ms: float = 1000,
        slowdown: float = 0.0,
        clock: Clock | None = None,
        isolation: Isolation = "shared",
        is_known: bool = True,
        **knobs,
    ):
        self.log_path = log_path
        self.device = CoServing.open(
            "cpu",
            pool_bytes=(SLABS + HEADERS) * SLAB,
            slab_bytes=SLAB,
            log_path=log_path,
            isolation=isolation,
            policy=Policy(**{**CALM, **knobs}),
            clock=clock,
        )
        self.serving = self.device.serving(
            SERVING_KV,
            slo=SLO(ttft_ms=20_000, tpot_ms=tpot_ms, slowdown=slowdown),
            reserve_bytes=None if reserve_slabs is None else reserve_slabs * SLAB,
            step_tokens=32,
            request_tokens=64,
        )
        if is_known:
            confirm(self.device._parts.model, 32)
        if lends:
            self.rollout = self.device.rollout(ROLLOUT_KV, limit_bytes=limit_slabs * SLAB)
            self.rollout.on_revoke = self.on_revoke
        self.held: list[int] = []  # the borrower's blocks that no step pins
        self.threads: list[threading.Thread] = []

    def stop_keeper(self) -> None:
        """From here on nothing is looked after but by the calls of a test."""
        self.device._parts.keeper.stop()

    def on_revoke(self, _notice: Notice) -> None:
        """Free all blocks in slabs that are leaving."""
        self.evacuate()

    @property
    def revocations(self) -> list[Revocation]:
        """All revocations so far, settled ones first."""
        collector = self.device.lender.collector
        return [*collector.history, *collector.under_way()]

    def evacuate(self) -> None:
        leaving = self.rollout.leaving()
        allocator = self.rollout.kv.allocator
        slabs = allocator.slabs_of(self.held)
        found = zip(self.held, slabs, strict=True)
        gone = [block for block, slab in found if slab in leaving]
        self.held = [block for block in self.held if block not in gone]
        allocator.free(gone)

    def borrow(self, blocks: int) -> list[int]:
        """Lend the borrower memory for `blocks` blocks, and take them."""
        wait_for(lambda: self.rollout.ensure(blocks))
        return self.rollout.kv.allocator.alloc(blocks)

    def counts(self) -> tuple[int, int, int, int]:
        """Slabs: serving's, the borrower's, unowned, quarantined."""
        now = self.device.arbiter.snapshot()
        held = [partition.held for partition in now.partitions]
        return held[0], held[1], now.unowned, now.quarantined

    def records(self) -> list[SlabRecord]:
        """Every slab as the ledger has it."""
        fd = self.device.arbiter.share_ledger()
        try:
            return LedgerView.open(fd).records()
        finally:
            os.close(fd)

    def start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def step_once(self, body: Callable[[], None]) -> None:
        """Run one borrower step, whenever it may start."""
        while True:
            quantum = self.rollout.try_step(timeout_ms=100)
            if isinstance(quantum, Quantum):
                break
            if quantum.reason is Reason.CLOSED:
                return
        with quantum:
            body()

    def close(self) -> None:
        self.device.close()
        for thread in self.threads:
            thread.join(LONG_S)
            assert not thread.is_alive()
        self.device.arbiter.check_invariants()
        verification = verify_log(self.log_path)
        assert verification.violations == []
        assert verification.verified == verification.granted


class ParkedStep:
    """A borrower step that pins `blocks` and stays in its first segment until it may go on."""

    def __init__(self, rig: Rig, blocks: list[int]) -> None:
        self.rig = rig
        self.blocks = blocks
        self.may_go_on = threading.Event()
        self.in_segment = threading.Event()
        self.outcome = ""
        rig.start(self.run)
        assert self.in_segment.wait(LONG_S)

    def run(self) -> None:
        self.rig.step_once(self.body)

    def body(self) -> None:
        pin = self.rig.rollout.pin(self.blocks)
        try:
            self.in_segment.set()
            assert self.may_go_on.wait(LONG_S)
            self.rig.rollout.gate()
            self.outcome = "passed"
        except StepAborted:
            self.outcome = "aborted"
        except Unavailable:
            self.outcome = "closed"
        finally:
            self.rig.rollout.unpin(pin)
            self.rig.held += self.blocks
            self.rig.evacuate()

    def park(self) -> None:
        """Let it run into its gate, which must be closed."""
        self.may_go_on.set()
        wait_for(lambda: not self.rig.device.gate.is_running())


@pytest.fixture
def open_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Open rigs; every one of them ends with an audit of its books and of its log."""
    rigs: list[Rig] = []

    def open_one(**knobs) -> Rig:
        rigs.append(Rig(tmp_path / f"{len(rigs)}.log", **knobs))
        return rigs[-1]

    yield open_one
    for rig in rigs:
        rig.close()
