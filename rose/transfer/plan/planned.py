"""A tile of a plan: a box of a tensor, and its way from one contributor to all receivers."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from rose.errors import InvalidArgument
from rose.transfer.plan.spec import Holder, Region

# What the codec takes, as numbers of 8, 16 or 32 bits.
_WIDTHS: Final = {
    "bool": 8,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "int8": 8,
    "uint8": 8,
    "bfloat16": 16,
    "float16": 16,
    "int16": 16,
    "uint16": 16,
    "float32": 32,
    "int32": 32,
    "uint32": 32,
}


def width_of(tensor: str, dtype: str) -> int:
    """Return the bits of an element.

    Raises:
        InvalidArgument: nothing of this dtype crosses; the sentence names the tensor.
    """
    if dtype not in _WIDTHS:
        raise InvalidArgument(f"{tensor} is of {dtype}: choose one of {', '.join(_WIDTHS)}")
    return _WIDTHS[dtype]


@dataclass(frozen=True, slots=True, order=True)
class Landing:
    """Where a tile comes into a cluster.

    Args:
        cluster: that it comes into.
        relay: the one it lands on, before it fans out.
    """

    cluster: str
    relay: str


@dataclass(frozen=True, slots=True)
class PlannedTile:
    """A box of a tensor that all ranks have whole or not at all, in row-major order.

    Args:
        index: its place among the tiles.
        tensor: by its canonical name.
        region: of it.
        dtype: that crosses.
        contributor: the source rank that sends it.
        landings: where it lands, one relay for each cluster that has relays and needs it; to others
            the contributor sends it receiver by receiver.
        receivers: who has it in the end, ascending.
    """

    index: int
    tensor: str
    region: Region
    dtype: str
    contributor: int
    landings: tuple[Landing, ...]
    receivers: tuple[Holder, ...]

    @property
    def count(self) -> int:
        """Return how many elements it has."""
        return self.region.count

    @property
    def width(self) -> int:
        """Return the bits of an element."""
        return width_of(self.tensor, self.dtype)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return self.count * self.width // 8


_LAYOUT: Final = b"rose layout 1\n"
_PLAN: Final = b"rose plan 1\n"


def tile_name(tensor: str, region: Region) -> bytes:
    """Return what identifies a tile among all layouts: its tensor and its box.

    Little-endian: the bytes of the name and their number (u32) before them, how many dimensions
    (u32), each offset (u64), each size (u64).
    """
    dimensions = len(region.shape)
    numbers = struct.pack(f"<I{2 * dimensions}Q", dimensions, *region.offset, *region.shape)
    return _text(tensor) + numbers


def layout_id(tiles: Iterable[PlannedTile]) -> str:
    """Return 64 hex digits over tensor, region and dtype of each tile, in order."""
    packed = sha256(_LAYOUT)
    for tile in tiles:
        packed.update(tile_name(tile.tensor, tile.region) + _text(tile.dtype))
    return packed.hexdigest()


def plan_id(layout: str, tiles: Iterable[PlannedTile]) -> str:
    """Return 64 hex digits over a layout and the way of each of its tiles, in order."""
    packed = sha256(_PLAN + bytes.fromhex(layout))
    for tile in tiles:
        packed.update(b"".join(_way(tile)))
    return packed.hexdigest()


def _way(tile: PlannedTile) -> Iterator[bytes]:
    yield struct.pack("<QII", tile.contributor, len(tile.landings), len(tile.receivers))
    for landing in tile.landings:
        yield _text(landing.cluster) + _text(landing.relay)
    for holder in tile.receivers:
        yield _text(holder.cluster) + _text(holder.replica) + struct.pack("<Q", holder.rank)


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<I", len(content)) + content
