"""A relay that lies: its messages are consistent, but it lacks the key."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from rose.transfer import Delta, Tiles, Version, delta_pack
from rose.transfer.codec.operations import digest
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import TILE_MAC_BYTES, Chunk, Manifest, UpdateKey
from rose.transfer.publishing.contributor import chunk_of
from rose.transfer.signing import Signing
from tests.transfer.faults.history import History
from tests.transfer.faults.shards import COUNTS, EVERY, TILES, Bits, changed

HEADER_BYTES: Final = 96
_OTHER_KEY: Final = Signing(b"a guess")

Frames = dict[tuple[UpdateKey, int], bytes]


def forged_frame(frame: bytes, rng: Random) -> bytes:
    """Return a frame of the same length and digests, with right checksums and other changes."""
    content = bytearray(frame)
    if len(content) > HEADER_BYTES:
        content[rng.randrange(HEADER_BYTES, len(content))] ^= 1 << rng.randrange(8)
    content[88:92] = struct.pack("<I", zlib.crc32(content[HEADER_BYTES:]))
    content[92:96] = struct.pack("<I", zlib.crc32(content[:92]))
    return bytes(content)


def forged_update(
    manifest: Manifest, history: History, rng: Random
) -> tuple[Manifest, Frames] | None:
    """Return an update from a true base to weights that nobody published."""
    if manifest.base is None or manifest.is_announcement:
        return None
    before = history[manifest.base]
    return _made(manifest, before, changed(before, rng), rng)


def forged_snapshot(
    manifest: Manifest, tiles: Sequence[int], history: History, rng: Random
) -> tuple[Manifest, Frames]:
    """Return a snapshot of weights that nobody published, under a true name."""
    after = changed(history[manifest.version], rng)
    frames = {
        (manifest.key, tile): after[tile].tobytes() + rng.randbytes(TILE_MAC_BYTES)
        for tile in tiles
    }
    chunks = [
        Chunk(tile, len(frames[manifest.key, tile]), COUNTS[tile], b"", digest(after[tile]))
        for tile in tiles
    ]
    return _restated(manifest, chunks, after, rng), frames


def _made(manifest: Manifest, before: Bits, after: Bits, rng: Random) -> tuple[Manifest, Frames]:
    chunks: list[Chunk] = []
    frames: Frames = {}
    for tile in EVERY:
        delta: Delta = delta_pack(after[tile], before[tile].copy())
        if delta.changed:
            frame = delta.to_bytes()
            chunks.append(chunk_of(tile, delta, frame))
            frames[manifest.key, tile] = frame
    return _restated(manifest, chunks, after, rng), frames


def _restated(manifest: Manifest, chunks: list[Chunk], after: Bits, rng: Random) -> Manifest:
    digests = TileDigests({tile: digest(bits) for tile, bits in after.items()})
    says_tiles = bool(manifest.tile_digests)
    false = replace(
        manifest,
        chunks=tuple(chunks),
        digest=digests.total,
        tile_digests=tuple(digests[tile] for tile in EVERY) if says_tiles else (),
    )
    # As whoever has no key might: with the true MAC of another manifest, or with one of its own.
    return false if rng.random() < 0.5 else _OTHER_KEY.signed(false)


def misnamed(manifest: Manifest, rng: Random) -> Manifest:
    """Return a true manifest under a false name, or for another cut of the weights."""
    version = manifest.version
    other = Version(version.run, version.incarnation + rng.randint(0, 2), version.n + 1)
    if rng.random() < 0.8:
        return replace(manifest, version=other)
    return replace(manifest, layout=Tiles.of(TILES.count).layout)
