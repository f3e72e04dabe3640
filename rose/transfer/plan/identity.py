"""What makes two layouts, or two plans, the same: SHA-256 over numbers and names in one packing."""

import struct
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final

from rose.transfer.plan.planned import PlannedTile
from rose.transfer.plan.spec import Region

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
