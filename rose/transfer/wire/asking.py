"""How chunks are asked for in calls of gRPC: an update, and tiles of it."""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from rose.errors import CorruptData
from rose.transfer.manifest import WHOLE, Chunk, UpdateKey

# In one message.
ASK_CHUNKS: Final = 8192

# n, base_n, then u32 tiles
_ASK: Final = struct.Struct("<Qq")
_TILE_BYTES: Final = 4


def portions(wanted: Sequence[Chunk], nbytes_max: int) -> Iterator[list[Chunk]]:
    """Yield what is wanted, as much at a time as one call or one place takes."""
    portion: list[Chunk] = []
    nbytes = 0
    for chunk in wanted:
        if portion and (nbytes + chunk.nbytes > nbytes_max or len(portion) == ASK_CHUNKS):
            yield portion
            portion, nbytes = [], 0
        portion.append(chunk)
        nbytes += chunk.nbytes
    if portion:
        yield portion


def pack_ask(key: UpdateKey, portion: Sequence[Chunk]) -> bytes:
    """Return what asks for chunks of an update."""
    tiles = struct.pack(f"<{len(portion)}I", *(chunk.tile for chunk in portion))
    return _ASK.pack(key.n, key.base_n) + tiles


def read_ask(content: bytes) -> tuple[UpdateKey, tuple[int, ...]]:
    """Return the update and the tiles that are asked for.

    Raises:
        CorruptData: the bytes ask for nothing.
    """
    size = len(content) - _ASK.size
    if size <= 0 or size % _TILE_BYTES or size > ASK_CHUNKS * _TILE_BYTES:
        raise CorruptData("these bytes ask for no chunks")
    n, base_n = _ASK.unpack_from(content)
    if base_n < WHOLE:
        raise CorruptData("these bytes ask for no chunks")
    return UpdateKey(n, base_n), struct.unpack_from(f"<{size // _TILE_BYTES}I", content, _ASK.size)
