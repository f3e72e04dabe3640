"""Tensors of any library as boxes of 8, 16 or 32-bit numbers.

Nothing is copied or converted: the boxes share memory and strides with the tensors. torch is used
only for torch tensors and for memory that NumPy cannot read.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.box import Box
from rose.transfer.codec.foreign import taken

CPU: Final = "cpu"
BFLOAT16: Final = "bfloat16"
# Widths of the dtypes that stand for raw bits; they match every dtype of the same width.
_RAW_WIDTHS: Final = {f"{kind}{width}": width for kind in ("uint", "int") for width in (8, 16, 32)}
# Width of a float, and its exponent: lowest bit and number of bits.
_FLOATS: Final = {
    "float8_e4m3fn": (8, (3, 4)),
    "float8_e5m2": (8, (2, 5)),
    BFLOAT16: (16, (7, 8)),
    "float16": (16, (10, 5)),
    "float32": (32, (23, 8)),
}


@dataclass(frozen=True, slots=True)
class TensorBits:
    """The elements of a tensor as a box of numbers that shares its memory.

    Args:
        name: argument name, for messages.
        bits: a NumPy array of uint8, uint16 or uint32 on the CPU, a torch tensor of int8, int16 or
            int32 elsewhere. One row if the elements are contiguous; otherwise with the strides of
            the tensor, all >= 0. Elements are in row-major order.
        dtype: name of the dtype.
        device: "cpu", or torch's name of the device.
        exponent: (lowest bit, number of bits) of a float's exponent; None for other elements.
    """

    name: str
    bits: Any
    shape: tuple[int, ...]
    dtype: str
    device: str
    width: int
    exponent: tuple[int, int] | None

    @property
    def is_raw(self) -> bool:
        """True if the dtype states only the width of the elements, not their meaning."""
        return self.dtype in _RAW_WIDTHS


def bits_of(name: str, tensor: Any, *, is_written: bool = False, stream: Any = None) -> TensorBits:
    """Return the bits of a tensor.

    Args:
        name: argument name, for messages.
        tensor: a NumPy array, a torch tensor, or an object with DLPack; integers or floats of 8, 16
            or 32 bits, or bf16 and fp8 of ml_dtypes; any strides >= 0. A tensor that requires grad
            is detached.
        is_written: whether the elements will be changed in place.
        stream: GPU stream that will read the tensor; used for GPU arrays of other libraries.

    Raises:
        InvalidArgument: dtype, strides or library are not supported, or the tensor is read-only.
        Unavailable: only torch can read the tensor, and torch is not installed or finds no GPU.
    """
    torch = sys.modules.get("torch")  # if torch is not imported, there are no torch tensors
    if not isinstance(tensor, np.ndarray) and not (torch and isinstance(tensor, torch.Tensor)):
        if not hasattr(tensor, "__dlpack__"):
            raise InvalidArgument(
                f"{name} is a {type(tensor).__name__}: pass an array of NumPy, a tensor of torch "
                "or an object that supports DLPack"
            )
        source = partial(_torch_for, name)
        tensor = taken(name, tensor, is_written=is_written, stream=stream, torch_with=source)
    look = _bits_of_numpy if isinstance(tensor, np.ndarray) else _bits_of_torch
    seen = look(name, tensor)
    if is_written:
        _check_written(seen)
    return seen


def overwrite(name: str, tensor: Any, row: npt.NDArray[Any]) -> None:
    """Copy a row of unsigned integers on the host to a tensor of equally wide elements.

    Raises:
        InvalidArgument: see `bits_of`.
    """
    bits = bits_of(name, tensor, is_written=True).bits
    if isinstance(bits, np.ndarray):
        bits[...] = row.reshape(bits.shape)
        return
    import torch  # noqa: PLC0415

    signed = row.view(f"i{row.itemsize}").copy()  # torch takes no read-only memory
    bits.copy_(torch.from_numpy(signed).view(bits.shape))


def _torch_for(name: str, needs_gpu: bool) -> Any:  # noqa: FBT001
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(f"{name} can only be read through torch: install torch") from error
    if needs_gpu and not torch.cuda.is_available():
        raise Unavailable(
            f"{name} is on a GPU, but torch {torch.__version__} finds no GPU: install a torch that "
            "supports it"
        )
    return torch


def _bits_of_numpy(name: str, array: Any) -> TensorBits:
    dtype = str(array.dtype)
    width, exponent = _meaning(name, dtype)
    if not array.flags.aligned:
        raise InvalidArgument(f"{name} is not aligned to its elements: pass a copy of it")
    box = array.squeeze()  # the stride of a dimension of size 1 has no meaning
    if box.size and min(box.strides, default=0) < 0:
        raise InvalidArgument(f"{name} has a stride below 0: pass a copy of it")
    bits = box.view(f"u{width // 8}")
    row = bits.reshape(-1) if bits.flags.c_contiguous else bits
    return TensorBits(name, row, array.shape, dtype, CPU, width, exponent)


def _bits_of_torch(name: str, tensor: Any) -> TensorBits:
    import torch  # noqa: PLC0415

    if hasattr(tensor, "to_local"):
        raise InvalidArgument(f"{name} is spread over ranks: pass {name}.to_local()")
    if tensor.layout != torch.strided or tensor.is_neg():
        raise InvalidArgument(f"{name} is sparse or lazily negated: pass a dense copy of it")
    dtype = str(tensor.dtype).removeprefix("torch.")
    width, exponent = _meaning(name, dtype)
    # This detaches the tensor too: integers have no gradient.
    box = tensor.view(getattr(torch, f"int{width}")).squeeze()
    row = box.view(-1) if box.is_contiguous() else box
    is_here = tensor.device.type == CPU
    return TensorBits(
        name,
        row.numpy().view(f"u{width // 8}") if is_here else row,
        tuple(tensor.shape),
        dtype,
        CPU if is_here else str(tensor.device),
        width,
        exponent,
    )


def _meaning(name: str, dtype: str) -> tuple[int, tuple[int, int] | None]:
    """Return the width of a dtype, and its exponent field."""
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    if dtype not in _RAW_WIDTHS:
        raise InvalidArgument(
            f"{name} has the dtype {dtype}: choose integers of 8, 16 or 32 bits, or one of "
            f"{', '.join(_FLOATS)}"
        )
    return _RAW_WIDTHS[dtype], None


def _check_written(tensor: TensorBits) -> None:
    is_here = tensor.device == CPU
    if is_here and not tensor.bits.flags.writeable:
        raise InvalidArgument(f"{tensor.name} is read-only: pass an array that can be written to")
    is_row = tensor.bits.flags.c_contiguous if is_here else tensor.bits.is_contiguous()
    if not is_row and Box.of(tensor.bits).may_repeat:
        raise InvalidArgument(
            f"{tensor.name} has elements that may share memory, as an expanded tensor has: "
            "pass a copy of it"
        )


def check_pair(one: TensorBits, other: TensorBits) -> None:
    """Check that two tensors can be versions of each other.

    Raises:
        InvalidArgument: shape, dtype or device differ.
    """
    if one.shape != other.shape:
        raise InvalidArgument(
            f"{one.name} has the shape {one.shape} and {other.name} {other.shape}: make them equal"
        )
    is_of_one_kind = one.dtype == other.dtype or one.is_raw or other.is_raw
    if one.width != other.width or not is_of_one_kind:
        raise InvalidArgument(
            f"{one.name} has the dtype {one.dtype} and {other.name} {other.dtype}: make them equal"
        )
    if one.device != other.device:
        raise InvalidArgument(
            f"{one.name} is on {one.device} and {other.name} on {other.device}: move one of them"
        )


def check_bfloat16(tensor: TensorBits) -> None:
    """Refuse tensors that cannot be bf16.

    Raises:
        InvalidArgument: the dtype is another float, or has another width.
    """
    if tensor.dtype != BFLOAT16 and not (tensor.is_raw and tensor.width == 16):
        raise InvalidArgument(
            f"{tensor.name} has the dtype {tensor.dtype}: top-k is for bfloat16, or its bits "
            "as uint16"
        )
