"""The weights of a running engine as a flat row of bf16 bits, changed tile by tile."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rose.errors import InvalidArgument
from rose.transfer import Delta, delta_apply
from rose.transfer.codec.operations import topk_unpack
from rose.transfer.digests import TileDigests
from rose.transfer.tiles import TILE_ELEMENTS, Row, ShardViews, Tiles

_BF16_SHIFT: Final = 16  # a bf16 is the upper half of a float32


def _bits_of(parameters: Iterable[nn.Parameter]) -> npt.NDArray[np.uint16]:
    """Return a copy of all weights on the host, rounded to nearest, ties to even."""
    with torch.no_grad():
        rows = [one.reshape(-1).to("cpu", torch.bfloat16) for one in parameters]
        bits: npt.NDArray[np.uint16] = torch.cat(rows).view(torch.int16).numpy().view(np.uint16)
    return bits


class LiveWeights:
    """A row of bf16 bits, and float32 parameters that always equal it.

    The model's parameters become views of one flat buffer. So each tile of the row corresponds to a
    slice of the buffer, and a delta writes only the elements that it changes. Create this object
    before the engine, and once per model.

    In host memory the row is an array of its own, from which the buffer can be repaired. On a GPU
    the row is the upper halves of the buffer's numbers: deltas are applied there and digests are
    computed there, in torch's current stream.

    Implements `rose.transfer.receiving.commit.Target`. One thread changes the weights, between two
    steps.

    Args:
        model: model with float32 weights on one device; they are rounded to bf16.
        tile_elements: elements per tile, a multiple of 4.
        by_name: tiles of the tensors in the order of their names, as `rose.publish` cuts them; None
            for tiles of `tile_elements` over all weights in the model's order.

    Raises:
        InvalidArgument: the tile size is invalid, or the model has another dtype or several
            devices.
    """

    def __init__(
        self,
        model: nn.Module,
        tile_elements: int = TILE_ELEMENTS,
        *,
        by_name: Tiles | None = None,
    ) -> None:
        named = list(model.named_parameters())
        if by_name is not None:
            named.sort(key=itemgetter(0))
        self._parameters = [parameter for _, parameter in named]
        kinds = {(one.dtype, one.device) for one in self._parameters}
        if kinds != {(torch.float32, self._parameters[0].device)}:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise InvalidArgument(
                f"live weights must be float32 and on one device, got {found}: load the model with "
                "load_model"
            )
        row = _bits_of(self._parameters)
        self.cut = by_name or Tiles.of(len(row), tile_elements)
        self._live = _widened(row).to(self._parameters[0].device)
        self._live_bits = self._live.view(torch.int32)
        # On a little-endian machine the upper half is the second one.
        self._upper = self._live.view(torch.int16)[1::2]
        self._views = (
            Row(row, self.cut)
            if self.is_on_host
            else ShardViews({tile.index: (self._upper[tile.where],) for tile in self.cut})
        )
        self._row = row if self.is_on_host else None
        first = 0
        for parameter in self._parameters:
            last = first + parameter.numel()
            parameter.data = self._live[first:last].view(parameter.shape)
            first = last

    @property
    def row(self) -> npt.NDArray[np.uint16]:
        """Return the row; on a GPU a copy of it."""
        if self._row is not None:
            return self._row
        bits: npt.NDArray[np.uint16] = self._upper.cpu().contiguous().numpy().view(np.uint16)
        return bits

    @property
    def is_on_host(self) -> bool:
        """True if the buffer is in host memory."""
        return bool(self._live.device.type == "cpu")

    @property
    def tiles(self) -> int:
        """Return the number of tiles; the last may be shorter."""
        return len(self.cut)

    def _slice(self, tile: int) -> slice:
        if not 0 <= tile < self.tiles:
            raise InvalidArgument(
                f"tile {tile} does not exist: these weights have {self.tiles} tiles"
            )
        return self.cut[tile].where

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Apply or undo `delta` on one tile; on an error the tile is unchanged.

        On a GPU a delta that has passed `delta_check` is queued without a wait.

        Raises:
            InvalidArgument: the tile does not exist, or the delta has another size.
            CorruptData: the delta is not well formed.
        """
        place = self._slice(tile)
        if self._row is None:
            self._views.apply(tile, delta, undo=undo)
            return
        part = self._row[place]
        changed, _ = topk_unpack(delta, part)  # apply and undo change the same places
        delta_apply(part, delta, undo=undo)
        fresh = _widened(part[changed]).view(torch.int32)
        self._live_bits[place].index_copy_(0, torch.from_numpy(changed), fresh)

    def write(self, tile: int, elements: npt.NDArray[np.uint16]) -> None:
        """Overwrite one tile with a row of elements on the host.

        Raises:
            InvalidArgument: the tile does not exist.
        """
        place = self._slice(tile)
        self._views.write(tile, elements)
        if self._row is not None:
            self._live_bits[place] = self._expected(place)

    def digest(self, tile: int) -> tuple[int, int]:
        """Return the digest of a tile."""
        self._slice(tile)
        return self._views.digest(tile)

    def digests(self) -> TileDigests:
        """Return the digests of all tiles, computed from the weights in memory."""
        return self._views.digests()

    def bits(self, tile: int) -> Any:
        """Return a view of the tile's elements, for the codec; in host memory it is read-only."""
        place = self._slice(tile)
        if self._row is None:
            return self._views.bits(tile)
        view = self._row[place]
        view.setflags(write=False)
        return view

    def repair(self, tile: int) -> bool:
        """Rewrite a tile of the buffer from the row, if they differ; return whether they did.

        The digests of a `Scrub` detect corruption of the row, and this method corruption of the
        buffer. On a GPU only the lower halves can differ: they must be 0.
        """
        if self._equals(tile):
            return False
        place = self._slice(tile)
        self._live_bits[place] = self._expected(place)
        return True

    def _equals(self, tile: int) -> bool:
        place = self._slice(tile)
        return bool(torch.equal(self._live_bits[place], self._expected(place)))

    def _expected(self, place: slice) -> torch.Tensor:
        """Return the float32 bits that the buffer must have at `place`, computed from the row."""
        if self._row is None:
            return self._upper[place].int() << _BF16_SHIFT
        return _widened(self._row[place]).view(torch.int32)


def _widened(bits: npt.NDArray[np.uint16]) -> torch.Tensor:
    """Return the exact float32 values of bf16 `bits`."""
    return torch.from_numpy((bits.astype(np.uint32) << _BF16_SHIFT).view(np.float32))
