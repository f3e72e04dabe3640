"""Arrays of other libraries, taken over through DLPack without a copy.

Host memory becomes a NumPy array; dtypes that NumPy lacks, and GPU memory, become a torch tensor.
Only arrays that declare themselves writable are written.
"""

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, TypeAlias

import numpy as np

from rose.errors import InvalidArgument

# Device kinds of DLPack: host memory (pageable, pinned by CUDA or ROCm), and GPUs.
_HOST: Final = frozenset({1, 3, 11})
_GPU: Final = frozenset({2, 10})
_READ_ONLY: Final = 1

# Returns torch, imported on demand; the argument says whether a GPU is needed.
TorchSource: TypeAlias = Callable[[bool], Any]


def taken(name: str, thing: Any, *, is_written: bool, stream: Any, torch_with: TorchSource) -> Any:
    """Return the same memory as a NumPy array or a torch tensor.

    On a GPU the stream waits for the work that the other library has queued; this thread does not
    wait.

    Args:
        name: argument name, for messages.
        thing: object with `__dlpack__`.
        is_written: whether its elements will be changed in place.
        stream: GPU stream that will read the elements; None for torch's current stream.
        torch_with: imports and returns torch; see `TorchSource`.

    Raises:
        InvalidArgument: the other library does not export `thing`, or only for reading.
        Unavailable: torch is needed, and is not installed or finds no GPU.
    """
    kind, index = (int(one) for one in thing.__dlpack_device__())
    if kind not in _HOST | _GPU:
        raise InvalidArgument(
            f"{name} is on DLPack device kind {kind}: transfer computes on CPUs and on CUDA "
            "or ROCm GPUs"
        )
    if kind in _HOST:
        try:
            return np.from_dlpack(thing)  # its flags say whether it is writable
        except (BufferError, RuntimeError):
            pass  # NumPy has no bf16 and no fp8, but torch has; torch also explains other failures
    torch = torch_with(kind in _GPU)
    offer = _Offer(thing)
    device = torch.device("cuda", index) if kind in _GPU else None
    try:
        with _current(stream, device):
            tensor = torch.from_dlpack(offer)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InvalidArgument(
            f"{name} is a {type(thing).__name__} that DLPack cannot export: {error}"
        ) from error
    if is_written and not (offer.is_writable or _reports_writable(thing)):
        raise InvalidArgument(
            f"{name} is a {type(thing).__name__} that does not declare itself writable: "
            "pass a writable array"
        )
    return tensor


def _current(stream: Any, device: Any) -> Any:
    """Make `stream` torch's current stream, so that `stream` waits for the other library's work."""
    if stream is None or device is None:
        return nullcontext()
    from rose.kernels.streams import on_stream  # noqa: PLC0415

    return on_stream(stream, device)


class _Offer:
    """Forwards a DLPack capsule and records whether it is writable; torch does not report that."""

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
    """Return True if a capsule declares itself writable, which needs DLPack 1.0 or later."""
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address = read(capsule, b"dltensor_versioned")
    except ValueError:  # an older capsule, with another name
        return False
    return not _Versioned.from_address(address).flags & _READ_ONLY


def _reports_writable(thing: Any) -> bool:
    """Return True if the CUDA array interface declares an array writable.

    CuPy does not declare it in DLPack.
    """
    interface = getattr(thing, "__cuda_array_interface__", None)
    return interface is not None and not interface["data"][1]
