"""A chunk is accepted only with the published bytes and a sound delta."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import CorruptData
from rose.transfer import Delta, delta_apply, delta_pack
from rose.transfer.manifest import Chunk
from rose.transfer.publishing.log import VersionLog
from rose.transfer.receiving.puller import sound_delta
from tests.transfer.worker import TILE, TILES, weights


def published(step: int) -> tuple[Chunk, bytes]:
    """Return the one chunk of a version in which some elements of tile 3 make a step."""
    log = VersionLog()
    publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    fresh = weights(1)
    fresh[3 * TILE : 3 * TILE + 9] += np.uint16(step % (1 << 16))
    manifest = publisher.publish(fresh)
    [chunk] = manifest.chunks
    return chunk, log.chunk(manifest.key, 3) or b""


def described(delta: Delta, changed: int) -> tuple[Chunk, bytes]:
    frame = delta.to_bytes()
    return Chunk(3, len(frame), changed, hashlib.sha256(frame).digest(), delta.digest), frame


def test_published_frame_is_sound() -> None:
    chunk, frame = published(1)
    delta = sound_delta(frame, chunk, TILES[3])
    assert (delta.count, delta.changed) == (TILE, 9)


def test_frame_that_is_not_the_published_chunk_of_the_tile_is_refused() -> None:
    chunk, frame = published(1)
    other_chunk, other = published(-1)  # sound, and of the same size
    assert (len(other), other_chunk.changed) == (len(frame), chunk.changed)
    no_deltas = (bytes(100), frame[:8] + b"\x03" + frame[9:])
    delta = Delta.from_bytes(frame)
    payload = delta.payload.copy()
    payload[-1] ^= np.uint32(1 << 31)  # a bit that is not used
    last = TILES[len(TILES) - 1]
    assert last.count != TILE
    wrong = [(one, chunk, TILES[3]) for one in (other, frame[:63], frame[:-1], frame + b"\0", b"")]
    wrong += [
        (one, Chunk(3, 100, 9, hashlib.sha256(one).digest(), (1, 1)), TILES[3]) for one in no_deltas
    ]
    wrong += [(frame, replace(chunk, changed=8), TILES[3])]
    wrong += [(frame, replace(chunk, digest=(0, 0)), TILES[3])]
    wrong += [(frame, chunk, tile) for tile in (last, replace(TILES[3], width=8))]
    ill_formed, content = described(replace(delta, payload=payload), delta.changed)
    for bad, its, tile in [*wrong, (content, ill_formed, TILES[3])]:
        with pytest.raises(CorruptData):
            sound_delta(bad, its, tile)


def test_delta_checked_on_arrival_is_not_checked_again() -> None:
    """A damaged delta is refused when it is applied, unless it is marked as checked."""
    chunk, frame = published(1)
    sound = sound_delta(frame, chunk, TILES[3])
    assert sound.is_checked
    assert not Delta.from_bytes(frame).is_checked
    payload = sound.payload.copy()
    payload[-1] ^= np.uint32(1 << 31)  # a bit that is not used
    wrong = replace(sound, payload=payload, is_checked=False)
    bits = weights(1)[3 * TILE : 4 * TILE]
    with pytest.raises(CorruptData):
        delta_apply(bits.copy(), wrong)
    delta_apply(bits, replace(wrong, is_checked=True))  # as told
    assert np.array_equal(bits[:9], weights(1)[3 * TILE : 3 * TILE + 9] + 1)


def test_whole_tile_of_changes_fits_a_chunk() -> None:
    largest = 1 << 20
    delta = delta_pack(np.arange(largest, dtype=np.uint16), np.full(largest, 0x5555, np.uint16))
    chunk, frame = described(delta, delta.changed)
    assert chunk.nbytes == len(frame) > 2 * largest
