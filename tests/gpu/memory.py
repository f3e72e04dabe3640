"""Device memory without a framework: an allocation for each buffer, with guards around it.

A sanitizer sees an access beyond such a buffer, which in a framework's pool would hit a neighbour.
The bytes before and after the part that is used hold a pattern, and are looked at as well.
"""

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.gpu.card import driver_library

POISON: Final = 0xA5
GUARD_BYTES: Final = 64


class Buffer:
    """`nbytes` on the device that start `skew_bytes` behind an address aligned to 256 bytes."""

    def __init__(self, memory: "Memory", nbytes: int, *, skew_bytes: int = 0) -> None:
        self._memory = memory
        self._front = 256 + skew_bytes
        self._total = self._front + nbytes + GUARD_BYTES
        self.nbytes = nbytes
        self._base = memory.alloc(self._total)
        memory.fill(self._base, POISON, self._total)

    @property
    def address(self) -> int:
        return self._base + self._front

    def write(self, array: npt.NDArray[Any]) -> "Buffer":
        content = np.ascontiguousarray(array)
        assert content.nbytes == self.nbytes
        if content.nbytes:
            self._memory.to_device(self.address, content)
        return self

    def read(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the content, and make sure that nothing around it was written."""
        everything = np.empty(self._total, np.uint8)
        self._memory.to_host(everything, self._base)
        front, back = everything[: self._front], everything[self._front + self.nbytes :]
        assert (front == POISON).all(), "something was written before the buffer"
        assert (back == POISON).all(), "something was written behind the buffer"
        return everything[self._front : self._front + self.nbytes].copy().view(dtype)

    def __del__(self) -> None:
        self._memory.free(self._base)


class Memory:
    """Allocations and copies in the primary context of the first GPU."""

    def __init__(self) -> None:
        cuda = driver_library()
        assert cuda is not None
        self._cuda = cuda
        pointer, size = ctypes.c_uint64, ctypes.c_size_t
        cuda.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, size]
        cuda.cuMemFree_v2.argtypes = [pointer]
        cuda.cuMemsetD8_v2.argtypes = [pointer, ctypes.c_ubyte, size]
        cuda.cuMemcpyHtoD_v2.argtypes = [pointer, ctypes.c_void_p, size]
        cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, pointer, size]
        self._call("cuInit", 0)
        context = ctypes.c_void_p(0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: Any) -> None:
        answer = getattr(self._cuda, name)(*arguments)
        assert answer == 0, f"{name} answers {answer}"

    def alloc(self, nbytes: int) -> int:
        address = ctypes.c_uint64(0)
        self._call("cuMemAlloc_v2", ctypes.byref(address), nbytes)
        return address.value

    def free(self, address: int) -> None:
        self._cuda.cuMemFree_v2(address)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self._call("cuMemsetD8_v2", address, byte, nbytes)

    def to_device(self, address: int, content: npt.NDArray[Any]) -> None:
        self._call("cuMemcpyHtoD_v2", address, content.ctypes.data, content.nbytes)

    def to_host(self, into: npt.NDArray[Any], address: int) -> None:
        self.synchronize()
        self._call("cuMemcpyDtoH_v2", into.ctypes.data, address, into.nbytes)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def current_context(self) -> int | None:
        context = ctypes.c_void_p(0)
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value

    # ---- buffers

    def buffer(self, nbytes: int, *, skew_bytes: int = 0) -> Buffer:
        return Buffer(self, nbytes, skew_bytes=skew_bytes)

    def uploaded(self, array: npt.NDArray[Any], *, skew_bytes: int = 0) -> Buffer:
        return self.buffer(array.nbytes, skew_bytes=skew_bytes).write(array)
