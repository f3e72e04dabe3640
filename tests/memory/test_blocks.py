"""Block ids, keys and tables as they come from Python, and what is refused there."""

from typing import Any

import numpy as np
import pytest

from rose._core import Arbiter, BlockAllocator
from rose.errors import InvalidArgument

SLAB, SLABS = 4096, 4
KEYS = [bytes([number]) * 16 for number in range(100)]


@pytest.fixture
def blocks() -> BlockAllocator:
    """Return an allocator with 256 blocks in four slabs."""
    arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=1)
    arbiter.add_partition("serving", reserve_slabs=0, limit_slabs=SLABS)
    arbiter.take(0, SLABS)
    return arbiter.allocator(0, block_bytes=64, origin_bytes=0)


def taken(blocks: BlockAllocator, n: int) -> list[int]:
    ids = blocks.alloc(n)
    assert ids is not None
    return ids


# ---- references and keys


def test_keys_come_one_by_one_or_side_by_side(blocks: BlockAllocator) -> None:
    ids = taken(blocks, 80)  # more than fit the room on the stack
    blocks.publish(ids, KEYS[:80])
    side_by_side = b"".join(KEYS)
    numbers = np.frombuffer(side_by_side, dtype=np.uint64).reshape(-1, 2)
    for keys in (KEYS, side_by_side, bytearray(side_by_side), numbers):
        assert blocks.lookup(keys) == ids  # type: ignore[arg-type]
    assert blocks.acquire(numbers) == ids
    assert {blocks.references(block) for block in ids} == {2}
    blocks.free(ids * 2)
    assert blocks.cached_blocks == 80
    assert blocks.free_blocks == 256
    assert blocks.lookup([]) == blocks.lookup(b"") == []


@pytest.mark.parametrize(
    "keys", [[b"short"], [b"x" * 17], ["x" * 16], b"x" * 15, 16, np.zeros((4, 4), np.uint64)[:, :2]]
)
def test_what_is_no_key_is_refused(blocks: BlockAllocator, keys: Any) -> None:
    with pytest.raises(InvalidArgument, match="each key must have 16 bytes"):
        blocks.lookup(keys)


def test_namespaces_are_told_apart(blocks: BlockAllocator) -> None:
    ids = taken(blocks, 1)
    names: list[Any] = [b"k" * 16, ("model", 1), ("model", 2), ("model 1", 1), ("1 model", 1)]
    for name in names:
        blocks.set_cache_namespace(name)
        assert blocks.lookup(KEYS[:1]) == []
    blocks.publish(ids, KEYS[:1])
    blocks.set_cache_namespace(("model", 1))
    assert blocks.lookup(KEYS[:1]) == []
    blocks.set_cache_namespace(names[-1])
    assert blocks.lookup(KEYS[:1]) == ids


@pytest.mark.parametrize("name", [b"short", "model", ("model",), ("model", "1"), (1, "model"), 7])
def test_what_names_no_namespace_is_refused(blocks: BlockAllocator, name: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"must be 16 bytes, or \(model, version\)"):
        blocks.set_cache_namespace(name)


def test_foreign_ids_and_double_frees_are_named(blocks: BlockAllocator) -> None:
    ids = taken(blocks, 2)
    blocks.share(ids[:1])
    for wrong, why in (
        ([ids[0]] * 3, f"block {ids[0]} is freed more often in this call"),
        ([ids[1], 1 << 40], "block -1 is out of range"),
        ([ids[1], 7], "block 7 is out of range"),  # in the header
    ):
        with pytest.raises(InvalidArgument, match=why):
            blocks.free(wrong)
        assert [blocks.references(block) for block in ids] == [2, 1]
    with pytest.raises(InvalidArgument, match="block 7 is out of range"):
        blocks.references(7)
    blocks.free([ids[0], *ids])
    for call in (blocks.free, blocks.share):
        with pytest.raises(InvalidArgument, match="is free already"):
            call(ids)


def test_forgotten_keys_are_found_no_more(blocks: BlockAllocator) -> None:
    ids = taken(blocks, 3)
    blocks.publish(ids, KEYS[:3])
    blocks.forget(ids[1:2])
    assert blocks.lookup(KEYS[:3]) == ids[:1]
    blocks.free(ids)
    assert blocks.cached_blocks == 2
    blocks.forget_all()
    assert blocks.cached_blocks == 0
    assert blocks.lookup(KEYS[:1]) == []
