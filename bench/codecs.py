"""The wire formats of other projects for a step of the weights: the peers of the delta codec.

Each codec follows its project's format, but without names, checksums and frames, so its output is
never larger than the original's.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

Bits = npt.NDArray[np.uint16]

_LEVEL: Final = 1
_GAP_MAX: Final = 0xFFFF
_COUNT: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PeerCodec:
    """A codec for two versions of flat 16-bit elements.

    Args:
        name: name of the codec in rows.
        title: description, and the project that uses it.
        encode: (new, old) to bytes.
        decode: (bytes, old) to new.
    """

    name: str
    title: str
    encode: Callable[[Bits, Bits], bytes]
    decode: Callable[[bytes, Bits], Bits]


def _coo_encode(new: Bits, old: Bits) -> bytes:
    positions = np.flatnonzero(new != old).astype(np.int32)
    return positions.tobytes() + new[positions].tobytes()


def _coo_decode(frame: bytes, old: Bits) -> Bits:
    count = len(frame) // 6
    new = old.copy()
    new[np.frombuffer(frame, np.int32, count)] = np.frombuffer(frame, np.uint16, count, 4 * count)
    return new


def gap_encode(new: Bits, old: Bits) -> bytes:
    """Return gaps and patches of a step, each column compressed."""
    gaps, patches = _gaps(new, old)
    # Each column separately: compressed together they would be up to 1 % larger.
    columns = [compress(gaps.tobytes()), compress(patches.tobytes())]
    return _COUNT.pack(len(columns[0])) + b"".join(columns)


def _gap_decode(frame: bytes, old: Bits) -> Bits:
    positions, patches = read_gaps(frame)
    new = old.copy()
    new[positions] ^= patches
    return new


def read_gaps(frame: bytes) -> tuple[npt.NDArray[np.int64], Bits]:
    """Return the positions of changes, ascending, and old XOR new of each; some may be 0."""
    cut = _COUNT.size + _COUNT.unpack_from(frame)[0]
    gaps = np.frombuffer(decompress(frame[_COUNT.size : cut]), np.uint16)
    patches = np.frombuffer(decompress(frame[cut:]), np.uint16)
    positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
    return positions, patches


def _gaps(new: Bits, old: Bits) -> tuple[Bits, Bits]:
    """Return the number of unchanged elements before each change, and old XOR new of each.

    Where more elements are unchanged than 16 bits can count, unchanged elements are listed too.
    """
    patch = new ^ old
    positions = np.flatnonzero(patch)
    passed = np.diff(positions, prepend=-1) - 1
    stops = passed // (_GAP_MAX + 1)
    rows = np.arange(len(positions)) + np.cumsum(stops)
    gaps = np.full(len(positions) + int(stops.sum()), _GAP_MAX, np.uint16)
    patches = np.zeros_like(gaps)
    gaps[rows] = passed - stops * (_GAP_MAX + 1)
    patches[rows] = patch[positions]
    return gaps, patches


def _xor_encode(new: Bits, old: Bits) -> bytes:
    return compress((new ^ old).tobytes())


def _xor_decode(frame: bytes, old: Bits) -> Bits:
    return old ^ np.frombuffer(decompress(frame), np.uint16)


def compress(column: bytes | memoryview) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(column)


def decompress(frame: bytes | memoryview) -> bytes:
    return zstandard.ZstdDecompressor().decompress(frame)


COO: Final = PeerCodec("coo", "int32 positions, bf16 values", _coo_encode, _coo_decode)
GAP_XOR_ZSTD: Final = PeerCodec(
    "gap_xor_zstd", "u16 gaps, XOR, zstd-1 (as NeMo-RL)", gap_encode, _gap_decode
)
XOR_ZSTD: Final = PeerCodec("xor_zstd", "dense XOR, zstd-1 (as slime)", _xor_encode, _xor_decode)
PEERS: Final = (COO, GAP_XOR_ZSTD, XOR_ZSTD)
