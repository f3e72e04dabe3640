"""All orders of calls on both lanes, in one thread: the books, the bytes and the log stay right.

Every tenant signs the blocks it gets. A signature that changes means that two tenants wrote to the
same bytes, whatever the books say.
"""

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rose._core import Grant
from rose.errors import StepAborted
from rose.executor import Quantum, Refusal, StepBatch, Ticket
from tests.executor.conftest import SLAB, SLABS, Rig

RESERVE = 2


class Tenant:
    """The blocks one side holds, signed."""

    def __init__(self, kv, first_sign: int) -> None:
        self.kv = kv
        self.flat = kv.flat()
        self.sign = first_sign
        self.signs: dict[int, int] = {}

    def bytes_of(self, block: int) -> np.ndarray:
        size = self.kv.geometry.block_bytes
        return self.flat[block * size : (block + 1) * size]

    def take(self, blocks: list[int]) -> None:
        for block in blocks:
            assert block not in self.signs
            self.sign = (self.sign + 2) % 256
            self.signs[block] = self.sign
            self.bytes_of(block)[:] = self.sign

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            del self.signs[block]
        self.kv.allocator.free(blocks)

    def check(self) -> None:
        for block, sign in self.signs.items():
            assert (self.bytes_of(block) == sign).all(), f"block {block} was written by another"


