"""How wide an element is, by the name that torch gives its dtype."""

from typing import Final

from rose.errors import InvalidArgument

# What the codec takes, as numbers of 8, 16 or 32 bits.
_WIDTHS: Final = {
    "bool": 8,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "int8": 8,
    "uint8": 8,
    "bfloat16": 16,
    "float16": 16,
    "int16": 16,
    "uint16": 16,
    "float32": 32,
    "int32": 32,
    "uint32": 32,
}


def width_of(tensor: str, dtype: str) -> int:
    """Return the bits of an element.

    Raises:
        InvalidArgument: nothing of this dtype crosses; the sentence names the tensor.
    """
    if dtype not in _WIDTHS:
        raise InvalidArgument(f"{tensor} is of {dtype}: choose one of {', '.join(_WIDTHS)}")
    return _WIDTHS[dtype]
