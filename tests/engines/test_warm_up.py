"""A borrower warms up with the largest batch, and its arena holds it to that."""

from collections.abc import Iterator

import pytest

from rose.engines.torch_arena import ActivationArena, ArenaState
from rose.engines.transformers import LeasedWeights, Model, load_model, warm_up
from rose.errors import DeadlineExceeded, InvalidArgument, OutOfMemory, Unavailable
from rose.executor.weights import WeightsState
from tests.engines.borrowed import LEASED_POOL_BYTES
from tests.engines.pair import WAIT_S, Client, Pair
from tests.engines.test_torch_arena import Memory

REQUESTS, CONTEXT = 4, 60
WAIT_MS = WAIT_S * 1000


class Warm:
    """A borrower whose forward passes take memory: a number for each token they read."""

    def __init__(self, models: tuple[Model, Model], *, limit: int = 10**9, **settings) -> None:
        self.memory = Memory()
        self.arena = ActivationArena(self.memory, limit_bytes=limit)
        self.pair = Pair(models, arena=self.arena, prefix_cache=False, **settings)
        self.client = Client(self.pair.rollout, "rollout", 1)
        self.decoding: list[int] = []
        self.sizes: list[int] = []
        self.forgets = models[1].register_forward_pre_hook(self.take, with_kwargs=True)

    def take(self, _model: object, _arguments: tuple, inputs: dict) -> None:
        if not self.memory.is_inside:
            return  # Not a step: the test asks the model what is right.
        batch = self.pair.rollout.processor.inputs_and_outputs.requests_in_batch
        self.decoding.append(sum(one.query_length == 1 for one in batch))
        self.sizes.append(sum(one.state.current_len() for one in batch))
        self.memory.allocate(self.sizes[-1])

    def close(self) -> None:
        self.forgets.remove()
        self.pair.rollout.stop()
        self.pair.serving.stop()
        self.pair.device.close()

    def warm_up(self, *, timeout_ms: float = WAIT_MS) -> None:
        warm_up(
            self.pair.rollout,
            self.arena,
            requests=REQUESTS,
            context_tokens=CONTEXT,
            timeout_ms=timeout_ms,
        )


@pytest.fixture
def warm(models: tuple[Model, Model]) -> Iterator[Warm]:
    made = Warm(models)
    yield made
    made.close()


def test_what_the_warm_up_ran_runs_again_and_nothing_larger(warm: Warm) -> None:
    warm.pair.rollout.start()
    warm.warm_up()
    assert warm.arena.state is ArenaState.SEALED
    assert max(warm.decoding) == REQUESTS  # all of them side by side
    assert warm.arena.limit_bytes == max(warm.sizes) >= REQUESTS * (CONTEXT - 8)
    for _ in range(REQUESTS):
        warm.client.send(prompt_tokens=40, new_tokens=10)
    warm.client.wait()
    assert warm.client.wrong(warm.pair.rollout_model) == []
    late = warm.client.send(prompt_tokens=REQUESTS * CONTEXT, new_tokens=4)
    warm.client.wait()
    assert isinstance(warm.client.answers[late].failure, OutOfMemory)


def test_an_arena_that_is_too_small_for_the_warm_up_stays_unsealed(
    models: tuple[Model, Model],
) -> None:
    warm = Warm(models, limit=50)
    try:
        warm.pair.rollout.start()
        with pytest.raises(Unavailable, match="lower max_batch_tokens or raise limit_bytes"):
            warm.warm_up()
        assert warm.arena.state is ArenaState.WARMING
    finally:
        warm.close()


def test_a_warm_up_that_gets_no_memory_ends_at_its_deadline(warm: Warm) -> None:
    lane = warm.pair.serving_lane
    everything = lane.kv.lendable_bytes // lane.kv.geometry.block_bytes
    assert lane.ensure(everything - lane.kv.blocks_per_slab)
    assert lane.alloc(lane.kv.allocator.free_blocks) is not None
    warm.pair.rollout.start()
    with pytest.raises(DeadlineExceeded, match="did not finish within 200 ms"):
        warm.warm_up(timeout_ms=200.0)
    assert warm.arena.state is ArenaState.WARMING


def test_leased_weights_are_active_after_the_warm_up(models: tuple[Model, Model]) -> None:
    own = load_model("tiny-policy", seed=4)
    warm = Warm((models[0], own), lease=LeasedWeights, pool_bytes=LEASED_POOL_BYTES)
    try:
        assert warm.pair.weights is not None
        assert warm.pair.weights.lease.state is WeightsState.DORMANT
        warm.pair.rollout.start()
        warm.warm_up()
        assert warm.pair.weights.lease.state is WeightsState.ACTIVE
    finally:
        warm.close()


def test_a_warm_up_that_says_nothing_is_refused(warm: Warm) -> None:
    with pytest.raises(InvalidArgument, match="got 0"):
        warm_up(warm.pair.rollout, warm.arena, requests=0, context_tokens=9, timeout_ms=1.0)
    with pytest.raises(InvalidArgument, match="in one batch"):
        warm_up(warm.pair.rollout, warm.arena, requests=64, context_tokens=3, timeout_ms=1.0)
    warm.arena.seal()
    with pytest.raises(InvalidArgument, match="sealed already"):
        warm.warm_up()
