"""What other ways to send a change would take, on the same bits."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.checkpoints.safetensors_file import Units

INDEX_BYTES: Final = 4
_GAP_MAX: Final = 65_535
_LEVEL: Final = 1


def coordinate_bytes(units: Units, changed: int) -> int:
    """Return the bytes of a 32-bit index and the new value for each change."""
    return changed * (INDEX_BYTES + units.itemsize)


def zstandard_compressor() -> Callable[[bytes], bytes] | None:
    """Return how zstd compresses at level 1; None where the package zstandard is not installed."""
    try:
        from zstandard import ZstdCompressor  # noqa: PLC0415
    except ImportError:
        return None
    return ZstdCompressor(level=_LEVEL).compress


def gap_xor_bytes(
    old: Units,
    new: Units,
    positions: npt.NDArray[np.int64],
    compress: Callable[[bytes], bytes],
) -> int:
    """Return the bytes of 16-bit gaps and XORed values, each stream compressed.

    A gap that does not fit is cut: the largest number, with a value of 0, until the rest fits.
    """
    if not len(positions):
        return 0
    distances = np.diff(positions, prepend=-1) - 1
    cuts = distances // _GAP_MAX
    at = np.arange(len(positions)) + np.cumsum(cuts)
    gaps = np.full(at[-1] + 1, _GAP_MAX, np.uint16)
    values = np.zeros(at[-1] + 1, old.dtype)
    gaps[at] = distances % _GAP_MAX
    values[at] = old[positions] ^ new[positions]
    return len(compress(gaps.tobytes())) + len(compress(values.tobytes()))
