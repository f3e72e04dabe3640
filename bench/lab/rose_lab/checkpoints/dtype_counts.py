"""Counts of changed elements by step size and old exponent, and the entropy of the changes."""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.checkpoints.safetensors_file import Units
from rose.transfer.tensors import STORED_DTYPES

Counts = npt.NDArray[np.int64]

EXACT_STEPS: Final = 64
"""Steps up to this size, in ULP, have a bin each. Larger steps have a bin per bit length."""
_BUCKETS: Final = EXACT_STEPS + 27
_LARGE_BITS: Final = EXACT_STEPS.bit_length()
# Elements of a piece. A piece fits the CPU's caches, so several passes over it cost less than over
# a whole tile.
_PIECE: Final = 1 << 18
STEP_BINS: Final = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "> 64")


class DtypeCounts:
    """Counts of all elements of one dtype. Not thread-safe.

    Args:
        dtype: a key of `STORED_DTYPES`.
    """

    def __init__(self, dtype: str) -> None:
        self._exponent: Final = STORED_DTYPES[dtype].exponent
        classes = 1 if self._exponent is None else 1 << self._exponent[1]
        self.of_all: Final[Counts] = np.zeros(classes, np.int64)
        """(exponents,) elements by old exponent; one entry for a dtype without exponents."""
        self._steps: Final[Counts] = np.zeros((classes, 2 * _BUCKETS), np.int64)

    @property
    def has_exponents(self) -> bool:
        """True if the dtype has exponents."""
        return self._exponent is not None

    @property
    def elements(self) -> int:
        """Return the number of elements compared."""
        return int(self.of_all.sum())

    @property
    def of_changed(self) -> Counts:
        """Return the number of changed elements by old exponent, (exponents,) int64."""
        counts: Counts = self._steps.sum(axis=1)
        return counts

    @property
    def changed(self) -> int:
        """Return the number of changed elements."""
        return int(self._steps.sum())

    def add(self, old: Units, new: Units) -> npt.NDArray[np.int64]:
        """Count the elements of a tile.

        Returns:
            (changed,) int64 positions in the tile at which elements change, ascending.
        """
        for at in range(0, len(old), _PIECE):
            exponents = self._exponents(old[at : at + _PIECE])
            self.of_all[:] += np.bincount(exponents, minlength=len(self.of_all))
        positions = np.flatnonzero(old != new)
        differences = new[positions] - old[positions]
        moves = differences.view(f"i{differences.itemsize}").astype(np.int64)
        symbols = 2 * _buckets(np.abs(moves)) + (moves < 0)
        cells = self._exponents(old[positions]).astype(np.int64) * self._steps.shape[1] + symbols
        counted = np.bincount(cells, minlength=self._steps.size)
        self._steps[:] += counted.reshape(self._steps.shape)
        return positions

    def steps(self) -> dict[str, int]:
        """Return the number of changes by step size in ULP, keyed by `STEP_BINS`."""
        by_size = self._steps.reshape(len(self.of_all), -1, 2).sum(axis=(0, 2))
        edges = [1, 2, 3, 5, 9, 17, 33, EXACT_STEPS + 1, _BUCKETS]
        counts = [int(by_size[a:b].sum()) for a, b in pairwise(edges)]
        return dict(zip(STEP_BINS, counts, strict=True))

    def iid_bits(self) -> float:
        """Return the entropy of positions and steps without side information, in bits."""
        pooled = self._steps.sum(axis=0)
        return _split_bits(self.elements, self.changed) + _entropy_bits(pooled) + self._large_bits()

    def class_bits(self) -> float:
        """Return the entropy of positions and steps in bits, given every old exponent."""
        positions = sum(
            _split_bits(int(all_), int(changed))
            for all_, changed in zip(self.of_all, self.of_changed, strict=True)
        )
        return positions + sum(map(_entropy_bits, self._steps)) + self._large_bits()

    def _large_bits(self) -> float:
        """Return the number of bits that code the exact sizes of the large steps.

        Large steps of the same bit length are assumed to be equally likely; large steps are few.
        """
        by_bucket = self._steps.sum(axis=0).reshape(-1, 2).sum(axis=1)[EXACT_STEPS + 1 :]
        return float(by_bucket @ (np.arange(len(by_bucket)) + _LARGE_BITS - 1))

    def _exponents(self, bits: Units) -> Units:
        if self._exponent is None:
            return np.zeros(len(bits), np.uint8)
        shift, width = self._exponent
        exponents: Units = bits >> bits.dtype.type(shift) & bits.dtype.type((1 << width) - 1)
        return exponents


def _buckets(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    highest = np.frexp(sizes.astype(np.float64))[1].astype(np.int64)  # 1 for the lowest bit
    return np.where(sizes <= EXACT_STEPS, sizes, EXACT_STEPS + 1 + highest - _LARGE_BITS)


def _split_bits(elements: int, changed: int) -> float:
    """Return the entropy of the set of changed elements, in bits.

    Elements are assumed to change independently, all with the same probability.
    """
    return _entropy_bits(np.array([changed, elements - changed]))


def _entropy_bits(counts: Counts) -> float:
    there = counts[counts > 0].astype(np.float64)
    return float((there * np.log2(there.sum() / there)).sum())
