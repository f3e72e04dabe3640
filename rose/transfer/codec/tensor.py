"""Tensors of any library as boxes of units: numbers of 8, 16 or 32 bits.

Nothing is copied or converted: the boxes share memory and strides with the tensors. torch is used
only for torch tensors and for memory that NumPy cannot read.
"""

import functools
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.box import Box
from rose.transfer.codec.foreign import taken
from rose.transfer.tensors import STORED_DTYPES, STORED_NAMES

CPU: Final = "cpu"
BFLOAT16: Final = "bfloat16"
_UNITS: Final = frozenset(map(np.dtype, (np.uint8, np.uint16, np.uint32)))
# Dtypes that stand for raw bits; each matches every dtype of the same size.
_RAW: Final = frozenset(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64))


class TensorBits(NamedTuple):
    """The elements of a tensor as a box of numbers that shares its memory.

    Args:
        name: argument name, for messages.
        bits: the units of the elements: a NumPy array of uint8, uint16 or uint32 on the CPU, a
            torch tensor of int8, int16 or int32 elsewhere. One row if the elements are contiguous;
            otherwise with the strides of the tensor, all >= 0, and a last dimension for the units
            of an element, if it has several. Elements are in row-major order.
        shape: shape of the tensor, in elements.
        dtype: name of the dtype.
        device: "cpu", or torch's name of the device.
        width: bits of a unit: 8, 16 or 32.
        exponent: (lowest bit, number of bits) of the exponent in a unit; None if there is none.
        units: units of an element: 2 or more if it has more than 32 bits.
    """

    name: str
    bits: Any
    shape: tuple[int, ...]
    dtype: str
    device: str
    width: int
    exponent: tuple[int, int] | None
    units: int

    @property
    def address(self) -> int:
        """Return the address of the first element."""
        bits = self.bits
        return _core.address_of(bits) if self.device == CPU else int(bits.data_ptr())

    @property
    def is_raw(self) -> bool:
        """True if the dtype states only the size of the elements, not their meaning."""
        return self.dtype in _RAW


def bits_of(name: str, tensor: Any, *, is_written: bool = False, stream: Any = None) -> TensorBits:
    """Return the bits of a tensor.

    Args:
        name: argument name, for messages.
        tensor: a NumPy array, a torch tensor, or an object with DLPack; any dtype of
            `STORED_NAMES`, and any strides >= 0. A tensor that requires grad is detached.
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


def is_units(tensor: Any) -> bool:
    """Return True for a contiguous array of units, which needs no `bits_of`."""
    if type(tensor) is not np.ndarray or tensor.dtype not in _UNITS:
        return False
    flags = tensor.flags
    return flags.c_contiguous and flags.aligned


def units_of(name: str, tensor: Any) -> Any:
    """Return the units of a tensor in host memory, to be written in place.

    Raises:
        InvalidArgument: as for `bits_of`, or the tensor is on another device.
    """
    if is_units(tensor):
        return tensor
    seen = bits_of(name, tensor, is_written=True)
    if seen.device != CPU:
        raise InvalidArgument(f"{name} is on {seen.device}: pass .cpu()")
    return seen.bits


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


@dataclass(frozen=True, slots=True)
class _Meaning:
    """Units in which the codec reads the elements of a dtype.

    Args:
        units: units of an element.
        unsigned: NumPy's dtype of a unit.
        signed: torch's dtype of a unit; None for dtypes of NumPy.
    """

    dtype: str
    width: int
    units: int
    exponent: tuple[int, int] | None
    unsigned: "np.dtype[Any]"
    signed: Any = None


def _bits_of_numpy(name: str, array: Any) -> TensorBits:
    meaning = _meaning_in_numpy(array.dtype)
    if meaning is None:
        _refuse(name, array.dtype)
    flags = array.flags
    if not flags.aligned:
        raise InvalidArgument(f"{name} is not aligned to its elements: pass a copy of it")
    if flags.c_contiguous:
        bits = array.reshape(-1).view(meaning.unsigned)
    else:
        box = array.squeeze()  # the stride of a dimension of size 1 has no meaning
        if min(box.strides) < 0:
            raise InvalidArgument(f"{name} has a stride below 0: pass a copy of it")
        bits = (box if meaning.units == 1 else box[..., None]).view(meaning.unsigned)
    return _seen(name, bits, array.shape, meaning, CPU)


def _bits_of_torch(name: str, tensor: Any) -> TensorBits:
    import torch  # noqa: PLC0415

    # A DTensor, and a parameter that DeepSpeed's ZeRO-3 has emptied.
    if hasattr(tensor, "to_local") or (hasattr(tensor, "ds_tensor") and tensor.numel() == 0):
        raise InvalidArgument(
            f"{name} is spread over ranks: gather the whole tensor, or publish each rank's part "
            "with shards="
        )
    if tensor.is_nested:
        raise InvalidArgument(f"{name} is nested: pass its parts as tensors of their own")
    if tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_conj():
        raise InvalidArgument(
            f"{name} is sparse, or lazily negated or conjugated: pass a dense copy of it"
        )
    meaning = _meaning_in_torch(tensor.dtype)
    if meaning is None:
        _refuse(name, str(tensor.dtype).removeprefix("torch."))
    # The view detaches the tensor too: integers have no gradient.
    box = (tensor if meaning.units == 1 else tensor.unsqueeze(-1)).view(meaning.signed)
    is_row = tensor.is_contiguous()
    if not tensor.is_cpu:
        bits = box.view(-1) if is_row else box.squeeze()
        return _seen(name, bits, tuple(tensor.shape), meaning, str(tensor.device))
    bits = box.numpy()
    bits = (bits.reshape(-1) if is_row else bits.squeeze()).view(meaning.unsigned)
    return _seen(name, bits, tuple(tensor.shape), meaning, CPU)


def _seen(
    name: str, bits: Any, shape: tuple[int, ...], meaning: _Meaning, device: str
) -> TensorBits:
    return TensorBits(
        name, bits, shape, meaning.dtype, device, meaning.width, meaning.exponent, meaning.units
    )


@functools.cache
def _meaning_in_numpy(dtype: "np.dtype[Any]") -> _Meaning | None:
    return _meaning(str(dtype), dtype.itemsize)


@functools.cache
def _meaning_in_torch(dtype: Any) -> _Meaning | None:
    import torch  # noqa: PLC0415

    meaning = _meaning(str(dtype).removeprefix("torch."), dtype.itemsize)
    return meaning and replace(meaning, signed=getattr(torch, f"int{meaning.width}"))


def _meaning(dtype: str, itemsize: int) -> _Meaning | None:
    """Return what a dtype means; None if it is not supported."""
    if dtype not in STORED_NAMES:
        return None
    stored = STORED_DTYPES[STORED_NAMES[dtype]]
    unit = stored.unit_bytes
    return _Meaning(dtype, 8 * unit, itemsize // unit, stored.exponent, np.dtype(stored.unit))


def _refuse(name: str, dtype: object) -> NoReturn:
    raise InvalidArgument(f"{name} has the dtype {dtype}: choose one of {', '.join(STORED_NAMES)}")


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
    if (one.width, one.units) != (other.width, other.units) or not is_of_one_kind:
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
