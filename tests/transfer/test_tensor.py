"""Tensors that transfer accepts, the bits that it sees, and the errors for all others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose import _core
from rose.checkpoints.safetensors_file import SafetensorsFile
from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.codec.backend import ISAS, host_isa, lowered_isa
from rose.transfer.codec.operations import digest, topk_pack, topk_unpack
from rose.transfer.codec.tensor import bits_of, check_pair
from rose.transfer.tensors import STORED_NAMES, StoredTensor
from tests.transfer.twins import same
from tests.vectors.delta_v2 import changed


@pytest.fixture
def pair() -> tuple[Any, Any]:
    return changed(np.random.default_rng(2), 120, density=0.2, steps=0.8)


FREE = np.zeros(8, np.uint16)


# ---- dtypes


@pytest.mark.parametrize(
    ("dtype", "width", "exponent"),
    [
        ("uint8", 8, None),
        ("int8", 8, None),
        ("uint16", 16, None),
        ("int16", 16, None),
        ("float16", 16, (10, 5)),
        ("uint32", 32, None),
        ("int32", 32, None),
        ("float32", 32, (23, 8)),
        ("bool", 8, None),
        ("int64", 32, None),
        ("uint64", 32, None),
        ("float64", 32, None),
        ("complex64", 32, (23, 8)),
        ("complex128", 32, None),
    ],
)
def test_arrays_of_numpy_are_bits_of_their_width(
    dtype: str, width: int, exponent: tuple[int, int] | None
) -> None:
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    seen = bits_of("new", array)
    assert (seen.width, seen.exponent, seen.dtype, seen.device) == (width, exponent, dtype, "cpu")
    units = 8 * array.itemsize // width
    assert seen.units == units
    assert (seen.shape, seen.bits.shape) == ((2, 3, 4), (24 * units,))
    assert seen.bits.dtype == f"u{width // 8}"
    assert seen.bits.ctypes.data == array.ctypes.data
    assert seen.bits.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", *(one for one in STORED_NAMES if "float8" in one)])
def test_dtypes_of_ml_dtypes_are_supported(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6).astype(getattr(ml_dtypes, dtype)).reshape(2, 3)
    seen = bits_of("new", array)
    assert (seen.dtype, seen.width) == (dtype, 8 * array.itemsize)
    assert seen.bits.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", STORED_NAMES)
def test_tensors_of_torch_share_their_memory(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    size = getattr(torch, dtype).itemsize
    old, new = (np.random.default_rng(i).integers(0, 256, 480, dtype=np.uint8) for i in (1, 2))
    fresh, shadow, held = (
        torch.from_numpy(one.copy()).view(getattr(torch, dtype)).reshape(-1, 6)
        for one in (new, old, old)
    )
    seen, unit = bits_of("held", held), min(size, 4)
    assert (seen.width, seen.units, seen.dtype) == (8 * unit, size // unit, dtype)
    assert seen.bits.ctypes.data == seen.address == held.data_ptr()
    delta = delta_pack(fresh, shadow)
    assert delta.width == 8 * unit
    assert same(delta, delta_pack(new.view(f"u{unit}"), old.view(f"u{unit}").copy()))
    assert shadow.view(torch.uint8).numpy().tobytes() == new.tobytes()
    delta_apply(held, delta)
    assert held.view(torch.uint8).numpy().tobytes() == new.tobytes()
    assert digest(held) == delta.digest


def test_bits_without_a_meaning_go_with_any_dtype_of_their_width() -> None:
    shape = (4,)
    raw = bits_of("new", np.zeros(shape, np.uint16))
    for dtype in (np.float16, np.int16, np.uint16):
        check_pair(raw, bits_of("shadow", np.zeros(shape, dtype)))
    for dtype in (np.uint8, np.float32, np.int32):
        with pytest.raises(InvalidArgument, match="new has the dtype uint16 and shadow"):
            check_pair(raw, bits_of("shadow", np.zeros(shape, dtype)))


@pytest.mark.parametrize("dtype", ["int16", "int64", "complex64", "complex128"])
def test_wide_elements_may_be_strided_or_single(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    new, old = (rng.integers(0, 1 << 62, (6, 10)).view(np.uint8) for _ in range(2))
    for pick in (
        lambda all_: all_[::2, 1::2],
        lambda all_: all_.T[1:],
        lambda all_: all_[0, 0, ...],
        lambda all_: all_[:0],
    ):
        arrays = [np.array(one).view(dtype) for one in (new, old, old)]
        tensors = [torch.from_numpy(one.copy()) for one in arrays]
        deltas = []
        for fresh, shadow, held in (arrays, tensors):
            whole = shadow.copy() if shadow is arrays[1] else shadow.clone()
            views = [pick(one) for one in (fresh, shadow, held)]
            deltas.append(delta_pack(views[0], views[1]))
            delta_apply(views[2], deltas[-1])
            pick(whole)[...] = views[0]
            for one in (shadow, held):  # the elements of the view, and no others
                assert np.asarray(one).tobytes() == np.asarray(whole).tobytes()
        assert same(*deltas)


def test_tensor_in_memory_is_described_as_a_file_stores_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    tensors = {
        name: torch.zeros(3, 16, dtype=torch.uint8).view(getattr(torch, name))
        for name in STORED_NAMES
        if name != "complex128"  # not in the format
    }
    save(tensors, tmp_path / "all.safetensors")
    stored = SafetensorsFile(tmp_path / "all.safetensors").tensors
    found = {one.name: one for one in stored}
    for name, tensor in tensors.items():
        seen = bits_of(name, tensor)
        made = StoredTensor.of(name, seen.dtype, seen.shape)
        assert replace(made, begin=found[name].begin) == found[name]
        assert made.count == seen.bits.size
    assert StoredTensor.of("w", "float4_e2m1fn_x2", ()).shape == (2,)
    assert StoredTensor.of("w", "complex128", (3,)).count == 12


# ---- shapes and strides


def test_a_scalar_is_one_element() -> None:
    shadow = np.array(1, np.uint16)
    delta = delta_pack(np.array(7, np.uint16), shadow)
    assert (delta.count, int(shadow)) == (1, 7)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 2)])
def test_tensor_without_elements_is_published(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    for empty in (np.empty(shape, np.float32), torch.empty(shape, dtype=torch.bfloat16)):
        assert bits_of("new", empty[::1]).bits.size == 0
        delta = delta_pack(empty, empty)
        assert (delta.count, delta.changed) == (0, 0)
        delta_apply(empty, delta)


def test_a_tensor_without_elements_runs_nowhere() -> None:
    backwards = np.lib.stride_tricks.as_strided(np.zeros(4, np.uint16), (0, 4), (-8, -2))
    assert bits_of("new", backwards, is_written=True).bits.size == 0


BOXES = {
    "transpose": lambda one: one.transpose(3, 1, 0, 2),
    "columns": lambda one: one[:, :, :, 1:3],
    "inner box": lambda one: one[1:, 2:5, 1:, ::2],
    "one row": lambda one: one[1:2, 3:4, 2:3, :],
    "one of each": lambda one: one[1:2, :, 2:3, 3:4],
    "every second": lambda one: one[::2, ::3],
}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_box_of_a_larger_tensor_is_changed_in_place(name: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    shape = (3, 6, 4, 5)
    new, old = changed(
        rng, int(np.prod(shape)), density=0.5, steps=0.5, width=8 * np.dtype(dtype).itemsize
    )
    new, old = new.reshape(shape), old.reshape(shape)
    view = BOXES[name]
    whole = old.copy()
    part = view(whole)
    seen = bits_of("weights", part)
    assert np.shares_memory(seen.bits, whole)
    assert seen.bits.ravel().tolist() == part.ravel().tolist()
    delta = delta_pack(view(new), part)
    expected = old.copy()
    view(expected)[...] = view(new)
    assert whole.tolist() == expected.tolist()
    row = view(old).flatten()
    assert same(delta, delta_pack(view(new).flatten(), row))
    assert digest(part) == digest(row) == delta.digest
    delta_apply(part, delta, undo=True)
    assert whole.tolist() == old.tolist()


@pytest.mark.parametrize(
    "name", sorted(BOXES.keys() - {"transpose"})
)  # the one that torch spells apart
def test_torch_and_numpy_give_the_same_box(name: str) -> None:
    torch = pytest.importorskip("torch")
    base = np.arange(360, dtype=np.int32).reshape(3, 6, 4, 5)
    tensor = torch.from_numpy(base).view(torch.float32)
    one, other = bits_of("new", BOXES[name](tensor)), bits_of("new", BOXES[name](base))
    assert one.bits.__array_interface__ == other.bits.__array_interface__


def test_one_index_has_no_stride() -> None:
    base = np.arange(12, dtype=np.uint16).reshape(3, 4)
    assert bits_of("new", base[1:2][::-1]).bits.tolist() == [4, 5, 6, 7]
    assert bits_of("new", base[:, 2:3][:, ::-1]).bits.tolist() == [2, 6, 10]


def test_elements_that_share_memory_are_read_and_not_written() -> None:
    torch = pytest.importorskip("torch")
    row = np.arange(4, dtype=np.uint16)
    windows = np.lib.stride_tricks.sliding_window_view(row, 2, writeable=True)
    expanded = torch.from_numpy(row.view(np.int16)).expand(3, 4)
    for one, listed in ((windows, [0, 1, 1, 2, 2, 3]), (expanded, [0, 1, 2, 3] * 3)):
        assert digest(one) == digest(np.array(listed, np.uint16))
        with pytest.raises(InvalidArgument, match="weights has elements that may share memory"):
            bits_of("weights", one, is_written=True)


# ---- refusals


class Other:
    """An object that is no tensor."""


@pytest.mark.parametrize(
    ("new", "shadow", "says"),
    [
        ([1, 2], FREE, "new is a list: pass an array of NumPy, a tensor of torch or an object"),
        (FREE, Other(), "shadow is a Other: pass"),
        (None, FREE, "new is a NoneType: pass an array"),
        (np.zeros(8, object), FREE, "new has the dtype object: choose one of bool, uint8, int8"),
        (np.zeros(8, "u2,u2"), FREE, "new has the dtype .*: choose one of bool"),
        (
            np.zeros(8, np.int64),
            np.zeros(8, np.uint32),
            "new has the dtype int64 and shadow uint32",
        ),
        (np.zeros(8, bool), FREE, "new has the dtype bool and shadow uint16: make them equal"),
        (np.zeros(8, ">u2"), FREE, "new has the dtype >u2"),
        (np.zeros(8, "V2"), FREE, r"new has the dtype \|V2"),
        (FREE[::-1], FREE.copy(), "new has a stride below 0"),
        (FREE, FREE.copy()[::-1], "shadow has a stride below 0"),
        (np.zeros(17, np.uint8)[1:].view(np.uint16), FREE, "new is not aligned to its elements"),
        (np.zeros(9, np.uint16), FREE, r"new has the shape \(9,\) and shadow \(8,\)"),
        (np.zeros((2, 4), np.uint16), FREE, r"new has the shape \(2, 4\) and shadow \(8,\)"),
        (
            np.zeros(8, np.float32),
            FREE,
            "new has the dtype float32 and shadow uint16: make them equal",
        ),
        (np.zeros(8, np.uint8), FREE, "new has the dtype uint8 and shadow uint16: make them equal"),
    ],
)
def test_tensor_that_cannot_be_packed_is_named(new: Any, shadow: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        delta_pack(new, shadow)


def test_read_only_memory_is_refused() -> None:
    frozen = FREE.copy()
    frozen.setflags(write=False)
    delta = delta_pack(frozen, FREE.copy())
    with pytest.raises(InvalidArgument, match="shadow is read-only"):
        delta_pack(FREE, frozen)
    with pytest.raises(InvalidArgument, match="weights is read-only"):
        delta_apply(frozen, delta)
    topk_unpack(delta, frozen)


@pytest.mark.parametrize("shift", [0, 1, 7, -1, -7])
def test_overlap_is_refused_and_neighbours_are_not(shift: int) -> None:
    memory = np.arange(32, dtype=np.uint16)
    new, shadow = memory[8:16], memory[8 + shift : 16 + shift]
    with pytest.raises(InvalidArgument, match="new and shadow overlap in memory"):
        delta_pack(new, shadow)
    assert memory.tolist() == list(range(32))
    for apart in (memory[0:8], memory[16:24]):
        delta_pack(memory[8:16], apart)


def test_interleaved_boxes_do_not_overlap() -> None:
    memory = np.arange(48, dtype=np.uint16).reshape(6, 8)
    new, shadow = memory[:, :4], memory[:, 4:]
    delta_pack(new, shadow)
    assert memory[:, 4:].tolist() == memory[:, :4].tolist()
    with pytest.raises(InvalidArgument, match="new and shadow overlap in memory"):
        delta_pack(memory[:, :4], memory[:, 3:7])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: delta_pack(FREE, FREE.copy(), block_elements=4096), "block_elements 4096: choose"),
        (lambda: topk_pack(FREE, FREE.copy(), budget=1, block_elements=0), "block_elements 0"),
        (lambda: topk_pack(FREE, FREE.copy(), budget=-1), "budget -1 must be"),
        (lambda: topk_pack(FREE, FREE.copy(), budget=1 << 64), "budget 18446744073709551616"),
        (
            lambda: topk_pack(FREE.view(np.float16), FREE.view(np.float16).copy(), budget=1),
            "new has the dtype float16: top-k is for bfloat16",
        ),
        (
            lambda: topk_pack(FREE, FREE.view(np.float16).copy(), budget=1),
            "shadow has the dtype float16: top-k is for bfloat16",
        ),
        (
            lambda: topk_pack(FREE.view(np.uint8), FREE.view(np.uint8).copy(), budget=1),
            "new has the dtype uint8: top-k is for bfloat16",
        ),
    ],
)
def test_bad_numbers_are_named(call: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        call()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"block_elements": 4096}, "block_elements 4096"),
        ({"block_elements": 65536, "threshold": 32769}, "threshold 32769 must be at most 32768"),
        ({"block_elements": 65536, "isa": "sse9"}, "isa 'sse9': choose portable, avx2 or avx512"),
    ],
)
def test_core_refuses_what_python_refuses(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        _core.delta_pack(FREE, FREE.copy(), **options)


def test_core_refuses_arrays_of_two_sizes() -> None:
    with pytest.raises(InvalidArgument, match="new has 8 elements and shadow 7"):
        _core.delta_pack(FREE, FREE[:7].copy(), block_elements=65536)
    with pytest.raises(InvalidArgument, match="new has 8 elements and shadow 7"):
        _core.topk_threshold(FREE, FREE[:7].copy(), budget=1)


def test_core_converts_no_dtype() -> None:
    with pytest.raises(InvalidArgument, match="new: the dtype must be uint8, uint16 or uint32"):
        _core.delta_pack(np.zeros(8, np.int64), FREE.copy(), block_elements=65536)


# ---- the instruction set


def test_rose_isa_lowers_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _core.isa_names() == list(ISAS[: len(_core.isa_names())])
    for name in _core.isa_names():
        assert lowered_isa(name) == name
    assert lowered_isa(None) is None
    monkeypatch.setattr(_core, "isa_names", lambda: ["portable"])
    assert lowered_isa("avx512") is None  # the best there is, which is less


@pytest.fixture
def read_again() -> Iterator[None]:
    """Have the environment read anew, in the test and after it."""
    host_isa.cache_clear()
    yield
    host_isa.cache_clear()


@pytest.mark.usefixtures("read_again")
def test_rose_isa_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_ISA", "portable")
    assert host_isa() == "portable"
    monkeypatch.setenv("ROSE_ISA", "sse9")
    assert host_isa() == "portable"
    assert digest(FREE) == digest(FREE.copy())


@pytest.mark.usefixtures("read_again")
def test_unknown_rose_isa_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_ISA", "sse9")
    with pytest.raises(InvalidArgument, match="ROSE_ISA=sse9: choose portable, avx2 or avx512"):
        digest(FREE)


def test_an_instruction_set_the_machine_lacks_is_refused() -> None:
    lacking = [name for name in ISAS if name not in _core.isa_names()]
    for name in lacking:
        with pytest.raises(InvalidArgument, match=f"isa '{name}': this machine has"):
            _core.digest(FREE, isa=name)
    assert len(lacking) < len(ISAS)


# ---- torch


def test_tensor_that_requires_grad_is_detached(pair: tuple[Any, Any]) -> None:
    torch = pytest.importorskip("torch")
    new = torch.nn.Parameter(torch.from_numpy(pair[0].view(np.int16)).view(torch.bfloat16).clone())
    shadow = torch.from_numpy(pair[1].view(np.int16).copy()).view(torch.bfloat16)
    weights = torch.nn.Parameter(shadow.clone())
    delta = delta_pack(new, shadow)
    delta_apply(weights, delta)
    assert weights.requires_grad
    assert weights.grad_fn is None
    assert digest(weights) == digest(new)


def test_unsupported_torch_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")

    class Spread(torch.Tensor):  # type: ignore[misc]
        """As a DTensor is seen: a tensor whose own memory is a part of it."""

        def to_local(self) -> Any:
            raise AssertionError

    here = torch.zeros(8, dtype=torch.bfloat16)
    emptied = torch.nn.Parameter(torch.zeros(0))
    emptied.ds_tensor = here  # as ZeRO-3 leaves a parameter
    cases = [
        (torch.zeros(8, dtype=torch.bool), here, "new has the dtype bool and shadow bfloat16"),
        (torch.nested.nested_tensor([here]), here, "new is nested: pass its parts as tensors"),
        (
            torch.quantize_per_tensor(torch.zeros(8), 0.1, 0, torch.qint8),
            here,
            "new has the dtype qint8: choose one of bool, uint8, int8",
        ),
        (torch.zeros(8), here, "new has the dtype float32 and shadow bfloat16: make them equal"),
        (
            here,
            here.clone().half(),
            "new has the dtype bfloat16 and shadow float16: make them equal",
        ),
        (here.to_sparse(), here.clone(), "new is sparse, or lazily negated or conjugated: pass a"),
        (torch._neg_view(here), here.clone(), "new is sparse, or lazily negated"),
        (torch.zeros(8, dtype=torch.complex64).conj(), here, "negated or conjugated: pass a dense"),
        (Spread(), here.clone(), "new is spread over ranks: gather the whole tensor, or publish"),
        (emptied, here.clone(), "new is spread over ranks: gather the whole tensor, or publish"),
        (here.to("meta"), here.to("meta"), "new is on meta: transfer computes on CPUs and on CUDA"),
        (here, here.to("meta"), "new is on cpu and shadow on meta: move one of them"),
        (here, here, "new and shadow overlap in memory"),
    ]
    for new, shadow, says in cases:
        with pytest.raises(InvalidArgument, match=says):
            delta_pack(new, shadow)
