"""The element types that a safetensors file can hold, and how the delta codec sees each."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class StoredDtype:
    """One element type.

    Args:
        bits: of an element.
        exponent: (shift, bits) of the exponent in one unit; None where there is none.
    """

    bits: int
    exponent: tuple[int, int] | None = None

    @property
    def unit(self) -> npt.DTypeLike:
        """Return the unsigned number that the codec compares: bytes, halves or words.

        Elements of more than 32 bits are several units, elements of less than 8 share one.
        """
        return {1: np.uint8, 2: np.uint16, 4: np.uint32}[self.unit_bytes]

    @property
    def unit_bytes(self) -> int:
        """Return the bytes of one unit."""
        return min(max(self.bits // 8, 1), 4)


STORED_DTYPES: Final = {
    "BOOL": StoredDtype(8),
    "F4": StoredDtype(4),
    "F6_E2M3": StoredDtype(6),
    "F6_E3M2": StoredDtype(6),
    "U8": StoredDtype(8),
    "I8": StoredDtype(8),
    "F8_E5M2": StoredDtype(8, (2, 5)),
    "F8_E4M3": StoredDtype(8, (3, 4)),
    "F8_E8M0": StoredDtype(8),
    "F8_E4M3FNUZ": StoredDtype(8, (3, 4)),
    "F8_E5M2FNUZ": StoredDtype(8, (2, 5)),
    "I16": StoredDtype(16),
    "U16": StoredDtype(16),
    "F16": StoredDtype(16, (10, 5)),
    "BF16": StoredDtype(16, (7, 8)),
    "I32": StoredDtype(32),
    "U32": StoredDtype(32),
    "F32": StoredDtype(32, (23, 8)),
    "C64": StoredDtype(64, (23, 8)),
    "F64": StoredDtype(64),
    "I64": StoredDtype(64),
    "U64": StoredDtype(64),
}
