"""Eight receivers in four layouts: cut without a gap, and each change crosses to them once."""

from collections import Counter

import numpy as np
import pytest

from bench.crossing import LAYOUTS, crossing
from bench.shardings import Memory, by_rows, decoder, shard_map


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_holds_every_element_of_the_model(layout: str) -> None:
    ranks, cut = LAYOUTS[layout]
    tensors = decoder()
    shards = shard_map(tensors, cut)
    assert shards.ranks == tuple(range(ranks))
    for name, spec in tensors.items():
        seen = np.zeros(spec.shape, np.int64)
        for piece in shards.pieces:
            if piece.tensor == name:
                seen[tuple(map(slice, piece.region.offset, np.add(*_ends(piece.region))))] += 1
        # A norm is on every rank of a tensor-parallel engine; everything else is there once.
        assert seen.min() >= 1
        assert seen.max() == 1 or len(spec.shape) == 1


def _ends(region):
    return region.offset, region.shape


def test_memory_is_the_box_of_the_tensor_and_tells_when_it_is_not() -> None:
    tensors = decoder()
    rng = np.random.default_rng(2)
    canonical = {
        name: rng.integers(0, 1 << 16, spec.shape, np.uint16) for name, spec in tensors.items()
    }
    memory = Memory.of(shard_map(tensors, by_rows(3)), 1, canonical)
    assert memory.equals(canonical)
    memory.parameters["embed"][5] ^= 1
    assert not memory.equals(canonical)


def test_each_change_crosses_once_to_eight_receivers() -> None:
    with crossing() as way:
        assert len(way.ranks) == 8
        for is_new in (True, False, True):
            crossed = way.update(is_new=is_new)
            assert crossed.crossing == crossed.bound
            # Four replicas have it all, and the norms are on two ranks of one of them.
            assert crossed.relayed == crossed.received  # nobody goes past the relay
            assert crossed.received >= 4 * crossed.crossing
            assert crossed.flat <= crossed.bound < 1.5 * crossed.flat
        # Nobody holds a tile that nobody sends, and every tile has one contributor.
        senders = Counter(tile.contributor for tile in way.plan.tiles)
        assert set(senders) == set(range(4))
