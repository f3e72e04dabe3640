"""Weights of the fault runs: tiles of three widths, their holders, and a memory that fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import numpy as np

from rose.errors import CorruptData
from rose.transfer import Delta, ShardViews, Tiles
from rose.transfer.digests import Digest

Bits = dict[int, Any]  # arrays by tile

COUNTS: Final = (40, 7, 64, 33, 128, 5, 16, 3)
WIDTHS: Final = (16, 8, 32, 16, 16, 8, 32, 16)
TILES: Final = Tiles(COUNTS, WIDTHS, "5e" * 32)
EVERY: Final = tuple(range(len(COUNTS)))
# The trainer's two contributors, and the receivers: one has all, two have a part each, and one
# overlaps both parts.
OWNED: Final = ((0, 2, 5, 7), (1, 3, 4, 6))
SHARES: Final[dict[str, tuple[int, ...]]] = {
    "all": EVERY,
    "left": (0, 1, 2, 6),
    "right": (1, 3, 4, 5, 7),
    "both": (2, 3, 4, 7),
}


class Killed(BaseException):
    """The process ends here; nothing of rose may catch it."""


def random_bits(rng: Random, tiles: Sequence[int] = EVERY) -> Bits:
    numpy = np.random.default_rng(rng.getrandbits(32))
    return {
        tile: numpy.integers(0, 1 << WIDTHS[tile], COUNTS[tile]).astype(f"u{WIDTHS[tile] // 8}")
        for tile in tiles
    }


def changed(bits: Bits, rng: Random) -> Bits:
    """Return weights of which some tiles, perhaps none, have some elements changed."""
    numpy = np.random.default_rng(rng.getrandbits(32))
    fresh = dict(bits)
    for tile, old in bits.items():
        if rng.random() < 0.6:
            where = numpy.random(len(old)) < rng.choice((0.05, 0.3, 1.0))
            step = np.where(numpy.random(len(old)) < 0.8, 1, 77).astype(old.dtype)
            fresh[tile] = old + np.where(where, step, 0).astype(old.dtype)
    return fresh


def copied(bits: Bits, tiles: Sequence[int] = EVERY) -> Bits:
    return {tile: bits[tile].copy() for tile in tiles}


def views(bits: Bits) -> ShardViews:
    return ShardViews({tile: (array,) for tile, array in bits.items()})


@dataclass(slots=True)
class Fault:
    """What goes wrong at some call of a memory.

    Args:
        method: apply, undo, write, digest or bits.
        calls_left: until it happens; 1 is the next call.
        how: "early" fails before anything was done, "late" after it, "silent" writes a wrong bit
            and says nothing, "killed" ends the process before, "killed late" after.
    """

    method: str
    calls_left: int
    how: str


class Memory:
    """The weights of a receiver as the target of its commits; calls go wrong as they are told to.

    Args:
        bits: by tile; changed in place, and there when the process has died.
        before: called first at every call.
    """

    def __init__(self, bits: Bits, before: Callable[[], None]) -> None:
        self.held = bits
        self.faults: list[Fault] = []
        self.written: Callable[[int], object] = lambda _tile: None
        self._views = views(bits)
        self._before = before

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        self._call("undo" if undo else "apply", tile, self._views.apply, tile, delta, undo=undo)

    def write(self, tile: int, elements: Any) -> None:
        def write() -> None:
            self._views.write(tile, elements)
            self.written(tile)

        self._call("write", tile, write)

    def digest(self, tile: int) -> Digest:
        return self._call("digest", tile, self._views.digest, tile)

    def bits(self, tile: int) -> Any:
        return self._call("bits", tile, self._views.bits, tile)

    def _call(
        self, method: str, tile: int, does: Callable[..., Any], *args: Any, **how: Any
    ) -> Any:
        self._before()
        fault = self._due(method)
        if fault == "killed":
            raise Killed
        if fault == "early":
            raise CorruptData("planted, early")
        done = does(*args, **how)
        if fault == "killed late":
            raise Killed
        if fault == "late":
            raise CorruptData("planted, late")
        if fault == "silent":
            flip(self.held, tile, 0, 0)
        return done

    def _due(self, method: str) -> str | None:
        for fault in self.faults:
            if fault.method == method:
                fault.calls_left -= 1
                if fault.calls_left == 0:
                    self.faults.remove(fault)
                    return fault.how
        return None


def flip(bits: Bits, tile: int, element: int, bit: int) -> None:
    array = bits[tile]
    array[element % len(array)] ^= array.dtype.type(1 << bit % (8 * array.itemsize))
