"""Whatever comes in whatever order, both schedulers keep their promises and the books balance."""

import random
import time
from typing import Any

import pytest

from rose.slo.verify import verify_log
from tests.engines.vllm.rig import BLOCK_TOKENS, REQUEST_TOKENS, Pair

pytestmark = pytest.mark.peer

SLABS = 48
EVENTS = 400
T_MS = 200.0


class Storm:
    """Random requests, aborts, steps that end and steps that are aborted."""

    def __init__(self, vllm, pair: Pair, seed: int) -> None:
        self.vllm, self.pair = vllm, pair
        self.rng = random.Random(seed)
        self.wanted: dict[str, int] = {}
        self.in_flight: Any = None
        self.added = 0

    def add(self, scheduler: Any, kind: str, longest: int) -> None:
        self.added += 1
        name = f"{kind} {self.added}"
        length = self.rng.randint(1, longest)
        # A third of the prompts begin alike.
        prompt = [1 if self.rng.random() < 1 / 3 else self.rng.randrange(900)] * length
        tokens = self.rng.randint(1, 60)
        self.wanted[name] = tokens
        scheduler.add_request(self.vllm.request(name, prompt, tokens=tokens))

    def abort(self, scheduler: Any) -> None:
        from vllm.v1.request import RequestStatus

        if scheduler.requests:
            name = self.rng.choice(list(scheduler.requests))
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            del self.wanted[name]
            self.vllm.tokens_of.pop(name, None)

    def serve(self) -> None:
        """Plan serving's step: nobody waits for the next while the borrower holds a slab."""
        serving = self.pair.serving
        if self.in_flight is not None:
            return  # A pinned step would be waited for, and it is this thread that ends it.
        waiting = {one.request_id for one in serving.waiting}
        plan = self.vllm.step(serving)
        if not waiting <= plan.num_scheduled_tokens.keys():
            assert self.pair.device.arbiter.snapshot().partitions[1].held == 0

    def roll(self) -> None:
        if self.in_flight is None:
            self.in_flight = self.pair.borrower.schedule()
        elif self.rng.random() < 0.3:
            self.pair.borrower.step_aborted(self.in_flight)
            self.in_flight = None
        else:
            self.vllm.run(self.pair.borrower, self.in_flight)
            self.in_flight = None

    def blow(self) -> None:
        pair = self.pair
        actions = {
            lambda: self.add(pair.serving, "serving", REQUEST_TOKENS // 2): 1,
            lambda: self.add(pair.borrower, "rollout", 12 * BLOCK_TOKENS): 4,
            lambda: self.abort(pair.serving): 0.3,
            lambda: self.abort(pair.borrower): 0.5,
            self.serve: 6,
            self.roll: 12,
        }
        self.rng.choices(list(actions), list(actions.values()))[0]()

    def check(self) -> None:
        with self.pair.borrower._books:  # The keeper may take slabs back at any time.
            self.check_blocks()
        self.pair.device.arbiter.check_invariants()

    def check_blocks(self) -> None:
        for scheduler in (self.pair.serving, self.pair.borrower):
            owners: dict[int, str] = {}
            for name in scheduler.requests:
                (ids,) = scheduler.kv_cache_manager.get_block_ids(name)
                blocks = scheduler.kv_cache_manager.coordinator.get_blocks(name)[0]
                for block, one in zip(ids, blocks, strict=True):
                    assert one.ref_cnt > 0
                    # Two requests have a block in common only as a cached prefix.
                    assert owners.setdefault(block, name) == name or one.block_hash is not None


@pytest.mark.parametrize("seed", range(6))
def test_every_request_that_is_not_aborted_gets_all_its_tokens(vllm, log_path, seed: int) -> None:
    # A storm that counted for a minute would leave the borrower nothing.
    knobs = {"reserve_slabs": 4, "revoke_ms": T_MS, "arrival_memory_ms": 1.0}
    with Pair(vllm, log_path, slabs=SLABS, request_tokens=256, **knobs) as pair:
        storm = Storm(vllm, pair, seed)
        for _ in range(EVENTS):
            storm.blow()
            storm.check()
        while storm.in_flight is not None:
            storm.roll()
        time.sleep(2 * T_MS / 1000)  # The arrivals of the storm count within T.
        pair.finish()
        assert vllm.tokens_of == storm.wanted
        history = pair.device.lender.collector.history
        assert sum(one.slabs_returned for one in history) > 0
        assert sum(one.slabs_fenced for one in history) == 0
        assert pair.borrower.preempted_tokens > 0
    assert verify_log(log_path).violations == []
