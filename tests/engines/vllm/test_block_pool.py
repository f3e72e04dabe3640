"""The pool keeps vLLM's contract: told the same, it answers as vLLM's own."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rose._core import Arbiter
from rose.errors import InvalidArgument
from rose.memory import KVSpace
from tests.engines.vllm.rig import BLOCK_TOKENS, BLOCKS_PER_SLAB, GEOMETRY, SLAB_BYTES

pytestmark = pytest.mark.peer

SLABS = 16
BLOCKS = SLABS * BLOCKS_PER_SLAB
HASHES = 6


class OwnSlabs:
    """A lane that holds the whole pool, and so has nobody to ask."""

    def __init__(self, slabs: int = SLABS) -> None:
        self.arbiter = Arbiter.create(slab_bytes=SLAB_BYTES, slab_count=SLABS, header_slabs=1)
        partition = self.arbiter.add_partition("own", reserve_slabs=0, limit_slabs=SLABS)
        self.kv = KVSpace(self.arbiter, partition, GEOMETRY, header_index=0)
        self.arbiter.take(partition, slabs)

    def ensure(self, blocks: int) -> bool:
        return self.kv.allocator.free_blocks >= blocks

    def alloc(self, blocks: int) -> list[int] | None:
        return self.kv.allocator.alloc(blocks)


def pools(*, slabs: int = SLABS, events: bool = True) -> tuple[Any, Any]:
    from vllm.v1.core.block_pool import BlockPool

    from rose.engines.vllm.block_pool import LeasedBlockPool

    options = {
        "num_gpu_blocks": slabs * BLOCKS_PER_SLAB + 1,
        "enable_caching": True,
        "hash_block_size": BLOCK_TOKENS,
        "enable_kv_cache_events": events,
    }
    return LeasedBlockPool(OwnSlabs(slabs), **options), BlockPool(**options)


def requests(vllm) -> list[Any]:
    """Return requests of which any two share a prefix of a different length."""
    return [
        vllm.request(str(index), [1] * (index * BLOCK_TOKENS) + [2 + index] * 64, tokens=1)
        for index in range(HASHES)
    ]


def after(cached: set[Any], events: list[Any]) -> set[Any]:
    """Return the hashes that are cached, as whoever hears the events has it."""
    for event in events:
        hashes = set(getattr(event, "block_hashes", ()))
        match type(event).__name__:
            case "BlockStored":
                cached = cached | hashes
            case "BlockRemoved":
                cached = cached - hashes
            case _:
                cached = set()
    return cached


@pytest.fixture(scope="module")
def machine(vllm) -> type[RuleBasedStateMachine]:
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id as make_key
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as convert

    prompts = requests(vllm)

    class Twins(RuleBasedStateMachine):
        """Both pools, and chains of blocks that requests hold in both."""

        def __init__(self) -> None:
            super().__init__()
            self.ours, self.stock = pools()
            self.held: list[tuple[Any, list[Any], list[Any]]] = []
            self.told: set[Any] = set()  # by events: the hashes that are cached

        def both(self, index: int) -> tuple[Any, list[Any], list[Any]]:
            return self.held[index % len(self.held)]

        # Chains are as long as a prompt at most, so that nothing has to be evicted.
        @precondition(lambda self: len(self.held) < 4)
        @rule(index=st.integers(0, HASHES - 1), more=st.integers(0, 3))
        def start(self, index: int, more: int) -> None:
            """Find the longest cached prefix, touch it, and take what is missing."""
            request = prompts[index]
            chains = []
            for pool in (self.ours, self.stock):
                found = []
                for hash_ in request.block_hashes[: index + more]:
                    hit = pool.get_cached_block(hash_, [0])
                    if hit is None:
                        break
                    found += hit
                pool.touch(found)
                chains.append((len(found), found))
            (hits, ours), (theirs, stock) = chains
            assert hits == theirs
            assert [one.block_hash for one in ours] == [one.block_hash for one in stock]
            missing = index + more - hits
            ours, stock = (
                ours + self.ours.get_new_blocks(missing),
                stock + (self.stock.get_new_blocks(missing)),
            )
            assert len({one.block_id for one in ours}) == len(ours)
            assert all(one.block_hash is None for one in ours[hits:])
            for pool, chain in ((self.ours, ours), (self.stock, stock)):
                pool.cache_full_blocks(request, chain, hits, len(chain), BLOCK_TOKENS, 0)
            self.held.append((request, ours, stock))

        @precondition(lambda self: self.held)
        @rule(index=st.integers(0, 3))
        def end(self, index: int) -> None:
            held = self.both(index)
            self.held = [one for one in self.held if one is not held]
            self.ours.free_blocks(reversed(held[1]))
            self.stock.free_blocks(reversed(held[2]))

        @precondition(lambda self: self.held)
        @rule(index=st.integers(0, 3))
        def hold_longer(self, index: int) -> None:
            """Add references behind the pool's back, as vLLM does for a block it copies into."""
            _, ours, stock = self.both(index)
            for chain, pool in ((ours, self.ours), (stock, self.stock)):
                for block in chain[-1:]:
                    block.ref_cnt += 1
                    pool.free_blocks([block])

        @rule(index=st.integers(0, HASHES - 1), at=st.integers(0, HASHES))
        def evict(self, index: int, at: int) -> None:
            """Evict all blocks of a hash: vLLM keeps duplicates, of which rose knows the first."""
            key = make_key(prompts[index].block_hashes[min(at, index)], 0)
            for pool in (self.ours, self.stock):
                pool.evict_blocks({one.block_id for one in pool.blocks if one.block_hash == key})

        @rule()
        def reset(self) -> None:
            assert self.ours.reset_prefix_cache() == self.stock.reset_prefix_cache()

        @rule()
        def refuse(self) -> None:
            for pool in (self.ours, self.stock):
                with pytest.raises(ValueError, match="Cannot get 999 free blocks"):
                    pool.get_new_blocks(999)

        @invariant()
        def agrees(self) -> None:
            assert self.ours.get_num_free_blocks() == self.stock.get_num_free_blocks()
            assert self.ours.get_usage() == pytest.approx(self.stock.get_usage())
            self.told = after(self.told, self.ours.take_events())
            cached = {
                convert(hash_)
                for one in prompts
                for hash_ in one.block_hashes
                if self.ours.get_cached_block(hash_, [0])
            }
            assert self.told == cached
            for _, ours, stock in self.held:
                assert [one.ref_cnt for one in ours] == [one.ref_cnt for one in stock]
                assert [one.block_hash for one in ours] == [one.block_hash for one in stock]

        def teardown(self) -> None:
            while self.held:
                self.end(0)
            assert self.ours._allocator.used_blocks == 0
            self.ours._lane.arbiter.check_invariants()

    return Twins


