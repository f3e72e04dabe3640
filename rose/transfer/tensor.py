"""The tensor edge of transfer: arrays of NumPy and tensors of torch become rows of 16-bit numbers.

Nothing is copied or converted, and torch is touched only when it is given a tensor of torch.
"""

import sys
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rose.errors import InvalidArgument

CPU: Final = "cpu"
BFLOAT16: Final = "bfloat16"
# Bits without a meaning: they go with either kind of float.
RAW_BITS: Final = frozenset({"uint16", "int16"})
_NUMPY: Final = frozenset({"uint16", "float16"})
_TORCH: Final = frozenset({BFLOAT16, "float16", *RAW_BITS})


@dataclass(frozen=True, slots=True)
class TensorBits:
    """The elements of a tensor as one row of 16-bit numbers that shares its memory.

    Args:
        name: of the argument, for sentences.
        bits: a NumPy array of uint16 on the CPU, a torch tensor of int16 elsewhere.
        shape: what it was before it was flattened.
        dtype: what the elements are.
        device: "cpu", or as torch names it.
    """

    name: str
    bits: Any
    shape: tuple[int, ...]
    dtype: str
    device: str


def bits_of(name: str, tensor: Any, *, is_written: bool = False) -> TensorBits:
    """Look at a tensor as bits.

    Args:
        name: of the argument.
        tensor: a contiguous array of NumPy (uint16, float16) or tensor of torch (bfloat16, float16,
            uint16, int16); one that requires grad is detached.
        is_written: whether the elements will be changed in place.

    Raises:
        InvalidArgument: it is something else, or cannot be written to.
    """
    torch = sys.modules.get("torch")  # where it was never imported there are no tensors of it
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _bits_of_torch(name, tensor)
    if not isinstance(tensor, np.ndarray):
        raise InvalidArgument(
            f"{name} is a {type(tensor).__name__}: pass an array of NumPy or a tensor of torch"
        )
    dtype = str(tensor.dtype)
    if dtype not in _NUMPY:
        raise InvalidArgument(f"{name} is of {dtype}: an array of NumPy is of uint16 or float16")
    if not (tensor.flags.c_contiguous and tensor.flags.aligned):
        raise InvalidArgument(f"{name} is not contiguous: pass np.ascontiguousarray of it")
    if is_written and not tensor.flags.writeable:
        raise InvalidArgument(f"{name} is read-only: pass an array that can be written to")
    return TensorBits(name, tensor.reshape(-1).view(np.uint16), tensor.shape, dtype, CPU)


def _bits_of_torch(name: str, tensor: Any) -> TensorBits:
    import torch  # noqa: PLC0415

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _TORCH:
        raise InvalidArgument(
            f"{name} is of {dtype}: a tensor of torch is of bfloat16, float16, uint16 or int16"
        )
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise InvalidArgument(f"{name} is not contiguous: pass {name}.contiguous()")
    row = tensor.view(torch.int16).view(-1)  # integers have no gradient: this detaches too
    is_here = tensor.device.type == CPU
    bits = row.numpy().view(np.uint16) if is_here else row
    return TensorBits(name, bits, tuple(tensor.shape), dtype, CPU if is_here else str(row.device))


def check_pair(one: TensorBits, other: TensorBits) -> None:
    """Refuse two tensors that cannot be versions of each other.

    Raises:
        InvalidArgument: shape, dtype or device differ.
    """
    if one.shape != other.shape:
        raise InvalidArgument(
            f"{one.name} has the shape {one.shape} and {other.name} {other.shape}: make them equal"
        )
    if one.dtype != other.dtype and not {one.dtype, other.dtype} & RAW_BITS:
        raise InvalidArgument(
            f"{one.name} is of {one.dtype} and {other.name} of {other.dtype}: make them equal"
        )
    if one.device != other.device:
        raise InvalidArgument(
            f"{one.name} is on {one.device} and {other.name} on {other.device}: move one of them"
        )


def check_bfloat16(tensor: TensorBits) -> None:
    """Refuse what is known to be no bf16.

    Raises:
        InvalidArgument: its dtype is another float.
    """
    if tensor.dtype != BFLOAT16 and tensor.dtype not in RAW_BITS:
        raise InvalidArgument(
            f"{tensor.name} is of {tensor.dtype}: top-k is for bfloat16, or its bits as uint16"
        )
