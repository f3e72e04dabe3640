"""Arrays of other libraries, taken without a copy, by DLPack.

What is in host memory becomes an array of NumPy; what NumPy has no dtype for, and what is on a GPU,
becomes a tensor of torch. Only what says that it can be written to is written to.
"""

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, TypeAlias

import numpy as np

from rose.errors import InvalidArgument

# Kinds of devices of DLPack: memory of the host (pageable, pinned by CUDA or ROCm), and of GPUs.
_HOST: Final = frozenset({1, 3, 11})
_GPU: Final = frozenset({2, 10})
_READ_ONLY: Final = 1

# Returns torch, which is asked for only where it is needed; the argument: whether with a GPU.
TorchSource: TypeAlias = Callable[[bool], Any]


def taken(name: str, thing: Any, *, is_written: bool, stream: Any, torch_with: TorchSource) -> Any:
    """Return the same memory as an array of NumPy or a tensor of torch.

    On a GPU the stream waits for what the owner has queued; this thread waits for nothing.

    Args:
        name: of the argument.
        thing: has `__dlpack__`.
        is_written: whether its elements will be changed in place.
        stream: the one that will read it; None for torch's current one.
        torch_with: gives torch, with a GPU or without.

    Raises:
        InvalidArgument: its owner does not give it, or not to be written to.
        Unavailable: from `torch_with`.
    """
    kind, index = (int(one) for one in thing.__dlpack_device__())
    if kind not in _HOST | _GPU:
        raise InvalidArgument(
            f"{name} is on a device of DLPack's kind {kind}: transfer computes on CPUs and GPUs"
        )
    if kind in _HOST:
        try:
            return np.from_dlpack(thing)  # its flags say whether it can be written to
        except (BufferError, RuntimeError):
            pass  # NumPy has no bf16 and no fp8: torch has, and says what is wrong with the rest
    torch = torch_with(kind in _GPU)
    offer = _Offer(thing)
    device = torch.device("cuda", index) if kind in _GPU else None
    try:
        with _current(stream, device):
            tensor = torch.from_dlpack(offer)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InvalidArgument(
            f"{name} is a {type(thing).__name__} that DLPack does not give: {error}"
        ) from error
    if is_written and not (offer.is_writable or _says_writable(thing)):
        raise InvalidArgument(
            f"{name} is a {type(thing).__name__} that does not say it can be written to: "
            "pass an array that can be written to"
        )
    return tensor


def _current(stream: Any, device: Any) -> Any:
    """Make the stream torch's current one, so that the owner lets it wait."""
    if stream is None or device is None:
        return nullcontext()
    from rose.kernels.streams import on_stream  # noqa: PLC0415

    return on_stream(stream, device)


class _Offer:
    """Hands a DLPack capsule on, and looks whether it may be written to: torch does not."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self.is_writable = False

    def __dlpack_device__(self) -> Any:
        return self._thing.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._thing.__dlpack__(**options)
        self.is_writable = _is_writable(capsule)
        return capsule


class _Versioned(ctypes.Structure):
    """The head of a DLManagedTensorVersioned, of DLPack 1.0 and later."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


def _is_writable(capsule: Any) -> bool:
    """Whether a capsule says so; one from before DLPack 1.0 cannot."""
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address = read(capsule, b"dltensor_versioned")
    except ValueError:  # it has another name
        return False
    return not _Versioned.from_address(address).flags & _READ_ONLY


def _says_writable(thing: Any) -> bool:
    """Whether an array of a GPU says so besides, as CuPy's do, whose capsules cannot."""
    interface = getattr(thing, "__cuda_array_interface__", None)
    return interface is not None and not interface["data"][1]
