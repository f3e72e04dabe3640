"""Arrays of other libraries are used without a copy, and written only if they are writable."""

import sys
from typing import Any

import numpy as np
import pytest

from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.tensor import bits_of

CPU, CUDA, METAL = 1, 2, 8


class Exporter:
    """An array of a library that neither NumPy nor torch knows."""

    def __init__(self, inner: Any, *, is_old: bool = False, device: int = CPU) -> None:
        self.inner = inner
        self.is_old = is_old
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        if self.is_old and options:
            raise TypeError("__dlpack__ takes nothing, as before DLPack 1.0")
        return self.inner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "float16", "float32", "int32"])
def test_dlpack_arrays_are_not_copied(dtype: str) -> None:
    inner = np.arange(24).astype(dtype).reshape(4, 6)
    seen = bits_of("weights", Exporter(inner), is_written=True)
    assert (seen.dtype, seen.shape, seen.device) == (dtype, (4, 6), "cpu")
    assert seen.bits.ctypes.data == inner.ctypes.data
    seen.bits[0] = 77
    assert inner.view(f"u{inner.itemsize}")[0, 0] == 77


def test_dlpack_keeps_the_strides_of_a_box() -> None:
    inner = np.arange(60, dtype=np.uint16).reshape(3, 4, 5)[:, 1:3, ::2]
    seen = bits_of("weights", Exporter(inner), is_written=True)
    assert seen.bits.__array_interface__ == inner.__array_interface__
    with pytest.raises(InvalidArgument, match="weights has a stride below 0"):
        bits_of("weights", Exporter(inner[::-1]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_unknown_to_numpy_are_read_through_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    inner = torch.arange(12).to(getattr(torch, dtype)).reshape(3, 4)[:, 1:]
    seen = bits_of("weights", Exporter(inner), is_written=True)
    assert (seen.dtype, seen.shape, seen.device) == (dtype, (3, 3), "cpu")
    assert seen.bits.ctypes.data == inner.data_ptr()
    assert seen.bits.strides == tuple(4 * inner.element_size() // one for one in (1, 4))


def test_torch_tensors_do_not_go_through_dlpack() -> None:
    torch = pytest.importorskip("torch")

    class Silent(torch.Tensor):  # type: ignore[misc]
        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError

    inner = torch.zeros(4).as_subclass(Silent)
    assert bits_of("weights", inner, is_written=True).bits.ctypes.data == inner.data_ptr()


def test_read_only_array_is_read_but_not_written() -> None:
    inner = np.arange(4, dtype=np.uint16)
    inner.setflags(write=False)
    assert bits_of("new", Exporter(inner)).bits.tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidArgument, match="weights is read-only"):
        bits_of("weights", Exporter(inner), is_written=True)


def test_array_that_does_not_declare_itself_writable_is_only_read() -> None:
    inner = np.arange(4, dtype=np.uint16)
    old = Exporter(inner, is_old=True)
    assert bits_of("new", old).bits.tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidArgument, match="weights"):
        bits_of("weights", old, is_written=True)


class Frozen(Exporter):
    """Exports bf16 memory that must not be written to, as an immutable library does."""

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.inner.__dlpack__(**options)
        address = pointer_of(capsule)
        flags_at = 24  # behind two numbers of 32 bits and two pointers
        set_u64(address + flags_at, 1)
        return capsule


def pointer_of(capsule: Any) -> int:
    import ctypes

    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = read(capsule, b"dltensor_versioned")
    return address


def set_u64(address: int, value: int) -> None:
    import ctypes

    ctypes.c_uint64.from_address(address).value = value


def test_read_only_is_not_written_through_torch_either() -> None:
    torch = pytest.importorskip("torch")
    inner = torch.zeros(4, dtype=torch.bfloat16)
    frozen, old = Frozen(inner), Exporter(inner, is_old=True)
    for one in (frozen, old):
        assert bits_of("new", one).bits.tolist() == [0] * 4
        with pytest.raises(
            InvalidArgument, match=r"weights is a .* does not declare itself writable"
        ):
            bits_of("weights", one, is_written=True)


def test_array_that_dlpack_cannot_export_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    kept = Exporter(torch.zeros(4, requires_grad=True))
    with pytest.raises(InvalidArgument, match="new is a Exporter that DLPack cannot export: Can't"):
        bits_of("new", kept)


def test_unsupported_device_is_refused_by_name() -> None:
    elsewhere = Exporter(np.zeros(4, np.uint16), device=METAL)
    with pytest.raises(InvalidArgument, match="new is on DLPack device kind 8"):
        bits_of("new", elsewhere)


def test_gpu_array_is_refused_if_torch_finds_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thing = Exporter(np.zeros(4, "u2"), device=CUDA)
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match=r"new is on a GPU, but torch .* finds no GPU: install"):
        bits_of("new", thing)


def test_gpu_array_without_torch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thing = Exporter(np.zeros(4, "u2"), device=CUDA)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="new can only be read through torch: install torch"):
        bits_of("new", thing)
