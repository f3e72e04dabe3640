"""A frame that is asked for, and its update."""

import hashlib

from rose.transfer.manifest import Chunk, UpdateKey

KEY = UpdateKey(7, 6)


def chunk_of(tile: int, frame: bytes) -> Chunk:
    return Chunk(tile, len(frame), 1, hashlib.sha256(frame).digest(), (0, 0))
