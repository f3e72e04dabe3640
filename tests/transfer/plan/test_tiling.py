"""Tensors that are larger than 32-bit counts."""

import numpy as np

from rose.transfer.codec.delta import Delta
from rose.transfer.plan.tiling import plain_tiling
from rose.transfer.publishing.contributor import Contributor, PackedPart
from rose.transfer.tensors import StoredTensor
from rose.transfer.tiles import TILE_BYTES

BYTES = (1 << 32) + 5


def test_tensors_beyond_32_bits_are_cut_without_a_gap() -> None:
    stored = [StoredTensor("bytes", "U8", (BYTES,)), StoredTensor("wide", "F64", (1 << 30, 5))]
    tiling = plain_tiling(stored)
    assert tiling.tiles.nbytes == sum(one.nbytes for one in stored) == BYTES + 40 * (1 << 30)
    for one in stored:
        end = 0
        for tile in tiling.tiles:
            place = tiling.place(tile.index)
            if place.tensor == one.name:
                assert place.region.offset == (end,)
                assert place.region.shape == (tile.count,)
                end += tile.count
        assert end == one.count
    last = tiling.tiles[len(tiling.tiles) - 1]
    assert last.first + last.count == BYTES + 10 * (1 << 30)


def test_last_tiles_of_a_tensor_beyond_32_bits_are_packed_and_applied() -> None:
    tiling = plain_tiling([StoredTensor("w", "U8", (BYTES,))])
    # Pages that nobody touches take no memory.
    new, shadow, held = (np.zeros(BYTES, np.uint8) for _ in range(3))
    new[-1], new[1 << 32], new[-6 - TILE_BYTES] = 1, 2, 3
    count = len(tiling.tiles)
    owned = range(count - 3, count)
    part = PackedPart()
    weights = tiling.views({"w": held})
    contributor = Contributor(tiling.views({"w": shadow}), tiling.tiles, owned)
    contributor.pack(tiling.views({"w": new}), part)
    for tile, frame in part.frames.items():
        weights.apply(tile, Delta.from_bytes(frame), undo=False)
    assert list(part.frames) == [count - 3, count - 1]
    assert np.array_equal(held[-3 * TILE_BYTES :], new[-3 * TILE_BYTES :])
