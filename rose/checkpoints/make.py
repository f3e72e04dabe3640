"""Make the delta file of two checkpoints, tile by tile, so that memory does not grow with them."""

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

from rose.checkpoints.atomic_file import beside
from rose.checkpoints.checkpoint import THREADS, TILE_UNITS, Checkpoint
from rose.checkpoints.contents import (
    FORMAT,
    Advance,
    Layout,
    Pair,
    Piece,
    TensorDelta,
    TensorTile,
    layout_of,
    pairs,
)
from rose.errors import InvalidArgument
from rose.transfer.codec.operations import delta_pack
from rose.transfer.digests import Digest

MAGIC: Final = b"ROSECKD1"
# magic, version, zero, bytes of the body, bytes of the index, SHA-256 of the index, zero
HEADER: Final = struct.Struct("<8sIIQQ32sI")
CRC: Final = struct.Struct("<I")  # of the header, behind it
BODY_AT: Final = HEADER.size + CRC.size


def make_delta_file(
    old: Checkpoint,
    new: Checkpoint,
    path: Path,
    *,
    advance: Advance,
    tile_units: int = TILE_UNITS,
) -> tuple[TensorDelta, ...]:
    """Write what turns `old` into `new`, and back; `path` appears whole or not at all.

    Args:
        old: what the receiver has.
        new: what it is to have.
        path: of the delta file.
        advance: is told of progress.
        tile_units: elements of a tile.

    Returns:
        What the file says about each tensor.

    Raises:
        InvalidArgument: there is something at `path`, or the file cannot be written.
    """
    if path.exists():
        raise InvalidArgument(f"{path} is there already; name a file that is not")
    with beside(path) as partial, partial.open("wb") as file:
        file.write(bytes(BODY_AT))
        body = _Body(file)
        sides = {
            name: _describe_layout(layout_of(one), body)
            for name, one in (("old", old), ("new", new))
        }
        tensors = tuple(_packed(pair, body, tile_units, advance) for pair in pairs(old, new))
        described = [_describe_tensor(tensor) for tensor in tensors]
        content = {"format": FORMAT, "tile_units": tile_units, **sides, "tensors": described}
        index = json.dumps(content, separators=(",", ":")).encode()
        file.write(index)
        file.seek(0)
        sha256 = hashlib.sha256(index).digest()
        header = HEADER.pack(MAGIC, FORMAT, 0, body.nbytes, len(index), sha256, 0)
        file.write(header + CRC.pack(zlib.crc32(header)))
    return tensors


class _Body:
    """Takes pieces, each once: the second of two that are alike is a reference to the first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pieces: dict[str, Piece] = {}
        self.nbytes = 0

    def add(self, content: bytes) -> Piece:
        sha256 = hashlib.sha256(content).hexdigest()
        piece = self._pieces.get(sha256)
        if piece is None:
            piece = self._pieces[sha256] = Piece(self.nbytes, len(content), sha256)
            self._file.write(content)
            self.nbytes += len(content)
        return piece


def _packed(pair: Pair, body: _Body, tile_units: int, advance: Advance) -> TensorDelta:
    stored = pair.stored
    tiles = []
    for old, new in pair.tiles(tile_units):
        delta = delta_pack(new, old.copy(), threads=THREADS)
        frame = body.add(delta.to_bytes()) if delta.changed else None
        tiles.append(TensorTile(delta.base_digest, delta.digest, frame))
        advance(old.nbytes)
    return TensorDelta(stored.name, stored.dtype, stored.shape, pair.presence, tuple(tiles))


def _describe_layout(layout: Layout, body: _Body) -> dict[str, Any]:
    index = layout.index
    return {
        "is_folder": layout.is_folder,
        "files": [
            {"name": file.name, "header": _describe_piece(body.add(file.header))}
            for file in layout.files
        ],
        "index": index and {"name": index[0], "content": _describe_piece(body.add(index[1]))},
    }


def _describe_tensor(tensor: TensorDelta) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "in": tensor.presence.value,
        "tiles": [
            {
                "old": hexadecimal(tile.old),
                "new": hexadecimal(tile.new),
                "frame": None if tile.frame is None else _describe_piece(tile.frame),
            }
            for tile in tensor.tiles
        ],
    }


def _describe_piece(piece: Piece) -> list[Any]:
    return [piece.offset, piece.nbytes, piece.sha256]


def hexadecimal(value: Digest) -> str:
    """Write a digest as 32 digits."""
    return "".join(f"{part:016x}" for part in value)
