"""200 decodes and 8 urgent prompts: how many steps each urgent prompt waits for its first one."""

import random
from collections.abc import Callable
from typing import Any

from tests.engines.vllm.rig import BLOCK_TOKENS, BLOCKS_PER_SLAB, Pair

DECODES, ROLLOUT_PROMPT, ROLLOUT_TOKENS = 200, 72, 340
URGENT, URGENT_PROMPT, URGENT_TOKENS = 8, 1024, 4
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


def waited_on_stock(vllm, *, policy: str) -> list[int]:
    """Return the steps that each urgent prompt waits in an engine that has the decodes too."""
    blocks = SLABS * BLOCKS_PER_SLAB + 1
    stock = vllm.scheduler(**vllm.of_scheduler(blocks=blocks, policy=policy))
    for request in decodes(vllm, priority=1):
        stock.add_request(request)
    fill(vllm, stock)
    return steps_waited(urgent(vllm), stock.add_request, lambda: vllm.step(stock))


def fill_borrower(vllm, pair: Pair) -> None:
    """Give the decodes to the borrower, and let them fill its memory."""
    for request in decodes(vllm):
        pair.borrower.add_request(request)
    fill(vllm, pair.borrower)


def waited_on_rose(vllm, pair: Pair) -> list[int]:
    """Return the steps that each urgent prompt waits in an engine whose memory is on loan."""

    def step() -> Any:
        vllm.step(pair.borrower)
        return vllm.step(pair.serving)

    return steps_waited(urgent(vllm), pair.serving.add_request, step)
