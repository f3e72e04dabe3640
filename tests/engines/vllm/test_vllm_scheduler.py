"""Urgent prompts beside 200 decodes, planned by vLLM's real scheduler: with rose nobody waits."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rose.slo.verify import verify_log
from tests.engines.vllm.rig import BLOCK_TOKENS, BLOCKS_PER_SLAB, Pair

pytestmark = pytest.mark.peer

DECODES, ROLLOUT_PROMPT, ROLLOUT_TOKENS = 200, 72, 340
URGENT, URGENT_PROMPT, URGENT_TOKENS = 6, 1024, 4
URGENT_BLOCKS = URGENT_PROMPT // BLOCK_TOKENS
# Half of what the decodes want in the end, so the pool is full long before they are through.
SLABS = DECODES * (ROLLOUT_PROMPT + ROLLOUT_TOKENS) // BLOCK_TOKENS // BLOCKS_PER_SLAB // 2
PATIENCE_STEPS = 2000


def prompts(count: int, tokens: int, *, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(1000) for _ in range(tokens)] for _ in range(count)]


def decodes(vllm, **options: Any) -> list[Any]:
    return [
        vllm.request(f"rollout {i}", prompt, tokens=ROLLOUT_TOKENS, **options)
        for i, prompt in enumerate(prompts(DECODES, ROLLOUT_PROMPT, seed=3))
    ]


def urgent(vllm, **options: Any) -> list[Any]:
    return [
        vllm.request(f"urgent {i}", prompt, tokens=URGENT_TOKENS, **options)
        for i, prompt in enumerate(prompts(URGENT, URGENT_PROMPT, seed=5))
    ]


def fill(vllm, scheduler: Any) -> None:
    """Decode until the memory is full, which is when vLLM preempts one of them for another."""
    while not scheduler.running or scheduler.waiting:
        vllm.step(scheduler)
    while not scheduler.waiting:
        vllm.step(scheduler)
    assert DECODES > len(scheduler.running) > 0.95 * DECODES


def steps_waited(requests: list[Any], add: Callable[[Any], None], step: Callable[[], Any]):
    """Return how many steps each request was not part of before its first."""
    for request in requests:
        add(request)
    waited: dict[str, int] = {}
    for count in range(PATIENCE_STEPS):
        for name in step().num_scheduled_tokens:
            waited.setdefault(name, count)
        if all(request.request_id in waited for request in requests):
            return [waited[request.request_id] for request in requests]
    raise AssertionError("some are still waiting")


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_urgent_prompts_wait_for_decodes_in_a_stock_engine(vllm, policy: str) -> None:
    blocks = SLABS * BLOCKS_PER_SLAB + 1
    stock = vllm.scheduler(**vllm.of_scheduler(blocks=blocks, policy=policy))
    for request in decodes(vllm, priority=1):
        stock.add_request(request)
    fill(vllm, stock)
    waited = steps_waited(urgent(vllm), stock.add_request, lambda: vllm.step(stock))
    print(f"{policy}: {waited}")
    assert min(waited) > 0


def test_urgent_prompts_wait_no_step_on_rose(vllm, log_path: Path) -> None:
    with Pair(vllm, log_path, slabs=SLABS) as pair:
        borrower, serving = pair.borrower, pair.serving
        for request in decodes(vllm):
            borrower.add_request(request)
        fill(vllm, borrower)
        # More than serving was kept free for it: the rest must come from the borrower.
        assert serving.kv_cache_manager.block_pool.get_num_free_blocks() < URGENT * URGENT_BLOCKS
        preempted, own = borrower.preempted_tokens, len(borrower.waiting)

        def step() -> Any:
            vllm.step(borrower)
            return vllm.step(serving)

        assert steps_waited(urgent(vllm), serving.add_request, step) == [0] * URGENT
        # That took slabs back, in one way only: some decodes were requeued, with every token.
        assert sum(one.slabs_returned for one in pair.device.lender.collector.history) > 0
        assert borrower.preempted_tokens > preempted
        assert own < len(borrower.waiting) < DECODES
        assert all(one.num_output_tokens > 0 for one in borrower.requests.values())
        pair.finish()
        assert len(pair.tokens_of) == DECODES + URGENT
        assert all(pair.tokens_of[f"rollout {i}"] == ROLLOUT_TOKENS for i in range(DECODES))
        assert all(pair.tokens_of[f"urgent {i}"] == URGENT_TOKENS for i in range(URGENT))
    verification = verify_log(log_path)
    assert verification.violations == []
    assert verification.verified == verification.granted > 0
