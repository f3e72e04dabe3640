"""The borrower's loop, driven by hand."""

import pytest

from rose.engines.transformers.cache import SlabCache
from rose.errors import StepAborted
from tests.engines.pair import Client, Pair
from tests.waiting import wait_for


class Stepper:
    """Drives the borrower's loop by hand, so that a test decides what happens at which gate."""

    def __init__(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pair = pair
        self.engine = pair.rollout
        self.processor = pair.rollout.processor
        # As `start` does, without the thread.
        self.engine.manager.background_thread_status.clear()
        self.client = Client(pair.rollout, "rollout", 5)
        self.gates = 0
        self.abort_at: int | None = None
        stock = pair.rollout_lane.gate

        def gate() -> None:
            self.gates += 1
            if self.gates == self.abort_at:
                raise StepAborted("planted")
            stock()

        monkeypatch.setattr(pair.rollout_lane, "gate", gate)

    def prepare(self) -> None:
        wait_for(self.processor.prepare_next_batch)

    def step(self, *, abort_at: int | None = None) -> None:
        """Run one step; `abort_at` is the gate at which it is aborted, counted from 1."""
        self.prepare()
        self.gates, self.abort_at = 0, abort_at
        self.processor._generation_step(self.engine.manager.model)
        self.processor.update_batch()
        self.abort_at = None

    def finish(self) -> None:
        while self.client.waiting:
            self.step()

    def state(self, name: str):
        return self.processor.scheduler.active_requests[name]


def blocks_of(cache: SlabCache, name: str) -> list[int]:
    """The blocks with pages of a request."""
    return list(
        dict.fromkeys(
            page // allocator.blocks_per_sector
            for allocator in cache.cache_allocators.values()
            for page in allocator.block_table.get(name, ())
        )
    )
