"""Urgent prompts beside 200 decodes, planned by vLLM's real scheduler: with rose nobody waits."""

from pathlib import Path

import pytest

from rose.slo.verify import verify_log
from tests.engines.vllm.rig import Pair
from tests.engines.vllm.urgent import (
    DECODES,
    ROLLOUT_TOKENS,
    SLABS,
    URGENT,
    URGENT_BLOCKS,
    URGENT_TOKENS,
    fill_borrower,
    waited_on_rose,
    waited_on_stock,
)

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_urgent_prompts_wait_for_decodes_in_a_stock_engine(vllm, policy: str) -> None:
    assert min(waited_on_stock(vllm, policy=policy)) > 0


def test_urgent_prompts_wait_no_step_on_rose(vllm, log_path: Path) -> None:
    with Pair(vllm, log_path, slabs=SLABS) as pair:
        borrower, serving = pair.borrower, pair.serving
        fill_borrower(vllm, pair)
        # More than serving was kept free for it: the rest must come from the borrower.
        assert serving.kv_cache_manager.block_pool.get_num_free_blocks() < URGENT * URGENT_BLOCKS
        preempted, own = borrower.preempted_tokens, len(borrower.waiting)
        assert waited_on_rose(vllm, pair) == [0] * URGENT
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
