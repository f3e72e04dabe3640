"""A tile of a plan: a box of a tensor, and its route from one contributor to all receivers."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from rose.errors import InvalidArgument
from rose.transfer.plan.spec import Holder, Region

# Dtypes that the codec accepts, with their widths in bits.
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
    """Return the bits per element.

    Raises:
        InvalidArgument: this dtype cannot be sent; the message names the tensor.
    """
    if dtype not in _WIDTHS:
        raise InvalidArgument(f"{tensor} has the dtype {dtype}: choose one of {', '.join(_WIDTHS)}")
    return _WIDTHS[dtype]


@dataclass(frozen=True, slots=True, order=True)
class Landing:
    """The relay through which a tile enters a cluster.

    Args:
        cluster: cluster of the relay.
        relay: name of the relay, which distributes the tile in the cluster.
    """

    cluster: str
    relay: str


@dataclass(frozen=True, slots=True)
class PlannedTile:
    """A box of a tensor that each rank holds whole or not at all, in row-major order.

    Args:
        index: index among the tiles.
        tensor: canonical name of the tensor.
        region: its box in the tensor.
        dtype: dtype on the wire.
        contributor: the source rank that sends it.
        landings: one relay for each cluster that needs the tile and has relays; in other clusters
            the contributor sends the tile to each receiver.
        receivers: ranks that need it, ascending.
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
        """Return the number of elements."""
        return self.region.count

    @property
    def width(self) -> int:
        """Return the bits per element."""
        return width_of(self.tensor, self.dtype)

    @property
    def nbytes(self) -> int:
        """Return the size of the elements, in bytes."""
        return self.count * self.width // 8


_LAYOUT: Final = b"rose layout 1\n"
_PLAN: Final = b"rose plan 1\n"


def tile_name(tensor: str, region: Region) -> bytes:
    """Return the identity of a tile in any layout: its tensor and its box.

    Little-endian: length of the name in bytes (u32), the name, number of dimensions (u32), offsets
    (u64), sizes (u64).
    """
    dimensions = len(region.shape)
    numbers = struct.pack(f"<I{2 * dimensions}Q", dimensions, *region.offset, *region.shape)
    return _text(tensor) + numbers


def layout_id(tiles: Iterable[PlannedTile]) -> str:
    """Return the SHA-256 of tensor, region and dtype of all tiles in order, in 64 hex digits."""
    packed = sha256(_LAYOUT)
    for tile in tiles:
        packed.update(tile_name(tile.tensor, tile.region) + _text(tile.dtype))
    return packed.hexdigest()


def plan_id(layout: str, tiles: Iterable[PlannedTile]) -> str:
    """Return the SHA-256 of a layout id and the tiles' routes in order, in 64 hex digits."""
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
