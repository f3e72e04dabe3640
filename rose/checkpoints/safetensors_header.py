"""The header of a safetensors file: what it may say, and every way in which it can be wrong.

A file is u64 n (little-endian), n bytes of JSON, and the tensors' bytes, with nothing between.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt

from rose.checkpoints.stored_dtypes import STORED_DTYPES, StoredDtype
from rose.errors import CorruptData, InvalidArgument

HEADER_BYTES_MAX: Final = 100_000_000
"""What the safetensors package reads at most."""
LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})
_U64: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Args:
        name: in the checkpoint.
        dtype: a key of `STORED_DTYPES`.
        shape: of its elements.
        begin: its first byte, counted from the end of the header.
        end: behind its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return self.end - self.begin

    @property
    def elements(self) -> int:
        """Return how many elements it has."""
        return math.prod(self.shape)

    @property
    def stored(self) -> StoredDtype:
        """Return what its elements are."""
        return STORED_DTYPES[self.dtype]

    @property
    def unit(self) -> npt.DTypeLike:
        """Return what the codec takes its bytes for."""
        return self.stored.unit


def read_header(text: bytes, where: str) -> tuple[StoredTensor, ...]:
    """Read the JSON of a header.

    Args:
        text: without the length before it.
        where: the file, for sentences.

    Returns:
        The tensors in the order of their bytes, which they fill without a hole.

    Raises:
        CorruptData: the sentence says what is wrong.
    """
    if not text.startswith(b"{"):
        raise CorruptData(f"{where} is not a safetensors file: its header is not JSON of an object")
    try:
        header = json.loads(text.decode(), object_pairs_hook=_once)
    except _Twice as twice:
        raise CorruptData(f"the header of {where} names {twice} twice") from None
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"the header of {where} is not JSON: {error}") from None
    _check_metadata(header.pop(_METADATA, {}), where)
    tensors = [_tensor(name, entry, where) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    at = 0
    for tensor in tensors:
        if tensor.begin != at:
            what = "overlaps the tensor before it" if tensor.begin < at else "leaves a hole"
            raise CorruptData(f"{tensor.name!r} of {where} {what}, at byte {at} of the data")
        at = tensor.end
    return tuple(tensors)


def written_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """Return how a file begins that holds these tensors, and the bytes of data that follow.

    The widest elements come first, so that all lie at borders of theirs.

    Args:
        tensors: (dtype, shape) by name.

    Raises:
        InvalidArgument: a dtype is unknown, or the header would be too large.
    """
    for name, (dtype, _) in tensors.items():
        if dtype not in STORED_DTYPES:
            raise InvalidArgument(f"{name!r} has the dtype {dtype!r}, which rose does not know")
    header: dict[str, object] = {}
    at = 0
    for name, (dtype, shape) in sorted(
        tensors.items(), key=lambda one: -STORED_DTYPES[one[1][0]].unit_bytes
    ):
        end = at + math.prod(shape) * STORED_DTYPES[dtype].bits // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    if len(text) > HEADER_BYTES_MAX:
        raise InvalidArgument(f"{len(tensors)} tensors have a header of {len(text)} bytes")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, at


class _Twice(ValueError):
    """A name that an object of the header has twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(repr(name))
        found[name] = value
    return found


def _check_metadata(metadata: object, where: str) -> None:
    is_sound = isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    if not is_sound:
        raise CorruptData(f"{_METADATA} of {where} is not an object of strings")


def _tensor(name: str, entry: object, where: str) -> StoredTensor:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CorruptData(
            f"the header of {where} has the name {name!r}, which is no text"
        ) from None
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise CorruptData(f"{name!r} of {where} is not just a dtype, a shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORED_DTYPES:
        raise CorruptData(f"{name!r} of {where} has the dtype {dtype!r}, which rose does not know")
    if not _are_sizes(shape):
        raise CorruptData(f"{name!r} of {where} has the shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptData(f"{name!r} of {where} has the data_offsets {offsets!r}")
    tensor = StoredTensor(name, dtype, tuple(shape), *offsets)
    size_bits = tensor.elements * tensor.stored.bits
    if size_bits >= _U64 or size_bits != 8 * tensor.nbytes:
        raise CorruptData(
            f"{name!r} of {where} has {tensor.nbytes} bytes, which do not fit {dtype} {shape}"
        )
    return tensor


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one < _U64 for one in value
    )
