"""Block ids, keys and tables as they come from Python, and what is refused there."""

import gc
import weakref
from array import array
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


# ---- tables


def test_rows_of_a_table_grow_and_empty(blocks: BlockAllocator) -> None:
    table = np.full((4, 8), -1, dtype=np.int32)
    lengths = np.array([0, 2, 0, 8], dtype=np.int32)
    assert blocks.alloc_rows([3, 4, 0, 0], table[:, :7], np.array([0, 2, 0, 0], np.int32))
    assert blocks.used_blocks == 7
    blocks.free([*table[0, :3].tolist(), *table[1, 2:6].tolist()])
    table[:] = -1
    lengths[:] = 0
    assert blocks.alloc_rows(np.array([3, 4, 0, 1], np.int32), table, lengths)
    assert lengths.tolist() == [3, 4, 0, 1]
    ids = [table[row, column] for row in range(4) for column in range(lengths[row])]
    assert len(set(ids)) == 8
    assert (table >= 0).sum() == 8
    blocks.free_rows(table, lengths, [1, 3])
    assert lengths.tolist() == [3, 0, 0, 0]
    assert blocks.used_blocks == 3
    blocks.free_rows(table, lengths, np.array([0], np.int32))
    assert blocks.used_blocks == 0


def test_rows_beyond_what_is_free_change_nothing(blocks: BlockAllocator) -> None:
    table = np.full((2, 200), -1, dtype=np.int32)
    lengths = np.zeros(2, dtype=np.int32)
    assert not blocks.alloc_rows([200, 57], table, lengths)
    assert lengths.tolist() == [0, 0]
    assert blocks.used_blocks == 0
    assert blocks.alloc_rows([200, 56], table, lengths)
    assert sorted(np.concatenate([table[0], table[1, :56]])) == sorted(table[table >= 0])


@pytest.mark.parametrize(
    ("counts", "table", "lengths", "why"),
    [
        ([1, 1], np.zeros((2, 4), np.int64), np.zeros(2, np.int32), "table has another type"),
        ([1, 1], np.zeros(8, np.int32), np.zeros(2, np.int32), "table has another shape"),
        ([1, 1], np.zeros((2, 8), np.int32)[:, ::2], np.zeros(2, np.int32), "table has gaps"),
        ([1, 1], np.zeros((2, 4), np.int32), np.zeros(3, np.int32), "3 lengths for a table of 2"),
        ([1, 1, 1], np.zeros((2, 4), np.int32), np.zeros(2, np.int32), "3 counts for a table of 2"),
        ([1, 5], np.zeros((2, 4), np.int32), np.zeros(2, np.int32), "row 1 has 0 ids and room for"),
        ([1, -1], np.zeros((2, 4), np.int32), np.zeros(2, np.int32), "-1 more do not fit"),
        ([1, 1], np.zeros((2, 4), np.int32), np.full(2, -1, np.int32), "row 0 has -1 ids"),
    ],
)
def test_tables_that_cannot_be_filled_are_refused(
    blocks: BlockAllocator, counts: list[int], table: Any, lengths: Any, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        blocks.alloc_rows(counts, table, lengths)
    assert blocks.used_blocks == 0


def test_tensors_of_torch_are_filled_in_place(blocks: BlockAllocator) -> None:
    torch = pytest.importorskip("torch")
    out = torch.full((6,), -1, dtype=torch.int32)
    assert blocks.alloc_into(out[1:5])
    assert out[0] == out[5] == -1
    assert len(set(out[1:5].tolist())) == 4
    blocks.free(out[1:5])
    assert blocks.used_blocks == 0
    table = torch.full((2, 8), -1, dtype=torch.int32)
    lengths = torch.zeros(2, dtype=torch.int32)
    assert blocks.alloc_rows(torch.tensor([2, 3], dtype=torch.int32), table, lengths)
    assert lengths.tolist() == [2, 3]
    blocks.free_rows(table, lengths, [0, 1])
    assert blocks.used_blocks == 0
    for wrong, why in (
        (torch.zeros(2, dtype=torch.int64), "has another type of number"),
        (torch.zeros(2, dtype=torch.float32), "has another type of number"),
        (torch.zeros((1, 2), dtype=torch.int32), "has another shape"),
        (torch.zeros(4, dtype=torch.int32)[::2], "has gaps"),
        (OnDevice(), "is on a device"),
    ):
        with pytest.raises(InvalidArgument, match=f"out {why}"):
            blocks.alloc_into(wrong)
    assert blocks.used_blocks == 0


class OnDevice:
    """What a tensor on a GPU says of itself."""

    def __dlpack__(self) -> object:
        raise AssertionError("the device comes first")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_buffers_are_let_go_after_the_call(blocks: BlockAllocator) -> None:
    out = array("i", [0] * 4)
    assert blocks.alloc_into(out)  # type: ignore[arg-type]
    out.append(0)  # a buffer that is held cannot grow
    with pytest.raises(InvalidArgument, match="has another shape"):
        blocks.alloc_rows([5], out, np.zeros(1, np.int32))  # type: ignore[arg-type]
    out.append(0)


def test_tensors_are_let_go_after_the_call(blocks: BlockAllocator) -> None:
    torch = pytest.importorskip("torch")
    numbers = np.zeros(4, np.int32)
    out = torch.from_numpy(numbers)
    assert blocks.alloc_into(out)
    with pytest.raises(InvalidArgument, match="has another shape"):
        blocks.alloc_rows([4], out, np.zeros(1, np.int32))
    gone = weakref.ref(numbers)
    del numbers, out
    gc.collect()
    assert gone() is None


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
    with pytest.raises(InvalidArgument, match="keys must be 16 bytes each"):
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
    with pytest.raises(InvalidArgument, match=r"named by 16 bytes or by \(model, version\)"):
        blocks.set_cache_namespace(name)


def test_foreign_ids_and_double_frees_are_named(blocks: BlockAllocator) -> None:
    ids = taken(blocks, 2)
    blocks.share(ids[:1])
    for wrong, why in (
        ([ids[0]] * 3, f"block {ids[0]} is free already: this call gives it back more often"),
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
