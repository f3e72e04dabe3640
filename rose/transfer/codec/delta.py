"""A delta as a value, and as bytes. Both formats are in `docs/protocol.md`, "Deltas"."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose.errors import CorruptData, InvalidArgument
from rose.units import ceil_div

BLOCK_ELEMENTS: Final = (65_536, 16_384)
WIDTHS: Final = (8, 16, 32)
CLASSES: Final = 8

_ENTRY: Final = np.dtype(np.uint64)
_WORD: Final = np.dtype(np.uint32)
_DIGESTS: Final = 1 << 64
_MAGIC: Final = b"ROSEDLT2"
_VERSION: Final = 2
_STRAT: Final = 4
_KIND: Final = 15  # mask of the kind in an entry
# magic, version, block_elements, count, payload words, base digest, digest, width, has a rule,
# the rule's four fields and magnitude bits, zeros, CRC of the body
_HEADER: Final = struct.Struct("<8sIIQQ2Q2QBB4B8s10sI")
_ZEROS: Final = bytes(10)
_NO_RULE: Final = (0, 0, 0, 0, 0, bytes(CLASSES))
_CRC: Final = struct.Struct("<I")  # CRC of the header, stored after it
_BODY_AT: Final = _HEADER.size + _CRC.size


def _frozen(name: str, array: npt.NDArray[Any], dtype: "np.dtype[Any]") -> npt.NDArray[Any]:
    """Return a read-only view of a contiguous row."""
    flags = array.flags
    if array.dtype != dtype or not (array.ndim == 1 and flags.c_contiguous and flags.aligned):
        raise InvalidArgument(
            f"{name} must be one contiguous row of {dtype}, "
            f"got {array.ndim} dimensions of {array.dtype}"
        )
    if not flags.writeable:
        return array
    view: npt.NDArray[Any] = array.view()
    view.setflags(write=False)
    return view


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Rule by which STRAT sorts elements into eight classes, by their old exponents.

    The class of an element with the old bits `old` is
    ((old >> shift) mod 2^exponent_bits) - origin, clamped to 0 to 7.

    Args:
        shift: number of bits below the exponent.
        exponent_bits: number of bits of the exponent.
        origin: highest exponent of class 0, 0 to 255.
        all_mask: bit c is 1 if class c lists the size of every change, 0 if only sizes above 1.
        magnitude_bits: width of a magnitude in bits, for each of the eight classes.
    """

    shift: int
    exponent_bits: int
    origin: int
    all_mask: int
    magnitude_bits: tuple[int, ...]

    def fault(self, width: int) -> str | None:
        """Return why the rule is invalid for elements of `width` bits; None if it is valid."""
        numbers = (self.shift, self.exponent_bits, self.origin, self.all_mask)
        if not all(0 <= one < 256 for one in numbers) or len(self.magnitude_bits) != CLASSES:
            return "its numbers must be from 0 to 255, with a magnitude width for each of 8 classes"
        if self.shift + self.exponent_bits > width:
            return (
                f"shift {self.shift} + exponent_bits {self.exponent_bits} must be at most {width}"
            )
        if not all(0 <= bits < width for bits in self.magnitude_bits):
            return f"magnitude_bits {self.magnitude_bits} must be below {width}"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """The difference between two versions of a flat array of 8, 16 or 32-bit elements.

    Args:
        count: number of elements of the array.
        block_elements: number of elements of a delta block, 65,536 or 16,384.
        width: bits per element.
        entries: (blocks,) uint64, the block table.
        payload: (words,) uint32, words of all blocks in table order.
        base_digest: digest of the base array, with first index 0 and seed 0.
        digest: digest of the array after the delta is applied.
        rule: class rule of the STRAT blocks; None in a delta that can be applied.
        is_checked: whether the caller guarantees that `delta_check` accepted this delta and that
            its arrays have not changed since. Then the delta is applied without another check.
    """

    count: int
    block_elements: int
    width: int
    entries: npt.NDArray[np.uint64]
    payload: npt.NDArray[np.uint32]
    base_digest: tuple[int, int]
    digest: tuple[int, int]
    rule: ClassRule | None = None
    is_checked: bool = False

    def __post_init__(self) -> None:
        """Make the arrays read-only; their content is checked when the delta is applied.

        Raises:
            InvalidArgument: a field is out of range.
        """
        if self.block_elements not in BLOCK_ELEMENTS:
            raise InvalidArgument(f"block_elements {self.block_elements}: choose 65536 or 16384")
        if self.width not in WIDTHS:
            raise InvalidArgument(f"width {self.width}: elements have 8, 16 or 32 bits")
        if not 0 <= self.count < 1 << 63:
            raise InvalidArgument(f"count {self.count} must be from 0 to 2^63 - 1")
        for name in ("base_digest", "digest"):
            first, second = getattr(self, name)  # unrolled: this runs for each of very many tiles
            if not (0 <= first < _DIGESTS and 0 <= second < _DIGESTS):
                raise InvalidArgument(f"{name} {first, second} must be two numbers of 64 bits")
        if self.rule is not None and (fault := self.rule.fault(self.width)) is not None:
            raise InvalidArgument(f"the delta's class rule is invalid: {fault}")
        object.__setattr__(self, "entries", _frozen("entries", self.entries, _ENTRY))
        object.__setattr__(self, "payload", _frozen("payload", self.payload, _WORD))
        blocks = ceil_div(self.count, self.block_elements)
        if len(self.entries) != blocks:
            raise InvalidArgument(f"{blocks} blocks need {blocks} entries, got {len(self.entries)}")

    @property
    def nbytes(self) -> int:
        """Return the size of table and payload, in bytes."""
        return self.entries.nbytes + self.payload.nbytes

    @property
    def changed_by_block(self) -> npt.NDArray[np.uint64]:
        """Return the number of elements that change in each block, as the table says."""
        changed: npt.NDArray[np.uint64] = (self.entries >> np.uint64(4)) & np.uint64(0xFFFFF)
        return changed

    @property
    def changed(self) -> int:
        """Return the number of elements that change."""
        changed = 0
        for entry in self.entries.tolist():
            changed += entry >> 4 & 0xFFFFF
        return changed

    def mark_checked(self) -> None:
        """Record that `delta_check` accepted this delta; nobody may change its arrays any more."""
        object.__setattr__(self, "is_checked", True)

    def to_bytes(self) -> bytes:
        """Return the frame: a header with checksums, the table, the payload."""
        entries, payload = self.entries.data, self.payload.data
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            self.block_elements,
            self.count,
            len(self.payload),
            *self.base_digest,
            *self.digest,
            self.width,
            *_rule_fields(self.rule),
            _ZEROS,
            zlib.crc32(payload, zlib.crc32(entries)),
        )
        return b"".join((header, _CRC.pack(zlib.crc32(header)), entries, payload))

    @classmethod
    def from_bytes(cls, frame: bytes | bytearray | memoryview) -> "Delta":
        """Read a frame; a mutable buffer is copied.

        Raises:
            CorruptData: the bytes were not made by `to_bytes`, or are damaged.
            InvalidArgument: the frame has another version of the format.
        """
        content = frame if isinstance(frame, bytes) else bytes(frame)
        if content[: len(_MAGIC)] != _MAGIC:
            raise CorruptData("these bytes are not a delta of rose: the magic number differs")
        if len(content) < _BODY_AT:
            raise CorruptData(f"the delta is cut off inside its header, at byte {len(content)}")
        if zlib.crc32(content[: _HEADER.size]) != _CRC.unpack_from(content, _HEADER.size)[0]:
            raise CorruptData(
                f"the delta's header is damaged: its checksum, at byte {_HEADER.size}, differs"
            )
        _, version, block_elements, count, words, *fields = _HEADER.unpack_from(content)
        if version != _VERSION:
            raise InvalidArgument(
                f"the delta has version {version}; this rose reads version {_VERSION}"
            )
        base_digest, digest, width = tuple(fields[:2]), tuple(fields[2:4]), fields[4]
        rule = _rule_of(fields[5:11], width)
        if (
            block_elements not in BLOCK_ELEMENTS
            or width not in WIDTHS
            or fields[11] != _ZEROS
            or count >= 1 << 63
        ):
            raise CorruptData("the delta's header has a field out of range")
        blocks = ceil_div(count, block_elements)
        if len(content) != (size := _BODY_AT + 8 * blocks + 4 * words):
            raise CorruptData(f"the delta has {len(content)} bytes, but its header states {size}")
        if zlib.crc32(memoryview(content)[_BODY_AT:]) != fields[12]:
            raise CorruptData("the delta's table or payload is damaged: their checksum differs")
        entries = np.frombuffer(content, _ENTRY, blocks, _BODY_AT)
        payload = np.frombuffer(content, _WORD, words, _BODY_AT + 8 * blocks)
        if rule is None and has_strat(entries):
            raise CorruptData("the delta has STRAT blocks but no class rule")
        return cls(count, block_elements, width, entries, payload, base_digest, digest, rule)


