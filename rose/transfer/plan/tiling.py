"""Named tensors cut into the tiles in which weights are published and received."""

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.spec import Region
from rose.transfer.tensors import StoredTensor
from rose.transfer.tiles import TILE_BYTES, ShardViews, Tiles

_LAYOUT: Final = b"rose checkpoint 1\n"


@dataclass(frozen=True, slots=True)
class TilePlace:
    """Place of a tile in its tensor.

    Args:
        tensor: name of the tensor.
        shape: shape of the tensor in units.
        region: part of the tensor that is the tile.
    """

    tensor: str
    shape: tuple[int, ...]
    region: Region


class Tiling:
    """All tiles of some tensors.

    Args:
        tiles: sizes of the tiles, and the layout id.
        places: place of each tile.
    """

    def __init__(self, tiles: Tiles, places: Sequence[TilePlace]) -> None:
        self.tiles = tiles
        self._places = tuple(places)

    def place(self, tile: int) -> TilePlace:
        """Return the place of a tile."""
        return self._places[tile]

    def views(self, units: Mapping[str, Any], wanted: Iterable[int] | None = None) -> ShardViews:
        """Return tiles as views of tensors.

        Args:
            units: maps the name of a tensor to its row of units, which is not copied.
            wanted: tiles to return; None for all.

        Raises:
            InvalidArgument: a tensor is missing, or has another number of units.
        """
        tiles = range(len(self._places)) if wanted is None else wanted
        return ShardViews(
            {tile: (self.view(tile, units.get(self._places[tile].tensor)),) for tile in tiles}
        )

    def view(self, tile: int, row: Any) -> Any:
        """Return a tile as a view of its tensor's row of units.

        Raises:
            InvalidArgument: the row is None, or has another number of units than the tensor.
        """
        place = self._places[tile]
        if row is None or math.prod(row.shape) != math.prod(place.shape):
            raise InvalidArgument(f"the checkpoint has no {place.tensor} of shape {place.shape}")
        if place.region.shape == place.shape:
            return row if row.shape == place.shape else row.reshape(place.shape)
        box = zip(place.region.offset, place.region.shape, strict=True)
        return row.reshape(place.shape)[tuple(slice(at, at + size) for at, size in box)]


def plain_tiling(tensors: Iterable[StoredTensor]) -> Tiling:
    """Cut each tensor into tiles of at most `TILE_BYTES`, in the order of the tensors' names.

    The result depends on names, dtypes and shapes alone, not on the files that hold the tensors.
    """
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    counts: list[int] = []
    widths: list[int] = []
    places: list[TilePlace] = []
    for tensor in ordered:
        unit_bytes = tensor.stored.unit_bytes
        units, most = tensor.nbytes // unit_bytes, TILE_BYTES // unit_bytes
        for first in range(0, units, most):
            count = min(most, units - first)
            counts.append(count)
            widths.append(8 * unit_bytes)
            places.append(TilePlace(tensor.name, (units,), Region((first,), (count,))))
    return Tiling(Tiles(counts, widths, plain_layout(ordered)), places)


def plain_layout(tensors: Iterable[StoredTensor]) -> str:
    """Return the layout id of `plain_tiling`, without cutting anything."""
    layout = hashlib.sha256(_LAYOUT)
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        for text in (tensor.name.encode(), tensor.dtype.encode()):
            layout.update(struct.pack("<Q", len(text)) + text)
        layout.update(struct.pack(f"<{len(tensor.shape) + 1}Q", len(tensor.shape), *tensor.shape))
    return layout.hexdigest()


def planned_tiling(plan: Plan, tensors: Iterable[StoredTensor]) -> Tiling:
    """Return the tiles of a plan; the tensors must have the plan's canonical names.

    Raises:
        InvalidArgument: a tensor is missing, or has another shape or width.
    """
    stored = {tensor.name: tensor for tensor in tensors}
    specs = plan.sources.shards.tensors
    for name in {tile.tensor for tile in plan.tiles}:
        one, spec = stored.get(name), specs[name]
        if one is None or one.shape != spec.shape:
            raise InvalidArgument(
                f"the checkpoint lacks {name} of shape {spec.shape}, which the plan has"
            )
    for tile in plan.tiles:
        if 8 * stored[tile.tensor].stored.unit_bytes != tile.width:
            raise InvalidArgument(
                f"{tile.tensor} must have the dtype {tile.dtype} of the plan, "
                f"got {stored[tile.tensor].dtype}"
            )
    places = [TilePlace(one.tensor, stored[one.tensor].shape, one.region) for one in plan.tiles]
    return Tiling(plan.cut, places)
