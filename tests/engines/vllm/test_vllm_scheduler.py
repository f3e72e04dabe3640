"""vLLM's real scheduler lives on rose's pool: it decides as on its own, and serving never waits."""

import random
from pathlib import Path
from typing import Any

import pytest

from rose.executor import RolloutLane
from tests.engines.vllm.rig import BLOCKS_PER_SLAB, GEOMETRY, SLAB_BYTES, open_device, serve

pytestmark = pytest.mark.peer

DECODES = 200
SLABS = 600
# A decode of the borrower: 5 blocks at the end of its prompt, 9 at its own end.
ROLLOUT_PROMPT, ROLLOUT_TOKENS = 72, 68
URGENT_PROMPT, URGENT = 1024, 6
REQUEST_TOKENS = 2048


def test_it_runs(vllm, log_path: Path) -> None:
    from rose.engines.vllm.rollout_scheduler import RolloutScheduler
    from rose.engines.vllm.serving_scheduler import ServingScheduler

    with open_device(log_path, slabs=SLABS, regrow_after_ms=0) as device:
        lane = serve(device, reserve_slabs=8, request_tokens=REQUEST_TOKENS)
        rollout = device.rollout(GEOMETRY, limit_bytes=SLABS * SLAB_BYTES)
        blocks = SLABS * BLOCKS_PER_SLAB + 1
        serving = ServingScheduler(lane, **vllm.of_scheduler(blocks=blocks))
        borrower = RolloutScheduler(rollout, **vllm.of_scheduler(blocks=blocks))
        rng = random.Random(3)
        for i in range(DECODES):
            borrower.add_request(
                vllm.request(
                    str(i),
                    [rng.randrange(1000) for _ in range(ROLLOUT_PROMPT)],
                    tokens=ROLLOUT_TOKENS,
                )
            )
        for _ in range(4):
            plan = vllm.step(borrower)
            print(
                len(plan.num_scheduled_tokens),
                plan.total_num_scheduled_tokens,
                device.arbiter.snapshot().partitions[1].held,
                device.arbiter.snapshot().unowned,
            )
        for i in range(URGENT):
            serving.add_request(
                vllm.request(f"u{i}", [rng.randrange(1000) for _ in range(URGENT_PROMPT)], tokens=8)
            )
        plan = vllm.step(serving)
        print(
            plan.num_scheduled_tokens,
            [
                vars(r) if 0 else (r.slabs, r.slabs_returned, r.latency_ms)
                for r in device.lender.history
            ],
            len(borrower.running),
            borrower.preempted_tokens,
        )
        print(device.arbiter.snapshot().partitions[1].held)
        for _ in range(100):
            plan = vllm.step(borrower)
        print(len(borrower.running), len(borrower.waiting))
