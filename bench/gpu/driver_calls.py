"""The driver's memory calls, timed from the host: rose makes none of them when memory returns."""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.card import driver_library
from bench.gpu.report import Cannot

# Values of the driver's header.
_PINNED: Final = 1
_POSIX_FD: Final = 1
_DEVICE: Final = 1
_READ_WRITE: Final = 3


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocationFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class DriverCalls:
    """Creates, maps, unmaps and releases device memory in the current context, which must exist."""

    def __init__(self) -> None:
        library = driver_library()
        if library is None:
            raise Cannot("there is no NVIDIA driver")
        self._cuda = library
        size, pointer, handle = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64
        flags, out = ctypes.c_ulonglong, ctypes.c_void_p
        for name, arguments in {
            "cuMemCreate": (out, size, out, flags),
            "cuMemRelease": (handle,),
            "cuMemAddressReserve": (out, size, size, pointer, flags),
            "cuMemAddressFree": (pointer, size),
            "cuMemMap": (pointer, size, size, handle, flags),
            "cuMemUnmap": (pointer, size),
            "cuMemSetAccess": (pointer, size, out, size),
            "cuMemExportToShareableHandle": (out, handle, ctypes.c_int, flags),
            "cuMemImportFromShareableHandle": (out, out, ctypes.c_int),
        }.items():
            getattr(library, name).argtypes = arguments
        location = _Location(_DEVICE, 0)
        self._properties = AllocationProperties(
            type=_PINNED, handle_types=_POSIX_FD, location=location
        )
        self._access = Access(location=location, flags=_READ_WRITE)

    def _call(self, name: str, *arguments: Any) -> float:
        """Return the duration of a call, in microseconds."""
        function = getattr(self._cuda, name)
        began_ns = time.perf_counter_ns()
        answer = function(*arguments)
        took_us = (time.perf_counter_ns() - began_ns) * 1e-3
        if answer != 0:
            raise Cannot(f"{name} answers {answer}")
        return took_us

    def _create(self, size_bytes: int) -> tuple[ctypes.c_uint64, float]:
        handle = ctypes.c_uint64(0)
        took_us = self._call(
            "cuMemCreate", ctypes.byref(handle), size_bytes, ctypes.byref(self._properties), 0
        )
        return handle, took_us

    def cycle_us(self, size_bytes: int) -> tuple[float, float, float]:
        """Create, map and unmap once; return the duration of each. Nothing is left behind."""
        address = ctypes.c_uint64(0)
        handle, create_us = self._create(size_bytes)
        try:
            self._call("cuMemAddressReserve", ctypes.byref(address), size_bytes, 0, 0, 0)
            try:
                map_us, unmap_us = self._map_us(handle, address, size_bytes)
            finally:
                self._call("cuMemAddressFree", address, size_bytes)
        finally:
            self._call("cuMemRelease", handle)
        return create_us, map_us, unmap_us

    def _map_us(self, handle: Any, address: Any, size_bytes: int) -> tuple[float, float]:
        map_us = self._call("cuMemMap", address, size_bytes, 0, handle, 0)
        try:
            map_us += self._call(
                "cuMemSetAccess", address, size_bytes, ctypes.byref(self._access), 1
            )
        finally:
            unmap_us = self._call("cuMemUnmap", address, size_bytes)
        return map_us, unmap_us

    @contextmanager
    def _mapped(self, handle: ctypes.c_uint64, size_bytes: int) -> Iterator[int]:
        address = ctypes.c_uint64(0)
        self._call("cuMemAddressReserve", ctypes.byref(address), size_bytes, 0, 0, 0)
        try:
            self._call("cuMemMap", address, size_bytes, 0, handle, 0)
            try:
                access = ctypes.byref(self._access)
                self._call("cuMemSetAccess", address, size_bytes, access, 1)
                yield address.value
            finally:
                self._call("cuMemUnmap", address, size_bytes)
        finally:
            self._call("cuMemAddressFree", address, size_bytes)

    @contextmanager
    def exported(self, size_bytes: int) -> Iterator[tuple[int, int]]:
        """Create memory; yield a descriptor that a child may inherit, and its address."""
        handle, _ = self._create(size_bytes)
        fd = ctypes.c_int(-1)
        try:
            self._call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _POSIX_FD, 0)
            try:
                with self._mapped(handle, size_bytes) as address:
                    yield fd.value, address
            finally:
                os.close(fd.value)
        finally:
            self._call("cuMemRelease", handle)

    @contextmanager
    def imported(self, fd: int, size_bytes: int) -> Iterator[int]:
        """Map another process's memory; yield its address here."""
        handle = ctypes.c_uint64(0)
        # The interface takes the descriptor itself in place of a pointer.
        number = ctypes.c_void_p(fd)
        self._call("cuMemImportFromShareableHandle", ctypes.byref(handle), number, _POSIX_FD)
        try:
            with self._mapped(handle, size_bytes) as address:
                yield address
        finally:
            self._call("cuMemRelease", handle)
