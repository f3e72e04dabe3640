"""Merged deltas bring a late receiver to the newest version in few updates."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.row_publisher import RowPublisher
from rose.errors import CorruptData, InternalError, InvalidArgument, Unavailable
from rose.transfer.codec.operations import delta_pack
from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.merger import MergerThread, Update, merged_update
from rose.transfer.publishing.shelf import path
from rose.transfer.signing import Signing
from tests.transfer.chain_world import KEY, Behind, Chain
from tests.transfer.worker import LONG_S, TILE, TILES, changed, row_digest, weights
from tests.waiting import wait_for


@settings(max_examples=10)
@given(st.integers(1, 40), st.integers(0, 39))
def test_late_receiver_needs_few_updates(newest: int, lag: int) -> None:
    chain = Chain()
    start = max(1, newest - lag)
    chain.publish(start - 1)
    behind = Behind(chain.log, chain.bits)
    chain.publish(newest - start)
    behind.follow(newest)
    assert np.array_equal(behind.bits, chain.bits)
    assert behind.staging.stats.snapshots == 0
    updates = [key for key in behind.taken if key.base_n > 0]  # but for learning its name
    assert len(updates) <= 2 * max(newest - start, 1).bit_length()
    assert sum(key.n - key.base_n for key in updates) == newest - start


def test_merged_deltas_begin_at_multiples_of_their_length_from_the_opening() -> None:
    chain = Chain()
    chain.publish(9)  # 1 to 10
    assert chain.merged_there() == [(1, 3), (1, 5), (1, 9), (3, 5), (5, 7), (5, 9), (7, 9)]
    assert chain.merger.made == 7


def test_merged_delta_equals_one_pack_and_is_smaller_than_its_parts() -> None:
    chain = Chain()
    chain.publish(8, share=0.3)
    manifests = {one.key: one for one in chain.log.wait_manifests(-1, 0)}
    merged = manifests[UpdateKey(9, 1)]
    assert merged.nbytes < 0.7 * sum(manifests[UpdateKey(n, n - 1)].nbytes for n in range(2, 10))
    assert merged.digest == row_digest(chain.by_n[9])
    assert merged.base_digest == row_digest(chain.by_n[1])
    for chunk in merged.chunks:
        where = TILES[chunk.tile].where
        packed = delta_pack(chain.by_n[9][where], chain.by_n[1][where].copy())
        assert chain.log.chunk(merged.key, chunk.tile) == packed.to_bytes()
        assert (chunk.changed, chunk.digest) == (packed.changed, packed.digest)


def test_merged_delta_omits_tiles_whose_changes_cancel() -> None:
    chain = Chain()
    there, back = chain.bits.copy(), chain.bits.copy()
    there[: 2 * TILE] += np.uint16(1)
    back[0] += np.uint16(1)  # tile 0 stays another one, tile 1 comes back
    for bits in (there, back):
        chain.publisher.publish(bits)
        while chain.merger.step():
            pass
    [merged] = [one for one in chain.log.wait_manifests(-1, 0) if one.key == UpdateKey(3, 1)]
    assert [chunk.tile for chunk in merged.chunks] == [0]


def test_merged_deltas_are_signed_as_versions_are() -> None:
    chain = Chain()
    chain.publish(2)
    assert chain.merged_there() == [(1, 3)]
    assert all(KEY.is_signed(one) for one in chain.log.wait_manifests(-1, 0))
    unsigned = Chain(signing=Signing())
    unsigned.publish(2)
    assert not any(KEY.is_signed(one) for one in unsigned.log.wait_manifests(-1, 0))


def test_log_forgets_versions_and_keeps_the_path_from_the_opening() -> None:
    chain = Chain(versions_max=4, merged_max=2)
    chain.publish(29)
    assert sorted(key.n for key in singles(chain.log)) == [27, 28, 29, 30]
    edges = chain.log.edges()
    for edge in edges:
        assert path(edges, edge.key.base_n, 30) is not None
    behind = Behind(chain.log, chain.by_n[1])
    behind.follow(30)
    assert np.array_equal(behind.bits, chain.bits)
    assert behind.staging.stats.snapshots == 0


def singles(log: VersionLog) -> list[UpdateKey]:
    keys = [one.key for one in log.wait_manifests(-1, 0)]
    return [key for key in keys if key.n - key.base_n == 1]


def test_merged_deltas_that_are_late_make_no_gap() -> None:
    chain = Chain(versions_max=4)
    chain.publish(20, is_merged=False)
    while chain.merger.step():
        pass
    assert {base_n for base_n, _ in chain.merged_there()} <= set(range(17, 21))
    edges = chain.log.edges()
    assert all(path(edges, one.key.base_n, 21) is not None for one in edges)


def test_version_unknown_to_the_merger_starts_a_new_row() -> None:
    chain = Chain()
    chain.publish(4)
    note, chain.publisher._on_published = chain.merger.note, None
    chain.publish(1)
    chain.publisher._on_published = note
    chain.publish(2)
    assert chain.merged_there() == [(1, 3), (1, 5), (3, 5), (6, 8)]
    behind = Behind(chain.log, chain.by_n[1])
    behind.follow(8)
    assert np.array_equal(behind.bits, chain.bits)


def test_queue_of_a_slow_thread_is_bounded() -> None:
    chain = Chain()
    chain.merger._waiting_bytes_max = 2500
    for _ in range(9):
        chain.publish(1, is_merged=False)
        assert 0 < chain.merger._noted_bytes <= 2500
    assert sum(one.nbytes for one in chain.merger._noted) == chain.merger._noted_bytes
    chain.publish(2)
    assert chain.merged_there()  # of the last ones


def test_bytes_that_wait_for_a_merge_are_bounded() -> None:
    chain = Chain()
    chain.publish(1, is_merged=False, share=0.1)
    limit = chain.merger._waiting_bytes_max = 5 * chain.merger._noted_bytes // 2
    waited = []
    for _ in range(16):
        chain.publish(1, share=0.1)
        waited.append(sum(one.nbytes for one in chain.merger._halves.values()))
    assert limit / 2 < max(waited) <= limit  # four halves would have waited, and did not
    assert chain.merged_there()


def test_with_too_much_waiting_the_oldest_are_left_out() -> None:
    chain = Chain()
    chain.merger._waiting_bytes_max = 1
    chain.publish(8)
    assert chain.merged_there() == []
    assert chain.merger.step() is False


def test_updates_that_are_not_in_a_row_are_no_merged_delta() -> None:
    chain = Chain()
    noted: list[Update] = []
    chain.publisher._on_published = lambda *args: noted.append(Update(*args))
    chain.publish(3)
    with pytest.raises(InternalError, match="not consecutive"):
        merged_update(noted[0], noted[2], KEY)
    renamed = replace(noted[2], manifest=replace(noted[2].manifest, base=noted[0].manifest.version))
    with pytest.raises(CorruptData):
        merged_update(noted[0], renamed, KEY)


def test_log_refuses_a_merged_delta_of_other_versions_or_after_close() -> None:
    chain = Chain()
    chain.publish(2)
    [merged] = [one for one in chain.log.wait_manifests(-1, 0) if one.key == UpdateKey(3, 1)]
    frames = dict(chain.log.frames(merged.key) or {})
    other = Chain()
    other.publish(1)
    assert other.log.append_merged(merged, frames) is False  # it has no version 3
    with pytest.raises(InvalidArgument):
        chain.log.append_merged(merged, {})
    chain.log.close()
    with pytest.raises(Unavailable):
        chain.log.append_merged(merged, frames)


def test_thread_makes_merged_deltas_and_is_joined() -> None:
    log = VersionLog()
    with MergerThread(log, KEY) as maker:
        publisher = RowPublisher(
            weights(1), "run", 1, 1, log, tile_elements=TILE, signing=KEY, on_published=maker.note
        )
        bits = weights(1)
        for n in range(8):
            bits = changed(bits, n)
            publisher.publish(bits)
        wait_for(lambda: maker.made == 7)
        assert maker.failure is None
    assert not maker._thread.is_alive()


def test_merged_delta_that_the_log_refuses_is_only_reported() -> None:
    chain = Chain()
    chain.publish(2, is_merged=False)
    chain.log.close()
    while chain.merger.step():
        pass
    assert chain.merger.made == 0
    assert "closed" in (chain.merger.failure or "")


def test_publishing_waits_for_no_merged_delta() -> None:
    """A merge that never ends keeps no version back."""
    log = VersionLog()
    is_held, is_merging = threading.Event(), threading.Event()
    real = log.append_merged

    def held(manifest: Manifest, chunks: dict[int, bytes]) -> bool:
        is_merging.set()
        assert is_held.wait(LONG_S)
        return real(manifest, chunks)

    log.append_merged = held  # type: ignore[method-assign]
    with MergerThread(log, KEY) as maker:
        publisher = RowPublisher(
            weights(1), "run", 1, 1, log, tile_elements=TILE, signing=KEY, on_published=maker.note
        )
        bits = weights(1)
        for n in range(6):
            bits = changed(bits, n)
            publisher.publish(bits)
        assert is_merging.wait(LONG_S)
        publisher.publish(changed(bits, 9))
        assert publisher.version.n == 8
        is_held.set()
