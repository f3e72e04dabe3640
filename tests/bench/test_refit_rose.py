"""Rose's side of the comparisons: every element in one tile, every rank at the trainer's bits."""

from pathlib import Path

import numpy as np
import pytest

from bench.link_ends import Wire, link_ends
from bench.netns import shaped_link
from bench.refit_peers import Layout
from bench.refit_rose import Cut, rose_trainer
from bench.versions import Versions, two_versions
from rose.errors import CorruptData
from rose.transfer.tiles import TILE_ELEMENTS
from rose.units import MIB, NS_PER_MS
from tests.links import needs_links

LAYOUT = Layout((3 * TILE_ELEMENTS, 64, 120_002, 2), ranks=2)


@pytest.fixture(autouse=True, scope="module")
def _needs_a_link() -> None:
    needs_links()


@pytest.fixture(scope="module")
def versions() -> Versions:
    return two_versions(LAYOUT.count, density=0.01)


def test_every_element_is_in_one_tile_and_with_the_rank_that_holds_it() -> None:
    canonical = np.arange(LAYOUT.count, dtype=np.uint32)
    cut = Cut.of(LAYOUT)
    seen = np.concatenate([canonical[where] for where in cut.canonical])
    assert np.array_equal(np.sort(seen), canonical)
    for rank in range(LAYOUT.ranks):
        row = LAYOUT.row_of(rank, canonical)  # type: ignore[arg-type]
        mine = [tile for tile, whose in enumerate(cut.rank) if whose == rank]
        for tile in mine:
            assert np.array_equal(row[cut.held[tile]], canonical[cut.canonical[tile]])
        assert sum(cut.tiles[tile].count for tile in mine) == len(row)


def test_each_change_crosses_once_and_every_rank_has_the_trainers_bits(
    versions: Versions, tmp_path: Path
) -> None:
    np.save(tmp_path / "old.npy", versions.old)
    with (
        shaped_link(1e9) as link,
        rose_trainer(LAYOUT, versions.old, tmp_path, link) as trainer,
    ):
        before = link.near.sent_bytes()
        payload = sum(trainer.update(new) for new in (versions.new, versions.old, versions.new))
        crossed = link.near.sent_bytes() - before
        assert payload <= crossed <= 1.5 * payload + 50_000


def test_a_rank_that_begins_with_other_weights_is_mended(
    versions: Versions, tmp_path: Path
) -> None:
    other = versions.old.copy()
    other[0] ^= 1
    np.save(tmp_path / "old.npy", other)
    with (
        shaped_link(1e9) as link,
        rose_trainer(LAYOUT, versions.old, tmp_path, link) as trainer,
    ):
        trainer.update(versions.new)  # in which the digests of all ranks are compared


def test_a_rank_that_is_missing_is_found(versions: Versions, tmp_path: Path) -> None:
    np.save(tmp_path / "old.npy", versions.old)
    with (
        shaped_link(1e9) as link,
        rose_trainer(LAYOUT, versions.old, tmp_path, link) as trainer,
    ):
        trainer.ranks.pop()
        with pytest.raises(CorruptData, match="other weights"):
            trainer.update(versions.new)


def test_both_ways_through_a_wire_bring_all_bytes_and_wait_for_the_delay() -> None:
    nbytes, delay_ms = 2 * MIB, 60.0
    with link_ends(Wire(1e9, delay_ms, 0.001, "cubic"), nbytes) as ends:
        for move in (ends.by_rose, ends.by_tcp, lambda: ends.by_tcp(4), ends.by_rose):
            # The question and the last byte cross one after the other: upper bounds alone.
            fastest = 8 * (2 * nbytes) / (2 * delay_ms * NS_PER_MS / 1e9)
            assert 0 < move() <= fastest
