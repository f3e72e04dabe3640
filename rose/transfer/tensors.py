"""Tensors of a checkpoint, and the units in which the delta codec sees their elements."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class StoredDtype:
    """One element type.

    Args:
        bits: bits per element.
        exponent: (lowest bit, number of bits) of the exponent in a unit; None if the dtype has no
            exponent.
    """

    bits: int
    exponent: tuple[int, int] | None = None

    @property
    def unit(self) -> npt.DTypeLike:
        """Return the unsigned integer type in which the codec compares elements.

        An element wider than 32 bits is several units; elements narrower than 8 bits share a unit.
        """
        return {1: np.uint8, 2: np.uint16, 4: np.uint32}[self.unit_bytes]

    @property
    def unit_bytes(self) -> int:
        """Return the size of one unit, in bytes."""
        return 1 if self.bits <= 8 else 2 if self.bits == 16 else 4


STORED_DTYPES: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E8M0"), StoredDtype(8)),
    **dict.fromkeys(("I16", "U16"), StoredDtype(16)),
    **dict.fromkeys(("I32", "U32"), StoredDtype(32)),
    **dict.fromkeys(("F64", "I64", "U64"), StoredDtype(64)),
    **dict.fromkeys(("F8_E4M3", "F8_E4M3FNUZ"), StoredDtype(8, (3, 4))),
    **dict.fromkeys(("F8_E5M2", "F8_E5M2FNUZ"), StoredDtype(8, (2, 5))),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), StoredDtype(6)),
    "F4": StoredDtype(4),
    "F16": StoredDtype(16, (10, 5)),
    "BF16": StoredDtype(16, (7, 8)),
    "F32": StoredDtype(32, (23, 8)),
    "C64": StoredDtype(64, (23, 8)),
    "C128": StoredDtype(128),  # safetensors has no such dtype: for tensors in memory only
}

# Name of a dtype in NumPy, ml_dtypes and torch → its key in `STORED_DTYPES`.
STORED_NAMES: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "C128",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a safetensors file holds it.

    Args:
        dtype: a key of `STORED_DTYPES`.
        begin: offset of the tensor's first byte in the file; 0 if the tensor is in no file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0

    @classmethod
    def of(cls, name: str, dtype: str, shape: tuple[int, ...]) -> "StoredTensor":
        """Describe a tensor in memory, as safetensors would store it.

        An element of torch's `float4_e2m1fn_x2` is two elements of F4: the last dimension doubles,
        and a tensor without dimensions becomes a row of two.

        Args:
            name: name of the tensor.
            dtype: a key of `STORED_NAMES`.
            shape: shape of the tensor in memory.
        """
        if dtype.endswith("_x2"):
            *outer, last = shape or (1,)
            shape = (*outer, 2 * last)
        return cls(name, STORED_NAMES[dtype], shape)

    @property
    def stored(self) -> StoredDtype:
        """Return the storage format of the dtype."""
        return STORED_DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Return the size of the elements, in bytes."""
        return math.prod(self.shape) * self.stored.bits // 8

    @property
    def count(self) -> int:
        """Return the number of units."""
        return self.nbytes // self.stored.unit_bytes
