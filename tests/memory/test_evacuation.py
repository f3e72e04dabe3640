"""Blocks that move keep their bytes, in every layer, and the slabs they left can go home."""

import numpy as np
import pytest

from rose._core import Arbiter, Grant
from rose.errors import InvalidArgument
from rose.memory import KVGeometry, KVSpace, Layout

SLAB, SLABS = 8192, 6
LAYERED = KVGeometry(3, 5, 60)  # layer blocks of 100 bytes, which do not divide a slab
WHOLE = KVGeometry(3, 5, 60, Layout.BLOCK_MAJOR)

LAYOUTS = pytest.mark.parametrize("geometry", [LAYERED, WHOLE], ids=["layer_major", "block_major"])


def space_of(geometry: KVGeometry) -> tuple[Arbiter, KVSpace]:
    """Return a borrower that was lent everything."""
    arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=1)
    partition = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=SLABS)
    space = KVSpace(arbiter, partition, geometry, header_index=0)
    assert isinstance(arbiter.grant(partition, SLABS, ttl_ns=10**12), Grant)
    return arbiter, space


def rows_of(space: KVSpace) -> list[np.ndarray]:
    if space.geometry.layout is Layout.LAYER_MAJOR:
        return [np.asarray(view) for view in space.views()]
    return [np.asarray(space.flat()).reshape(-1, space.geometry.block_bytes)]


def stamp(space: KVSpace, block: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for rows in rows_of(space):
        rows[block] = random.integers(0, 256, rows.shape[1], dtype=np.uint8)


def bytes_of(space: KVSpace, block: int) -> bytes:
    return b"".join(rows[block].tobytes() for rows in rows_of(space))


def stamped(space: KVSpace, *, stride: int) -> dict[int, bytes]:
    """Fill the pool, keep every `stride`-th block, and return the bytes of those."""
    ids = space.allocator.alloc(space.allocator.free_blocks)
    assert ids is not None
    kept = ids[::stride]
    space.allocator.free([block for block in ids if block not in kept])
    for seed, block in enumerate(kept):
        stamp(space, block, seed)
    return {block: bytes_of(space, block) for block in kept}


@LAYOUTS
def test_data_is_found_where_it_moved(geometry: KVGeometry) -> None:
    _, space = space_of(geometry)
    before = stamped(space, stride=4)
    moved = space.evacuate()
    assert moved
    for block, data in before.items():
        assert bytes_of(space, moved.get(block, block)) == data
    assert space.allocator.used_blocks == len(before)
    space.allocator.free([moved.get(block, block) for block in before])


@LAYOUTS
def test_leaving_slabs_go_home_while_their_data_stays(geometry: KVGeometry) -> None:
    arbiter, space = space_of(geometry)
    before = stamped(space, stride=4)
    revocation = arbiter.revoke(space.partition, 2, deadline_ns=arbiter.now_ns() + 10**12)
    leaving = arbiter.leaving(space.partition)
    assert len(leaving) == arbiter.poll(revocation).pending == 2
    moved = space.evacuate(leaving)
    assert arbiter.poll(revocation).returned == 2
    arbiter.check_invariants()
    assert {space.allocator.slab_of(block) for block in moved} == set(leaving)
    for block, data in before.items():
        assert bytes_of(space, moved.get(block, block)) == data


def test_no_more_blocks_move_than_allowed() -> None:
    _, space = space_of(LAYERED)
    stamped(space, stride=8)
    fewest = min(used for slab in range(SLABS) if (used := space.allocator.used(slab)))
    assert space.evacuate(limit=fewest - 1) == {}
    assert len(space.evacuate(limit=fewest)) == fewest
    with pytest.raises(InvalidArgument, match="must be at least 0"):
        space.evacuate(limit=-1)


def test_copies_read_all_sources_first() -> None:
    _, space = space_of(LAYERED)
    ids = space.allocator.alloc(2)
    assert ids is not None
    for seed, block in enumerate(ids):
        stamp(space, block, seed)
    before = [bytes_of(space, block) for block in ids]
    space.copy_blocks(ids, ids[::-1])
    assert [bytes_of(space, block) for block in ids] == before[::-1]
    with pytest.raises(InvalidArgument, match="1 blocks cannot be copied to 2"):
        space.copy_blocks(ids[:1], ids)


def test_only_a_planned_move_can_be_ended() -> None:
    _, space = space_of(LAYERED)
    ids = space.allocator.alloc(2)
    assert ids is not None
    with pytest.raises(InvalidArgument, match=f"no move of block {ids[0]} to {ids[1]} is planned"):
        space.allocator.finish_evacuation(ids[:1], ids[1:])