def has_strat(entries: npt.NDArray[np.uint64]) -> bool:
    """Return True if a table has STRAT blocks, so that only `strat_unpack` can read the delta."""
    return any([entry & _KIND == _STRAT for entry in entries.tolist()])  # noqa: C419 - twice as fast


def frame_digests(frame: bytes | bytearray | memoryview) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return base digest and digest from a frame's header; nothing else is read or checked.

    Raises:
        CorruptData: the frame is cut off, or not a delta.
    """
    if len(frame) < _BODY_AT or bytes(frame[: len(_MAGIC)]) != _MAGIC:
        raise CorruptData("these bytes are not a delta of rose")
    fields = _HEADER.unpack_from(frame)
    return tuple(fields[5:7]), tuple(fields[7:9])


def _rule_fields(rule: ClassRule | None) -> tuple[int | bytes, ...]:
    """Return the rule as header fields: presence, four fields, magnitude widths."""
    if rule is None:
        return _NO_RULE
    fields = (rule.shift, rule.exponent_bits, rule.origin, rule.all_mask)
    return (1, *fields, bytes(rule.magnitude_bits))


def _rule_of(fields: list[Any], width: int) -> ClassRule | None:
    if tuple(fields) == _NO_RULE:
        return None
    has_rule, shift, exponent_bits, origin, all_mask, magnitude_bits = fields
    if has_rule != 1:
        raise CorruptData("the delta's header has an invalid class rule")
    rule = ClassRule(shift, exponent_bits, origin, all_mask, tuple(magnitude_bits))
    if (fault := rule.fault(width)) is not None:
        raise CorruptData(f"the delta's class rule is invalid: {fault}")
    return rule
