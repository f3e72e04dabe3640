"""References and keys over a plain allocator: as in a model of three dictionaries."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rose._core import Arbiter
from rose.engines.vllm.prefix_blocks import PrefixBlocks
from rose.errors import InvalidArgument

SLAB_BYTES, BLOCK_BYTES, SLABS = 4096, 1024, 3
BLOCKS = SLABS * SLAB_BYTES // BLOCK_BYTES
KEYS = [bytes([index]) * 16 for index in range(6)]


def blocks() -> PrefixBlocks:
    arbiter = Arbiter.create(slab_bytes=SLAB_BYTES, slab_count=SLABS, header_slabs=1)
    partition = arbiter.add_partition("own", reserve_slabs=SLABS, limit_slabs=SLABS)
    arbiter.take(partition, SLABS)
    return PrefixBlocks(arbiter.allocator(partition, block_bytes=BLOCK_BYTES, origin_bytes=0))


class Model(RuleBasedStateMachine):
    """The model: references by block, key by block, and cached blocks in the order of eviction."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks()
        self.references: Counter[int] = Counter()
        self.key_of: dict[int, bytes] = {}
        self.cached: list[int] = []

    def live(self) -> list[int]:
        return sorted(self.references)

    @rule(n=st.integers(0, BLOCKS + 1))
    def alloc(self, n: int) -> None:
        free = BLOCKS - len(self.references)
        ids = self.blocks.alloc(n)
        if n > free:
            assert ids is None
            return
        evicted = max(0, n - (free - len(self.cached)))
        for block in self.cached[:evicted]:
            del self.key_of[block]
        self.cached = self.cached[evicted:]
        assert len(set(ids)) == n
        assert not set(ids) & (set(self.references) | set(self.cached))
        self.references.update(ids)

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def free(self, data) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.live()), max_size=4))
        if any(self.references[block] < times for block, times in Counter(ids).items()):
            with pytest.raises(InvalidArgument, match="is free already"):
                self.blocks.free(ids)
            return
        self.blocks.free(ids)
        self.references -= Counter(ids)
        gone = [block for block in dict.fromkeys(ids) if block not in self.references]
        self.cached += [block for block in gone if block in self.key_of]

    @precondition(lambda self: self.references or self.cached)
    @rule(data=st.data())
    def share(self, data) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.live() + self.cached), max_size=4))
        self.blocks.share(ids)
        self.references.update(ids)
        self.cached = [block for block in self.cached if block not in ids]

    @rule(data=st.data())
    def share_what_is_free(self, data) -> None:
        block = data.draw(st.integers(0, BLOCKS + 8))
        if block in self.references or block in self.cached:
            return
        with pytest.raises(InvalidArgument, match="is free"):
            self.blocks.share([block])

    @precondition(lambda self: self.references.keys() - self.key_of.keys())
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def publish(self, data, key: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.references.keys() - self.key_of.keys())))
        self.blocks.publish([block], key)
        if key not in self.key_of.values():
            self.key_of[block] = key

    @precondition(lambda self: self.key_of)
    @rule(data=st.data())
    def forget(self, data) -> None:
        block = data.draw(st.sampled_from(sorted(self.key_of)))
        self.blocks.forget([block])
        del self.key_of[block]
        self.cached = [one for one in self.cached if one != block]

    @rule()
    def forget_all(self) -> None:
        self.blocks.forget_all()
        self.key_of.clear()
        self.cached.clear()

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4))
    def lookup(self, keys: list[bytes]) -> None:
        block_of = {key: block for block, key in self.key_of.items()}
        expected: list[int] = []
        for key in keys:
            if key not in block_of:
                break
            expected.append(block_of[key])
        assert self.blocks.lookup(b"".join(keys)) == expected

    @invariant()
    def counts_agree(self) -> None:
        assert self.blocks.used_blocks == len(self.references)
        assert self.blocks.free_blocks == BLOCKS - len(self.references)
        for block in range(2 * BLOCKS):
            assert self.blocks.references(block) == self.references.get(block, 0)


TestModel = Model.TestCase


def test_cached_blocks_hold_no_slab_up() -> None:
    one = blocks()
    ids = one.alloc(BLOCKS)
    for index, key in enumerate(KEYS):
        one.publish([ids[index]], key)
    one.free(ids[1:])
    slab_of = one._allocator.slab_of
    one.forget_in(frozenset({slab_of(ids[1]), slab_of(ids[5])}))
    assert one._allocator.used(slab_of(ids[5])) == 0
    assert one.lookup(KEYS[0]) == [ids[0]]
