"""Merged deltas at a relay: made from local updates, and verified by signed manifests."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_merge
from rose.transfer.manifest import Chunk, Manifest, UpdateKey

Held: TypeAlias = Callable[[UpdateKey, int], bytes | None]


def rebuilt(chunks: Iterable[Chunk], parts: Sequence[Manifest], held: Held) -> dict[int, bytes]:
    """Return the frames of a merged delta that can be made from shorter updates, by tile.

    A merge gives the same bytes as the publisher's, so the SHA-256 of a chunk verifies it. Chunks
    that do not match, and those with missing or STRAT-encoded parts, are left out.

    Args:
        chunks: chunks of the merged delta.
        parts: updates with the same start and end, in order.
        held: returns their frames.
    """
    made: dict[int, bytes] = {}
    tiles_of = [(part.key, {chunk.tile for chunk in part.chunks}) for part in parts]
    for chunk in chunks:
        frames = [held(key, chunk.tile) for key, tiles in tiles_of if chunk.tile in tiles]
        whole = [frame for frame in frames if frame is not None]
        if not whole or len(whole) < len(frames):
            continue
        frame = whole[0] if len(whole) == 1 else _merged(whole)
        if frame is not None and chunk.is_of(frame):
            made[chunk.tile] = frame
    return made


def _merged(frames: Sequence[bytes]) -> bytes | None:
    try:
        merged, *others = (Delta.from_bytes(frame) for frame in frames)
        for delta in others:
            merged = delta_merge(merged, delta)
    except (CorruptData, InvalidArgument):
        return None  # such as a STRAT delta, which only its base can decode
    return merged.to_bytes()
