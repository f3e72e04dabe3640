"""A borrower's prefixes: the allocator's, in a namespace for each version of the weights."""

from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rose._core import Arbiter, Grant
from rose.engines.transformers import LiveWeights, Model, Sampling, load_model
from rose.engines.transformers.commits import IN_FLIGHT, InFlight
from rose.engines.transformers.prefixes import SlabLedger
from rose.memory import KVGeometry, KVSpace, Layout
from tests.engines.pair import Pair
from tests.engines.policies import TILE, TileCommit, copy_of, later, true_logprobs
from tests.engines.stepper import Stepper, blocks_of

PROMPT = [(5 * place + 1) % 128 for place in range(70)]
FULL_BLOCKS = len(PROMPT) // 16
SAMPLING = Sampling(seed=7, temperature=1.0)


# ---- the ledger alone ----------------------------------------------------------------------------


class Prefixes(RuleBasedStateMachine):
    """Whatever is found under a hash was computed for it, under the weights in use."""

    @initialize()
    def make(self) -> None:
        slab = 4096
        arbiter = Arbiter.create(slab_bytes=slab, slab_count=3, header_slabs=1)
        tenant = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=3)
        geometry = KVGeometry(1, 1, slab // 4, Layout.BLOCK_MAJOR)
        self.blocks = KVSpace(arbiter, tenant, geometry, header_index=0).allocator
        grant = arbiter.grant(tenant, 3, ttl_ns=10**15)
        assert isinstance(grant, Grant)
        self.arbiter = arbiter
        self.version = 0
        self.weights = 0  # whatever they are called
        self.ledger = SlabLedger(self.blocks, model="m", version=0)
        self.content: dict[int, tuple[int, int]] = {}  # by block: hash and weights
        self.held: list[int] = []  # a block once for each reference

    def release(self, block: int, *, no_cache: bool) -> None:
        self.held.remove(block)
        if self.ledger.release(block, no_cache):
            self.blocks.free([block])  # as the pool does

    @rule(block_hash=st.integers(0, 5))
    def compute(self, block_hash: int) -> None:
        taken = self.blocks.alloc(1)
        if taken is None:
            return
        (block,) = taken
        self.content[block] = (block_hash, self.weights)
        self.held.append(block)
        other = self.ledger.register_new_hash(block, block_hash)
        if other is not None:
            assert self.content[other] == (block_hash, self.weights)
            self.ledger.acquire(other)
            self.held.append(other)
            self.release(block, no_cache=False)

    @rule(hashes=st.lists(st.integers(0, 5), min_size=1, max_size=3))
    def find(self, hashes: list[int]) -> None:
        found = self.ledger.acquire_prefix(hashes)
        self.held += found
        for block, block_hash in zip(found, hashes, strict=False):
            assert self.content[block] == (block_hash, self.weights)

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 100), no_cache=st.booleans())
    def let_go(self, place: int, no_cache: bool) -> None:
        block = self.held[place % len(self.held)]
        self.release(block, no_cache=no_cache)
        if no_cache and block not in self.held:
            assert self.ledger.hash_to_block.get(self.content[block][0]) != block

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 100))
    def share(self, place: int) -> None:
        block = self.held[place % len(self.held)]
        self.ledger.acquire(block)
        self.held.append(block)

    @rule(is_named_anew=st.booleans())
    def renew(self, is_named_anew: bool) -> None:
        self.version += is_named_anew
        self.weights += 1
        self.ledger.renew(self.version)
        for block_hash in range(6):
            assert self.ledger.hash_to_block.get(block_hash) is None

    @invariant()
    def references_are_those_held(self) -> None:
        if not hasattr(self, "held"):
            return
        self.arbiter.check_invariants()
        for block in set(self.held):
            assert self.blocks.references(block) == self.held.count(block)
        assert self.blocks.used_blocks == len(set(self.held))
        assert set(self.ledger.block_to_hash) <= set(self.held)


TestPrefixes = Prefixes.TestCase


# ---- an engine -----------------------------------------------------------------------------------


class Live(Stepper):
    """A borrower over live weights, step by step; `found` are the tokens of each prefix match."""

    def __init__(
        self, serving: Model, monkeypatch: pytest.MonkeyPatch, *, inflight: InFlight = "keep"
    ) -> None:
        self.model = load_model("micro-policy", seed=6)
        self.weights = LiveWeights(self.model, tile_elements=TILE)
        pair = Pair((serving, self.model), is_sampling=True, inflight=inflight)
        super().__init__(pair, monkeypatch)
        self.cache = self.processor.cache
        self.found: list[int] = []
        stock = self.cache.search_prefix_match

        def search(request_id: str, prompt_ids: list[int]) -> int:
            self.found.append(stock(request_id, prompt_ids))
            return self.found[-1]

        monkeypatch.setattr(self.cache, "search_prefix_match", search)

    def ask(self, new_tokens: int = 3) -> str:
        return self.client.send(prompt=PROMPT, new_tokens=new_tokens, sampling=SAMPLING)

    def commit(self, version: int, *, seed: int) -> None:
        self.engine.commit(
            TileCommit(self.weights, later(self.weights.row, seed=seed)),
            version=version,
            on_done=lambda _committed: None,
        )

    def close(self) -> None:
        self.pair.rollout.stop()
        self.pair.serving.stop()
        self.pair.device.close()
        assert self.pair.device.gave_back is None


