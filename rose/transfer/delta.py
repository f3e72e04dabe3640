"""A delta as a value, and the bytes that carry it. Both formats: `docs/protocol.md`, "Deltas"."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose.errors import CorruptData, InvalidArgument
from rose.units import ceil_div

BLOCK_ELEMENTS: Final = (65_536, 16_384)

_MAGIC: Final = b"ROSEDLT1"
_VERSION: Final = 1
# magic, version, block_elements, count, payload words, digest, zero, CRC of the body
_HEADER: Final = struct.Struct("<8sIIQQQQQI")
_CRC: Final = struct.Struct("<I")  # of the header, behind it
_BODY_AT: Final = _HEADER.size + _CRC.size


def _frozen(name: str, array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return a view that cannot be written through."""
    is_row = array.ndim == 1 and array.flags.c_contiguous and array.flags.aligned
    if array.dtype != dtype or not is_row:
        raise InvalidArgument(
            f"{name} of {array.ndim} dimensions and {array.dtype} "
            f"must be one contiguous row of {np.dtype(dtype)}"
        )
    view: npt.NDArray[Any] = array.view()
    view.setflags(write=False)
    return view


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What changed between two versions of a flat array of 16-bit elements.

    Args:
        count: elements of the array.
        block_elements: elements of a delta block, 65,536 or 16,384.
        entries: (blocks,) uint64, the table.
        payload: uint32 words of all blocks, in the order of the table.
        digest: of the array once the delta is applied to the version it was made from.
    """

    count: int
    block_elements: int
    entries: npt.NDArray[np.uint64]
    payload: npt.NDArray[np.uint32]
    digest: tuple[int, int]

    def __post_init__(self) -> None:
        """Keep the arrays from being written through this value.

        What they say is looked at when the delta is applied.

        Raises:
            InvalidArgument: the fields cannot be those of a delta.
        """
        if self.block_elements not in BLOCK_ELEMENTS:
            raise InvalidArgument(f"block_elements {self.block_elements}: choose 65536 or 16384")
        if not 0 <= self.count < 1 << 63:
            raise InvalidArgument(f"count {self.count} must be from 0 to 2^63 - 1")
        if not all(0 <= part < 1 << 64 for part in self.digest):
            raise InvalidArgument(f"digest {self.digest} must be two numbers of 64 bits")
        object.__setattr__(self, "entries", _frozen("entries", self.entries, np.uint64))
        object.__setattr__(self, "payload", _frozen("payload", self.payload, np.uint32))
        blocks = ceil_div(self.count, self.block_elements)
        if len(self.entries) != blocks:
            raise InvalidArgument(f"{len(self.entries)} entries do not fit {blocks} blocks")

    @property
    def nbytes(self) -> int:
        """Return the bytes of table and payload."""
        return self.entries.nbytes + self.payload.nbytes

    @property
    def changed(self) -> int:
        """Return how many elements change."""
        return int(((self.entries >> np.uint64(4)) & np.uint64(0xFFFFF)).sum())

    def to_bytes(self) -> bytes:
        """Return the frame: a header with checksums, the table, the payload."""
        entries, payload = self.entries.tobytes(), self.payload.tobytes()
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            self.block_elements,
            self.count,
            len(self.payload),
            *self.digest,
            0,
            zlib.crc32(payload, zlib.crc32(entries)),
        )
        return b"".join((header, _CRC.pack(zlib.crc32(header)), entries, payload))

    @classmethod
    def from_bytes(cls, frame: bytes | bytearray | memoryview) -> "Delta":
        """Read a frame; the bytes are copied.

        Raises:
            CorruptData: the bytes are not those that `to_bytes` gave.
            InvalidArgument: they are of another version of the format.
        """
        content = memoryview(frame).cast("B")
        if bytes(content[: len(_MAGIC)]) != _MAGIC:
            raise CorruptData("these bytes are not a delta of rose: they begin with another magic")
        if len(content) < _BODY_AT:
            raise CorruptData(f"the delta is cut off inside its header, at byte {len(content)}")
        header = content[: _HEADER.size]
        if zlib.crc32(header) != _CRC.unpack_from(content, _HEADER.size)[0]:
            raise CorruptData(
                f"the checksum of the delta's header, at byte {header.nbytes}, differs"
            )
        _, version, block_elements, count, words, first, second, zero, crc = _HEADER.unpack(header)
        if version != _VERSION:
            raise InvalidArgument(
                f"the delta has version {version}; this rose reads version {_VERSION}"
            )
        if block_elements not in BLOCK_ELEMENTS or zero != 0 or count >= 1 << 63:
            raise CorruptData("the delta's header has fields that no delta has")
        blocks = ceil_div(count, block_elements)
        if len(content) != (size := _BODY_AT + 8 * blocks + 4 * words):
            raise CorruptData(f"the delta has {len(content)} bytes, its header says {size}")
        if zlib.crc32(content[_BODY_AT:]) != crc:
            raise CorruptData("the checksum of the delta's table and payload differs")
        entries = np.frombuffer(content, "<u8", blocks, _BODY_AT).copy()
        payload = np.frombuffer(content, "<u4", words, _BODY_AT + 8 * blocks).copy()
        return cls(count, block_elements, entries, payload, (first, second))
