"""The weights of a running engine as a flat row of bf16 bits, changed tile by tile."""

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rose.errors import InvalidArgument
from rose.transfer import Delta, delta_apply
from rose.transfer.codec.operations import topk_unpack
from rose.transfer.digests import TileDigests
from rose.transfer.tiles import TILE_ELEMENTS, Tiles
from rose.transfer.views import Row

_BF16_SHIFT: Final = 16  # a bf16 is the upper half of a float32


class Mirror(Protocol):
    """Where steps read the weights, if not in the buffer of `LiveWeights`."""

    def write(self, first: int, last: int) -> None:
        """Take elements `first` to `last` over from the buffer."""
        ...

    def equals_host(self) -> bool:
        """Whether steps read what is in the buffer."""
        ...


def flat_bits(model: nn.Module) -> npt.NDArray[np.uint16]:
    """Return the weights as one row of bf16 bits, rounded to nearest, ties to even.

    The order is that of `model.named_parameters()`, which gives tied weights once, under their
    first name; each tensor is flattened in row-major order. Buffers are no weights.

    Returns:
        (n,) uint16, a copy on the host.
    """
    with torch.no_grad():
        rows = [one.reshape(-1).to("cpu", torch.bfloat16) for one in model.parameters()]
        bits: npt.NDArray[np.uint16] = torch.cat(rows).view(torch.int16).numpy().view(np.uint16)
    return bits


class LiveWeights:
    """A row of bf16 bits, and the float32 parameters that always equal it.

    The parameters of the model become views of one flat buffer, so a tile of the row is a slice of
    it and a change touches what changes only. Make it before the engine, and once for a model.

    With a `mirror` steps read that instead: a change goes to the buffer first, then to the mirror.

    It is a `rose.transfer.receiving.commit.Target`; one thread, between two steps, changes it.

    Args:
        model: float32, all on one device; its weights are rounded to bf16.
        tile_elements: elements of a tile, a multiple of 4.

    Raises:
        InvalidArgument: another tile size, or a model of another dtype or on several devices.
    """

    def __init__(self, model: nn.Module, tile_elements: int = TILE_ELEMENTS) -> None:
        self._parameters = list(model.parameters())
        if {(one.dtype, one.device) for one in self._parameters} != {
            (torch.float32, self._parameters[0].device)
        }:
            raise InvalidArgument(
                "live weights are of float32 and on one device: load the model with load_model"
            )
        self.mirror: Mirror | None = None
        self.row = flat_bits(model)
        self.cut = Tiles.of(len(self.row), tile_elements)
        self._host = Row(self.row, self.cut)
        self._live = _widened(self.row).to(self._parameters[0].device)
        self._live_bits = self._live.view(torch.int32)
        first = 0
        for parameter in self._parameters:
            last = first + parameter.numel()
            parameter.data = self._live[first:last].view(parameter.shape)
            first = last

    @property
    def count(self) -> int:
        """How many elements the row has."""
        return len(self.row)

    @property
    def is_on_host(self) -> bool:
        """Whether the buffer is in the host's memory."""
        return bool(self._live.device.type == "cpu")

    @property
    def tiles(self) -> int:
        """How many tiles; the last may be shorter."""
        return len(self.cut)

    def _slice(self, tile: int) -> slice:
        if not 0 <= tile < self.tiles:
            raise InvalidArgument(f"tile {tile}: these weights have {self.tiles}")
        return self.cut[tile].where

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Change one tile by `delta`, or back; on an error the tile is unchanged.

        Raises:
            InvalidArgument: there is no such tile, or the delta is of another size.
            CorruptData: the delta is not well formed.
        """
        place = self._slice(tile)
        part = self.row[place]
        changed, _ = topk_unpack(delta, part)  # the same places whichever way it goes
        delta_apply(part, delta, undo=undo)
        fresh = _widened(part[changed]).view(torch.int32).to(self._live.device)
        index = torch.from_numpy(changed).to(self._live.device)
        self._live_bits[place].index_copy_(0, index, fresh)
        if self.mirror is not None:
            self.mirror.write(place.start, place.stop)

    def digest(self, tile: int) -> tuple[int, int]:
        """Return the tile's part of the digest of the whole row, by position."""
        self._slice(tile)
        return self._host.digest(tile)

    def digests(self) -> TileDigests:
        """Read the whole row."""
        return self._host.digests()

    def bits(self, tile: int) -> npt.NDArray[np.uint16]:
        """Return a read-only view of the tile's elements."""
        view = self.row[self._slice(tile)]
        view.setflags(write=False)
        return view

    def mend(self, tile: int) -> bool:
        """Let what steps read of a tile be the row again; return whether it was not.

        A digest is of the row, so a `Sweep` finds a row that drifted and this a buffer that did.
        Whether a mirror equals the buffer, and all is where it has to be, is for `sweep`.
        """
        if self._equals(tile):
            return False
        place = self._slice(tile)
        self._live[place] = _widened(self.row[place]).to(self._live.device)
        if self.mirror is not None:
            self.mirror.write(place.start, place.stop)
        return True

    def sweep(self) -> bool:
        """Return whether every live parameter equals the row, bit by bit, where it has to be.

        It reads all of the weights at once, those of a mirror too: for tests, and for who doubts.
        `Sweep`, with `mend`, is what runs between steps.
        """
        is_read = self._is_attached() if self.mirror is None else self.mirror.equals_host()
        return is_read and all(self._equals(tile) for tile in range(self.tiles))

    def _is_attached(self) -> bool:
        """Whether the model still computes with this buffer: its storage was not replaced."""
        at = self._live.data_ptr()
        for parameter in self._parameters:
            if parameter.data_ptr() != at:
                return False
            at += parameter.numel() * parameter.element_size()
        return True

    def _equals(self, tile: int) -> bool:
        place = self._slice(tile)
        expected = _widened(self.row[place]).view(torch.int32).to(self._live.device)
        return bool(torch.equal(self._live_bits[place], expected))


def _widened(bits: npt.NDArray[np.uint16]) -> torch.Tensor:
    """Return the float32 numbers that the bf16 `bits` stand for, exactly."""
    return torch.from_numpy((bits.astype(np.uint32) << _BF16_SHIFT).view(np.float32))
