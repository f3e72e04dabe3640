"""Two tenants of different geometry over the same bytes."""

import numpy as np
import pytest

from rose._core import Arbiter
from rose.errors import InvalidArgument
from rose.memory import KVGeometry, KVSpace, Layout

SLAB, SLABS, HEADERS = 8192, 6, 3
SERVING = KVGeometry(4, 4, 64)  # layer blocks of 64 bytes divide a slab
LAYERED = KVGeometry(3, 5, 60)  # layer blocks of 100 bytes do not
WHOLE = KVGeometry(3, 5, 60, Layout.BLOCK_MAJOR)  # nor do whole blocks of 300


def arbiter() -> Arbiter:
    return Arbiter.create(slab_bytes=SLAB, slab_count=SLABS, header_slabs=HEADERS)


def space_of(arbiter: Arbiter, geometry: KVGeometry, header_index: int) -> KVSpace:
    partition = arbiter.add_partition(f"tenant {header_index}", reserve_slabs=0, limit_slabs=SLABS)
    return KVSpace(arbiter, partition, geometry, header_index=header_index)


def all_blocks(space: KVSpace) -> list[int]:
    ids = space.allocator.alloc(space.allocator.free_blocks)
    assert ids is not None
    return ids


def write(space: KVSpace, ids: list[int] | range, value: int) -> None:
    """Write whole blocks the way the tenant's engine would."""
    if space.geometry.layout is Layout.LAYER_MAJOR:
        for view in space.views():
            view[list(ids)] = value
    else:
        rows = space.flat().reshape(-1, space.geometry.block_bytes)
        rows[list(ids)] = value


def slabs_touched(arbiter: Arbiter, value: int) -> set[int]:
    """Return which slabs hold `value`; header slabs count from -HEADERS."""
    rows = arbiter.pool_view().reshape(-1, SLAB)
    return {int(row) - HEADERS for row in np.flatnonzero((rows == value).any(axis=1))}


@pytest.mark.parametrize("borrower", [LAYERED, WHOLE], ids=["layer_major", "block_major"])
@pytest.mark.parametrize("headers", [(0, 1), (2, 0)])
def test_writes_never_leave_the_own_slabs(borrower: KVGeometry, headers: tuple[int, int]) -> None:
    shared = arbiter()
    serving = space_of(shared, SERVING, headers[0])
    rollout = space_of(shared, borrower, headers[1])
    own = {serving.partition: set(), rollout.partition: set()}
    for turn in range(SLABS):  # in turns, so that neighbours have different owners
        space = (serving, rollout)[turn % 2]
        own[space.partition] |= set(shared.take(space.partition, 1))
    for value, space, header in ((1, serving, headers[0]), (2, rollout, headers[1])):
        write(space, all_blocks(space), value)
        write(space, space.null_blocks, value)
        assert slabs_touched(shared, value) == own[space.partition] | {header - HEADERS}
    write(serving, list(serving.null_blocks), 1)
    assert slabs_touched(shared, 2) == own[rollout.partition] | {headers[1] - HEADERS}


@pytest.mark.parametrize("geometry", [SERVING, LAYERED], ids=["even", "uneven"])
def test_layer_views_share_no_byte(geometry: KVGeometry) -> None:
    shared = arbiter()
    space = space_of(shared, geometry, 1)
    shared.take(space.partition, SLABS)
    ids = [*space.null_blocks, *all_blocks(space)]
    for number, view in enumerate(space.views(), start=1):
        view[ids] = number
    counts = np.bincount(shared.pool_view(), minlength=geometry.layers + 1)[1:]
    assert counts.tolist() == [len(ids) * geometry.layer_block_bytes] * geometry.layers
    assert len(ids) == (SLABS + 1) * geometry.blocks_per_slab(SLAB)


def test_views_have_one_shape_and_one_stride() -> None:
    space = space_of(arbiter(), SERVING, 0)
    views = space.views(np.float16)
    assert len(views) == SERVING.layers
    assert {view.shape for view in views} == {views[0].shape}
    assert {view.strides for view in views} == {(SERVING.layer_block_bytes, 2)}
    starts = [view.ctypes.data for view in views]
    distance = space.blocks_per_slab * SERVING.layer_block_bytes
    assert np.diff(starts).tolist() == [distance] * (SERVING.layers - 1)
    exchanged = np.from_dlpack(views[1])
    exchanged[0, 0] = 3
    assert views[1][0, 0] == 3


def test_null_blocks_are_never_lent() -> None:
    shared = arbiter()
    for header, geometry in enumerate((SERVING, LAYERED, WHOLE)):
        space = space_of(shared, geometry, header)
        shared.take(space.partition, 2)
        ids = all_blocks(space)
        assert space.null_block == 0
        assert {0, 1} <= set(space.null_blocks)
        assert not set(ids) & set(space.null_blocks)


def test_what_does_not_fit_is_refused() -> None:
    shared = arbiter()
    with pytest.raises(InvalidArgument, match="from 0 to 2, got 3"):
        space_of(shared, SERVING, 3)
    with pytest.raises(InvalidArgument, match="room for at least 2 blocks"):
        KVSpace(shared, 0, KVGeometry(1, 1, SLAB), header_index=0)
    space = space_of(shared, WHOLE, 1)
    with pytest.raises(InvalidArgument, match="views need layout layer_major"):
        space.views()
    layered = space_of(shared, LAYERED, 2)
    with pytest.raises(InvalidArgument, match="must divide a layer's block of 100 bytes, got 8"):
        layered.views(np.float64)
