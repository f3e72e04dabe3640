"""Tensors in slabs: a heap that never overlaps, and the two functions that torch calls."""

import ctypes
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rose import _core
from rose._core import Arbiter, BlockAllocator, SlabHeap, offer_heap, withdraw_heap
from rose.errors import InvalidArgument, Unavailable
from rose.memory import TensorHeap

SLAB = 64 << 10
SLABS = 8
ALIGNMENT: Final = 512
DEVICE = 3


class Weights:
    """A pool on the host, and a partition that holds all of it."""

    def __init__(self) -> None:
        self.arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=1)
        self.partition = self.arbiter.add_partition("weights", reserve_slabs=0, limit_slabs=SLABS)
        self.allocator: BlockAllocator = self.arbiter.allocator(
            self.partition, block_bytes=SLAB, origin_bytes=0
        )
        self.arbiter.take(self.partition, SLABS)

    def slab_address(self, slab: int) -> int:
        return self.arbiter.pool_address + (1 + slab) * SLAB


def whole(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


class Heaps(RuleBasedStateMachine):
    """Any order of calls: pieces lie in their runs, apart, and what is freed is room again."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = Weights()
        self.runs = [(0, 2), (4, 3)]  # first slab and count
        self.heap = SlabHeap.create(self.weights.arbiter, slabs=[5, 0, 6, 1, 4])
        self.used: dict[int, int] = {}

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the gaps that the model has, by address."""
        for first, count in self.runs:
            at = self.weights.slab_address(first)
            end = at + count * SLAB
            for start in sorted(one for one in self.used if at <= one < end):
                yield at, start - at
                at = start + self.used[start]
            yield at, end - at

    @rule(size_bytes=st.integers(0, 4 * SLAB))
    def alloc(self, size_bytes: int) -> None:
        fits = [at for at, room in self.pieces() if room >= whole(size_bytes)]
        expected = fits[0] if fits and size_bytes else 0
        address = self.heap.alloc(size_bytes)
        assert address == expected
        if address:
            self.used[address] = whole(size_bytes)

    @rule(pick=st.randoms(use_true_random=False))
    def free(self, pick: object) -> None:
        if self.used:
            address = pick.choice(sorted(self.used))  # type: ignore[attr-defined]
            self.heap.free(address)
            del self.used[address]

    @rule(offset=st.integers(0, SLABS * SLAB))
    def free_nonsense(self, offset: int) -> None:
        address = self.weights.arbiter.pool_address + offset
        if address not in self.used:
            with pytest.raises(InvalidArgument, match="nothing is allocated there"):
                self.heap.free(address)

    @invariant()
    def numbers_agree(self) -> None:
        assert self.heap.size_bytes == 5 * SLAB
        assert self.heap.used_bytes == sum(self.used.values())
        assert self.heap.largest_free_bytes == max(room for _, room in self.pieces())


TestHeaps = Heaps.TestCase
TestHeaps.settings = settings(deadline=None)


@given(st.permutations([1, 2, 3, 5]))
def test_room_is_of_neighbours_in_whatever_order_they_are_named(slabs: list[int]) -> None:
    weights = Weights()
    heap = SlabHeap.create(weights.arbiter, slabs=slabs)
    assert heap.alloc(3 * SLAB) == weights.slab_address(1)
    assert heap.alloc(SLAB) == weights.slab_address(5)
    assert heap.alloc(1) == 0


@pytest.mark.parametrize(
    ("slabs", "says"),
    [([-1], "no slab -1"), ([6, 7, 8], "no slab 8"), ([3, 4, 3], "slab 3 is named twice")],
)
def test_slabs_that_cannot_be_make_no_heap(slabs: list[int], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        SlabHeap.create(Weights().arbiter, slabs=slabs)


def test_heap_keeps_its_slabs_until_it_is_closed() -> None:
    weights = Weights()
    heap = TensorHeap(weights.arbiter, weights.allocator, [2, 3])
    address = heap.core.alloc(100)
    weights.arbiter.give_back(weights.partition, SLABS)
    assert weights.arbiter.snapshot().unowned == SLABS - 2
    with pytest.raises(Unavailable, match="512 bytes of the heap are in use"):
        heap.close()
    assert heap.is_open
    heap.core.free(address)
    heap.close()
    heap.close()
    assert weights.arbiter.give_back(weights.partition, SLABS) == 2
    with pytest.raises(InvalidArgument, match="slab 2 is not ours to pin"):
        TensorHeap(weights.arbiter, weights.allocator, [2])


# ---- what torch calls


class Entries:
    """The C functions, found as torch finds them: by name, in the file of the extension."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_core.__file__)
        self.alloc = library.rose_alloc
        self.alloc.restype = ctypes.c_void_p
        self.alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free = library.rose_free
        self.free.restype = None
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]


def test_torch_gets_memory_of_the_slabs_and_gives_it_back() -> None:
    weights, entries = Weights(), Entries()
    heap = TensorHeap(weights.arbiter, weights.allocator, [0, 1])
    offer_heap(DEVICE, heap.core)
    try:
        first = entries.alloc(SLAB + 1, DEVICE, None)
        assert first == weights.slab_address(0)
        ctypes.memset(first, 7, SLAB + 1)
        assert weights.arbiter.pool_view()[2 * SLAB] == 7
        assert entries.alloc(SLAB, DEVICE, None) is None  # no room: torch says "out of memory"
        assert entries.alloc(-1, DEVICE, None) is None
        with pytest.raises(Unavailable, match="torch still holds 66048 bytes of the heap"):
            withdraw_heap(DEVICE)
        entries.free(first + 512, 1, DEVICE, None)  # not the start of anything
        assert heap.core.used_bytes == SLAB + 512
        entries.free(first, SLAB + 1, DEVICE, None)
        assert heap.core.used_bytes == 0
    finally:
        withdraw_heap(DEVICE)
    heap.close()


def test_torch_finds_no_heap_where_none_is_offered() -> None:
    weights, entries = Weights(), Entries()
    heap = SlabHeap.create(weights.arbiter, slabs=[0])
    for device in (-1, 64):
        assert entries.alloc(1, device, None) is None
        with pytest.raises(InvalidArgument, match=f"no device {device}"):
            offer_heap(device, heap)
    assert entries.alloc(1, DEVICE, None) is None
    offer_heap(DEVICE, heap)
    assert entries.alloc(1, DEVICE + 1, None) is None
    with pytest.raises(InvalidArgument, match="torch has a heap for device 3 already"):
        offer_heap(DEVICE, heap)
    withdraw_heap(DEVICE)
    with pytest.raises(InvalidArgument, match="torch has no heap for device 3"):
        withdraw_heap(DEVICE)


def test_offered_heap_keeps_its_pool() -> None:
    weights, entries = Weights(), Entries()
    offer_heap(DEVICE, SlabHeap.create(weights.arbiter, slabs=[0]))
    del weights
    try:
        address = entries.alloc(SLAB, DEVICE, None)
        ctypes.memset(address, 1, SLAB)  # a pool that is gone would end the test here
        entries.free(address, SLAB, DEVICE, None)
    finally:
        withdraw_heap(DEVICE)