class ExecutorMachine(RuleBasedStateMachine):
    """Both engines of a device, as one driver."""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        # Nothing runs by itself: `tend` is a rule. T is short, because nobody else could end a
        # step that serving waits for.
        self.rig = Rig(
            Path(self.folder.name) / "log",
            reserve_slabs=RESERVE,
            revoke_ms=2.0,
            regrow_after_ms=0.0,
            tend_every_ms=1e6,
            heartbeat_ttl_ms=1e6,
            lease_ttl_ms=1e6,
        )
        self.rig.stop_keeper()  # nor does it when it is rung
        self.rig.rollout.on_revoke = self.on_revoke
        self.serving = Tenant(self.rig.serving.kv, 0)
        self.rollout = Tenant(self.rig.rollout.kv, 1)
        self.live: list[str] = []
        self.names = 0
        self.quantum: Quantum | None = None
        self.pin: int | None = None
        self.pinned: list[int] = []

    def leaving_now(self) -> list[int]:
        leaving = self.rig.rollout.leaving()
        blocks = [block for block in self.rollout.signs if block not in self.pinned]
        slabs = self.rollout.kv.allocator.slabs_of(blocks)
        return [block for block, slab in zip(blocks, slabs, strict=True) if slab in leaving]

    def on_revoke(self, _notice) -> None:
        self.rollout.give(self.leaving_now())

    # ---- serving

    @rule(tokens=st.integers(1, 64))
    def arrive(self, tokens: int) -> None:
        self.names += 1
        self.live.append(f"request-{self.names}")
        self.rig.serving.arrived(self.live[-1], prompt_tokens=tokens)
        assert not self.rig.device.gate.is_open()

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99))
    def finish(self, which: int) -> None:
        self.rig.serving.finished(self.live.pop(which % len(self.live)))

    @rule(blocks=st.integers(0, 40))
    def serve(self, blocks: int) -> None:
        # The segment that is running ends by itself within a real step; here it ends now.
        self.rig.device.gate.leave()
        with self.rig.serving.step(StepBatch(1, 8, 8)):
            assert not self.rig.device.gate.is_running()
            if self.rig.serving.ensure(blocks):
                self.serving.take(self.rig.serving.alloc(blocks))
                self.serving_has_enough_or_all_is_coming()

    @rule(blocks=st.integers(0, 5))
    def serve_between_steps(self, blocks: int) -> None:
        self.rig.device._tend()
        taken = self.rig.serving.alloc(blocks)
        if taken is not None:
            self.serving.take(taken)
        self.serving_has_enough_or_all_is_coming()

    def serving_has_enough_or_all_is_coming(self) -> None:
        """What serving could need is there, or on its way, or nothing is lent any more."""
        rig = self.rig
        now = rig.device.arbiter.snapshot()
        serving, rollout = now.partitions
        blocks_per_slab = rig.serving.kv.blocks_per_slab
        there = serving.free_blocks + now.unowned * blocks_per_slab
        coming = rollout.in_revocation * blocks_per_slab
        is_all = rollout.held == rollout.in_revocation
        assert is_all or there + coming >= rig.device.lender.supply.demand_blocks

    @rule(tokens=st.integers(1, 200), part=st.floats(0, 1))
    def serving_ticket(self, tokens: int, part: float) -> None:
        ticket = self.rig.serving.reserve(tokens)
        if isinstance(ticket, Ticket):
            self.serving.take(ticket.commit(int(part * -(-tokens // 16))))
            if part < 1:
                ticket.cancel()

    @rule(part=st.floats(0, 1))
    def serving_frees(self, part: float) -> None:
        blocks = list(self.serving.signs)
        self.serving.give(blocks[: int(part * len(blocks))])
        self.rig.serving.settle()

    @rule()
    def tend(self) -> None:
        self.rig.device._tend()

    # Mostly all of it, or little would be lent at all.
    @rule(slabs=st.sampled_from((0, 3, 8, *[SLABS] * 3)))
    def cap(self, slabs: int) -> None:
        self.rig.device.lend_at_most(slabs * SLAB, ttl_ms=math.inf)
        self.rig.device._tend()
        rollout = self.rig.device.arbiter.snapshot().partitions[1]
        assert rollout.held - rollout.in_revocation <= slabs

    # ---- the borrower

    @rule(blocks=st.integers(1, 150))
    def grow(self, blocks: int) -> None:
        before = self.rig.counts()
        if isinstance(self.rig.device.lender.grow(blocks), Grant):
            assert self.rig.counts()[1] > before[1]
            rollout = self.rig.device.arbiter.snapshot().partitions[1]
            assert rollout.held + rollout.quarantined <= self.rig.device.lender.cap.slabs
        else:
            assert self.rig.counts()[1] == before[1]

    @rule(blocks=st.integers(0, 60))
    def roll_out(self, blocks: int) -> None:
        if self.rig.rollout.ensure(blocks):
            self.rollout.take(self.rig.rollout.kv.allocator.alloc(blocks))

    @rule(tokens=st.integers(1, 200))
    def rollout_ticket(self, tokens: int) -> None:
        ticket = self.rig.rollout.reserve(tokens)
        if isinstance(ticket, Ticket):
            self.rig.serving.ensure(64)  # may empty the ticket: it holds no data
            blocks = ticket.commit(1)
            if not isinstance(blocks, Refusal):
                self.rollout.take(blocks)
            if isinstance(blocks, Refusal) or tokens > 8:
                ticket.cancel()

    # Whether a step began depends on the creditor's thread, so no precondition may: which rules
    # Hypothesis can choose from must not depend on time.

    @rule(part=st.floats(0, 1))
    def begin_step(self, part: float) -> None:
        if self.quantum is not None:
            return
        quantum = self.rig.rollout.try_step(timeout_ms=20.0)
        if isinstance(quantum, Quantum):
            assert self.live == []
            self.quantum = quantum
            blocks = list(self.rollout.signs)
            self.pinned = blocks[: int(part * len(blocks))]
            self.pin = self.rig.rollout.pin(self.pinned)

    @rule()
    def gate(self) -> None:
        if self.quantum is None or self.live:
            return
        try:
            self.rig.rollout.gate()
        except StepAborted:
            self.end_step()

    @rule()
    def end_step(self) -> None:
        if self.quantum is None:
            return
        self.pinned = []
        self.rig.rollout.unpin(self.pin)
        self.rollout.give(self.leaving_now())
        self.quantum.__exit__(None, None, None)
        self.quantum = None

    @rule(part=st.floats(0, 1))
    def rollout_frees(self, part: float) -> None:
        if self.quantum is not None:
            return
        blocks = list(self.rollout.signs)
        self.rollout.give(blocks[: int(part * len(blocks))])

    # ---- what always holds

    @invariant()
    def books_are_right(self) -> None:
        rig = self.rig
        assert rig.device.gave_back is None
        rig.device.arbiter.check_invariants()
        serving, rollout, unowned, quarantined = rig.counts()
        assert serving + rollout + unowned + quarantined == SLABS
        # Serving can have its reserve now, whatever the borrower does.
        assert serving + unowned >= RESERVE
        assert not (self.live and rig.device.gate.is_open())

    @invariant()
    def nobody_wrote_to_the_bytes_of_another(self) -> None:
        self.serving.check()
        self.rollout.check()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        if self.quantum is not None:
            self.end_step()
        for name in self.live:
            self.rig.serving.finished(name)
        self.rollout.give(list(self.rollout.signs))
        assert self.rig.counts()[3] == 0  # all that was late has come home
        self.serving.give(list(self.serving.signs))
        assert self.rig.serving.ensure(4 * SLABS)  # and serving can have all there is
        self.rig.close()
        self.folder.cleanup()


TestExecutorMachine = ExecutorMachine.TestCase
TestExecutorMachine.settings = settings(stateful_step_count=40)