@pytest.fixture
def live(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Live]:
    made = Live(models[0], monkeypatch, inflight=getattr(request, "param", "keep"))
    yield made
    made.close()


def test_a_prefix_that_nobody_uses_is_found_again_and_counts_as_free(live: Live) -> None:
    live.ask()
    live.finish()
    blocks = live.pair.rollout_lane.kv.allocator
    assert blocks.used_blocks == 0
    assert blocks.cached_blocks == FULL_BLOCKS
    assert blocks.free_blocks == blocks.capacity_blocks
    live.ask()
    live.finish()
    assert live.found == [0, FULL_BLOCKS * 16]


@pytest.mark.parametrize("version", [0, 1])
def test_after_a_commit_nothing_of_the_old_weights_is_found(live: Live, version: int) -> None:
    live.ask()
    live.finish()
    live.commit(version, seed=1)  # even one that is called as the one before
    live.ask()
    live.finish()
    live.ask()
    live.finish()
    assert live.found == [0, 0, FULL_BLOCKS * 16]


@pytest.mark.parametrize("live", IN_FLIGHT, indirect=True)
def test_requests_under_way_at_a_commit_keep_read_again_or_end_as_they_are_told(live: Live) -> None:
    inflight = live.processor.inflight
    old = copy_of(live.model)
    name = live.ask(new_tokens=40)
    for _ in range(6):
        live.step()
    before = blocks_of(live.cache, name)
    live.commit(1, seed=2)
    other = live.ask(new_tokens=4)
    live.step()
    # What the new request reads is its own, or was read again since.
    assert live.found[-1] == 0 or inflight == "recompute"
    if inflight == "keep":
        assert blocks_of(live.cache, name)[: len(before)] == before
    live.finish()
    output = live.client.answers[name]
    if inflight == "abort":
        assert set(output.versions) == {0}
    else:
        assert set(output.versions) == {0, 1}
    said, prompt = output.generated_tokens, PROMPT
    of_old = output.versions.count(0)
    assert output.logprobs[:of_old] == pytest.approx(
        true_logprobs(old, prompt, said, 1.0)[:of_old], abs=1e-4
    )
    fresh = live.client.answers[other]
    assert fresh.logprobs == pytest.approx(
        true_logprobs(live.model, prompt, fresh.generated_tokens, 1.0), abs=1e-4
    )
    # A third one finds what the second computed under the new weights, and nothing else.
    third = live.ask(new_tokens=4)
    live.finish()
    assert live.found[-1] == FULL_BLOCKS * 16
    assert live.client.answers[third].logprobs == pytest.approx(fresh.logprobs, abs=1e-4)


def test_what_a_kept_request_completes_later_is_not_shared(live: Live) -> None:
    name = live.ask(new_tokens=60)
    for _ in range(4):
        live.step()
    live.commit(1, seed=2)
    blocks = len(blocks_of(live.cache, name))
    while len(blocks_of(live.cache, name)) < blocks + 2:  # two blocks more are complete
        live.step()
    other = live.ask(new_tokens=4)
    live.finish()
    assert live.found == [0, 0]
    fresh = live.client.answers[other]
    assert fresh.logprobs == pytest.approx(
        true_logprobs(live.model, PROMPT, fresh.generated_tokens, 1.0), abs=1e-4
    )


def test_prefixes_give_way_to_a_loan_that_ends(live: Live) -> None:
    live.ask()
    live.finish()
    lender = live.pair.device.lender
    lent = live.pair.device.arbiter.snapshot().partitions[1].held
    lender.take_back(lent)
    assert live.pair.device.arbiter.snapshot().partitions[1].held == 0  # nothing held them up
    live.pair.serving_lane.settle()
    live.ask()
    live.finish()
    assert set(live.found) == {0}


def test_two_that_compute_the_same_prompt_at_once_keep_one_copy(live: Live) -> None:
    first, second = live.ask(new_tokens=20), live.ask(new_tokens=20)
    for _ in range(6):
        live.step()
    shared = set(blocks_of(live.cache, first)) & set(blocks_of(live.cache, second))
    assert len(shared) == FULL_BLOCKS
    live.finish()
    assert live.pair.rollout_lane.kv.allocator.used_blocks == 0
    outputs = [live.client.answers[name].generated_tokens for name in (first, second)]
    assert outputs[0] == outputs[1]
