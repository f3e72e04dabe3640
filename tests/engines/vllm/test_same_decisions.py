"""With room for all, vLLM decides on rose's pool what it decides on its own."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.vllm.rig import BLOCK_TOKENS, BLOCKS_PER_SLAB, Pair

pytestmark = pytest.mark.peer

SLABS = 600
STEP_TOKENS = 256
SEQUENCES = 6
# Prompts begin with one of these, so that they have much in common.
STEMS = [[stem * 100 + index for index in range(7 * BLOCK_TOKENS)] for stem in range(3)]

actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(0, len(STEMS) - 1),
            st.integers(1, len(STEMS[0])),
            st.integers(0, 40),
            st.integers(1, 30),
        ),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("reset"), st.booleans()),
    ),
    max_size=30,
)


def decided(plan: Any) -> dict[str, Any]:
    """Return what a plan says, the ids of blocks apart."""
    resumed = plan.scheduled_cached_reqs
    return {
        "tokens": plan.num_scheduled_tokens,
        "new": [(one.req_id, one.num_computed_tokens) for one in plan.scheduled_new_reqs],
        "cached": (resumed.req_ids, resumed.num_computed_tokens, resumed.resumed_req_ids),
        "preempted": plan.preempted_req_ids,
        "finished": plan.finished_req_ids,
        "blocks": [
            [len(group) for group in one.block_ids or ()] for one in plan.scheduled_new_reqs
        ],
    }


class Twins:
    """A stock scheduler and one on rose, told the same."""

    def __init__(self, vllm, ours: Any, stock: Any) -> None:
        self.vllm = vllm
        self.both = (ours, stock)
        self.names: list[str] = []

    def add(self, stem: int, shared: int, own: int, tokens: int) -> None:
        name = str(len(self.names))
        rng = random.Random(len(self.names))
        prompt = STEMS[stem][:shared] + [500 + rng.randrange(400) for _ in range(own)]
        self.names.append(name)
        for scheduler in self.both:
            scheduler.add_request(self.vllm.request(name, list(prompt), tokens=tokens))

    def abort(self, index: int) -> None:
        from vllm.v1.request import RequestStatus

        if index < len(self.names):
            for scheduler in self.both:
                scheduler.finish_requests(self.names[index], RequestStatus.FINISHED_ABORTED)

    def reset(self, is_running_too: bool) -> None:
        ours, stock = (one.reset_prefix_cache(is_running_too) for one in self.both)
        assert ours == stock

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            ours, stock = (decided(self.vllm.step(scheduler)) for scheduler in self.both)
            assert ours == stock
            self.compare()

    def compare(self) -> None:
        managers = [scheduler.kv_cache_manager for scheduler in self.both]
        ours_pool, stock_pool = (manager.block_pool for manager in managers)
        assert ours_pool.get_num_free_blocks() == stock_pool.get_num_free_blocks()
        assert ours_pool.get_usage() == pytest.approx(stock_pool.get_usage())
        running = list(self.both[0].requests)
        for name in running:
            references = [
                [block.ref_cnt for block in manager.coordinator.get_blocks(name)[0]]
                for manager in managers
            ]
            assert references[0] == references[1]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(stream=actions)
def test_decisions_and_prefix_hits_are_those_of_stock(vllm, tmp_path_factory, stream) -> None:
    options = {"sequences": SEQUENCES, "step_tokens": STEP_TOKENS}
    blocks = SLABS * BLOCKS_PER_SLAB + 1
    log = tmp_path_factory.mktemp("log") / "log"
    with Pair(vllm, log, slabs=SLABS, reserve_slabs=SLABS, **options) as pair:
        stock = vllm.scheduler(**vllm.of_scheduler(blocks=blocks, **options))
        twins = Twins(vllm, pair.serving, stock)
        for name, *arguments in stream:
            getattr(twins, name)(*arguments)
        while pair.serving.has_unfinished_requests():
            twins.step()


def hits(plan: Any) -> int:
    """Return the prompt tokens that a plan found in the prefix cache."""
    return sum(one.num_computed_tokens for one in plan.scheduled_new_reqs)


def test_prompts_that_come_again_hit_all_but_their_last_token(vllm, log_path) -> None:
    with Pair(vllm, log_path, slabs=SLABS, reserve_slabs=SLABS) as pair:
        for round_ in range(10):
            stem = STEMS[round_ % len(STEMS)]
            pair.serving.add_request(vllm.request(str(round_), [*stem, 900 + round_], tokens=40))
            assert hits(vllm.step(pair.serving)) == (len(stem) if round_ >= len(STEMS) else 0)
            if round_ % 2:  # An odd one finds what is in use, an even one what is cached only.
                pair.finish()
        pair.finish()