def test_the_pool_answers_as_vllms_own(machine) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(stateful_step_count=30, deadline=None))


def cached_chain(pool: Any, request: Any, blocks: int) -> list[Any]:
    """Let a chain of blocks be cached that nobody holds."""
    chain: list[Any] = pool.get_new_blocks(blocks)
    pool.cache_full_blocks(request, chain, 0, blocks, BLOCK_TOKENS, 0)
    pool.free_blocks(reversed(chain))
    return chain


def found(pool: Any, request: Any) -> set[Any]:
    return {hash_ for hash_ in request.block_hashes if pool.get_cached_block(hash_, [0])}


def test_cached_blocks_are_taken_when_nothing_else_is_left_and_that_is_told(vllm) -> None:
    ours, _ = pools(slabs=2)
    request = requests(vllm)[5]
    cached_chain(ours, request, 6)
    assert (ours.get_num_free_blocks(), len(found(ours, request))) == (8, 6)
    told = after(set(), ours.take_events())
    ours.get_new_blocks(2)
    assert len(found(ours, request)) == 6
    taken = ours.get_new_blocks(3)
    assert all(block.block_hash is None for block in taken)
    assert len(found(ours, request)) <= 3
    told = after(told, ours.take_events())
    assert len(told) == len(found(ours, request))


def test_prefixes_that_leave_with_their_slab_are_told(vllm) -> None:
    ours, _ = pools(slabs=2)
    request = requests(vllm)[5]
    cached_chain(ours, request, 8)
    told = after(set(), ours.take_events())
    assert len(told) == 8
    arbiter, space = ours._lane.arbiter, ours._lane.kv
    assert arbiter.give_back(space.partition, 1) == 1
    told = after(told, ours.take_events())
    assert len(told) == len(found(ours, request)) <= 8 - BLOCKS_PER_SLAB
    assert ours.take_events() == []


def test_a_block_is_not_freed_twice(vllm) -> None:
    ours, _ = pools()
    one, other = ours.get_new_blocks(2)
    ours.free_blocks([one])
    with pytest.raises(InvalidArgument, match=f"block {one.block_id}"):
        ours.free_blocks([other, one])
    assert (one.ref_cnt, other.ref_cnt) == (0, 1)


def test_blocks_of_another_pool_go_home(vllm) -> None:
    ours, stock = pools()
    mine, theirs = ours.get_new_blocks(1), stock.get_new_blocks(1)
    ours.free_blocks([*theirs, *mine, ours.null_block])
    assert stock.get_num_free_blocks() == ours.get_num_free_blocks() == BLOCKS


def test_the_null_block_is_the_tenants_own_and_never_given(vllm) -> None:
    ours, _ = pools()
    assert ours.null_block.is_null
    taken = {block.block_id for block in ours.get_new_blocks(BLOCKS)}
    assert taken.isdisjoint(ours._lane.kv.null_blocks)
    ours.touch([ours.null_block])
    assert ours.get_num_free_blocks() == 0


def test_blocks_that_are_read_after_their_release_are_refused(vllm) -> None:
    ours, _ = pools()
    blocks = ours.get_new_blocks(1)
    with pytest.raises(InvalidArgument, match="HiSparse"):
        ours.unpin_blocks(blocks, lambda block: None)


def test_a_prefix_is_found_in_its_own_group_only(vllm) -> None:
    ours, _ = pools()
    request = requests(vllm)[5]
    first, second = ours.get_new_blocks(1), ours.get_new_blocks(1)
    ours.cache_full_blocks(request, first, 0, 1, BLOCK_TOKENS, 0)
    hash_ = request.block_hashes[0]
    assert ours.get_cached_block(hash_, [0]) == first
    assert ours.get_cached_block(hash_, [0, 1]) is None
    ours.cache_full_blocks(request, second, 0, 1, BLOCK_TOKENS, 1)
    assert [one.block_id for one in ours.get_cached_block(hash_, [1, 0])] == [
        one.block_id for one in (*second, *first)
    ]
