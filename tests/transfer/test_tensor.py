"""What may be passed to transfer, how it is looked at, and what is said about the rest."""

from typing import Any

import numpy as np
import pytest

from rose import _core
from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack, digest, topk_pack, topk_unpack
from rose.transfer.backend import ISAS, backend_of, lowered_isa
from rose.transfer.tensor import bits_of
from tests.transfer.twins import same
from tests.vectors.delta_v1 import changed


@pytest.fixture
def pair() -> tuple[Any, Any]:
    return changed(np.random.default_rng(2), 120, density=0.2, steps=0.8)


def test_shapes_change_nothing(pair: tuple[Any, Any]) -> None:
    new, old = pair
    flat = delta_pack(new, old.copy())
    shaped = old.reshape(4, 5, 6).copy()
    assert same(delta_pack(new.reshape(4, 5, 6), shaped), flat)
    assert shaped.ravel().tolist() == new.tolist()
    held = old.reshape(30, 4).copy()
    delta_apply(held, flat)
    assert held.ravel().tolist() == new.tolist()
    assert digest(held) == digest(new)


def test_a_scalar_is_one_element() -> None:
    shadow = np.array(1, np.uint16)
    delta = delta_pack(np.array(7, np.uint16), shadow)
    assert (delta.count, int(shadow)) == (1, 7)


def test_float16_is_taken_as_bits(pair: tuple[Any, Any]) -> None:
    new, old = pair
    shadow = old.view(np.float16).copy()
    assert same(delta_pack(new.view(np.float16), shadow), delta_pack(new, old.copy()))
    assert shadow.view(np.uint16).tolist() == new.tolist()


class Other:
    """Nobody's tensor."""


FREE = np.zeros(8, np.uint16)


@pytest.mark.parametrize(
    ("new", "shadow", "says"),
    [
        ([1, 2], FREE, "new is a list: pass an array of NumPy or a tensor of torch"),
        (FREE, Other(), "shadow is a Other: pass"),
        (np.zeros(8, np.float32), FREE, "new is of float32: an array of NumPy is of uint16"),
        (np.zeros(8, ">u2"), FREE, "new is of >u2"),
        (np.zeros(8, np.int16), FREE, "new is of int16"),
        (np.zeros(16, np.uint16)[::2], FREE, r"new is not contiguous: pass np.ascontiguousarray"),
        (np.zeros((2, 3), np.uint16).T, np.zeros((3, 2), np.uint16), "new is not contiguous"),
        (np.zeros(17, np.uint8)[1:].view(np.uint16), FREE, "new is not contiguous"),
        (np.zeros(9, np.uint16), FREE, r"new has the shape \(9,\) and shadow \(8,\)"),
        (np.zeros((2, 4), np.uint16), FREE, r"new has the shape \(2, 4\) and shadow \(8,\)"),
    ],
)
def test_what_cannot_be_packed_is_named(new: Any, shadow: Any, says: str) -> None:
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


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: delta_pack(FREE, FREE.copy(), block_elements=4096), "block_elements 4096: choose"),
        (lambda: topk_pack(FREE, FREE.copy(), budget=1, block_elements=0), "block_elements 0"),
        (lambda: topk_pack(FREE, FREE.copy(), budget=-1), "budget -1 must be"),
        (lambda: topk_pack(FREE, FREE.copy(), budget=1 << 64), "budget 18446744073709551616"),
        (lambda: digest(FREE, first_index=2), "first_index 2: a part starts at a multiple of 4"),
        (lambda: digest(FREE, first_index=-4), "first_index -4 must be a number of 64 bits"),
        (lambda: digest(FREE, seed=1 << 64), "seed 18446744073709551616 must be"),
        (
            lambda: topk_pack(FREE.view(np.float16), FREE.view(np.float16).copy(), budget=1),
            "new is of float16: top-k is for bfloat16",
        ),
        (
            lambda: topk_pack(FREE, FREE.view(np.float16).copy(), budget=1),
            "shadow is of float16: top-k is for bfloat16",
        ),
        (
            lambda: topk_unpack(delta_pack(FREE, FREE.copy()), FREE.view(np.float16)),
            "base is of float16",
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
        ({"block_elements": 65536, "threshold": 32769}, "threshold 32769 is above 32768"),
        ({"block_elements": 65536, "isa": "sse9"}, "isa 'sse9': choose portable, avx2 or avx512"),
    ],
)
def test_the_core_refuses_too(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        _core.delta_pack(FREE, FREE.copy(), **options)


def test_the_core_refuses_arrays_of_two_sizes() -> None:
    with pytest.raises(InvalidArgument, match="new has 8 elements and shadow 7"):
        _core.delta_pack(FREE, FREE[:7].copy(), block_elements=65536)
    with pytest.raises(InvalidArgument, match="new has 8 elements and shadow 7"):
        _core.topk_threshold(FREE, FREE[:7].copy(), budget=1)


def test_the_core_converts_nothing() -> None:
    with pytest.raises(TypeError):
        _core.delta_pack(np.zeros(8, np.int64), FREE.copy(), block_elements=65536)  # type: ignore[arg-type]


# ---- the instruction set


def test_rose_isa_lowers_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _core.isa_names() == list(ISAS[: len(_core.isa_names())])
    for name in _core.isa_names():
        assert lowered_isa(name) == name
    assert lowered_isa(None) is None
    monkeypatch.setattr(_core, "isa_names", lambda: ["portable"])
    assert lowered_isa("avx512") is None  # the best there is, which is less


def test_rose_isa_is_read_for_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_ISA", "portable")
    assert backend_of(bits_of("new", FREE))._isa == "portable"  # type: ignore[attr-defined]
    monkeypatch.setenv("ROSE_ISA", "sse9")
    with pytest.raises(InvalidArgument, match="ROSE_ISA=sse9: choose portable, avx2 or avx512"):
        digest(FREE)
    monkeypatch.setenv("ROSE_ISA", "")
    assert digest(FREE) == digest(FREE.copy())


def test_an_instruction_set_the_machine_lacks_is_refused() -> None:
    lacking = [name for name in ISAS if name not in _core.isa_names()]
    for name in lacking:
        with pytest.raises(InvalidArgument, match=f"isa '{name}': this machine has"):
            _core.digest(FREE, isa=name)
    assert len(lacking) < len(ISAS)


# ---- torch


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint16", "int16"])
def test_tensors_of_torch_share_their_memory(pair: tuple[Any, Any], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    new, old = (torch.from_numpy(one.view(np.int16)) for one in pair)
    fresh = new.view(getattr(torch, dtype)).reshape(12, 10)
    shadow = old.clone().view(getattr(torch, dtype)).reshape(12, 10)
    delta = delta_pack(fresh, shadow)
    assert same(delta, delta_pack(pair[0], pair[1].copy()))
    assert torch.equal(shadow.view(torch.int16).view(-1), new)
    held = old.clone().view(getattr(torch, dtype))
    delta_apply(held, delta)
    assert torch.equal(held.view(torch.int16), new)
    assert digest(held) == delta.digest
    assert bits_of("held", held).bits.ctypes.data == held.data_ptr()


def test_torch_and_numpy_go_together(pair: tuple[Any, Any]) -> None:
    torch = pytest.importorskip("torch")
    shadow = pair[1].copy()
    delta_pack(torch.from_numpy(pair[0].view(np.int16)).view(torch.bfloat16), shadow)
    assert shadow.tolist() == pair[0].tolist()


def test_a_parameter_is_detached(pair: tuple[Any, Any]) -> None:
    torch = pytest.importorskip("torch")
    new = torch.nn.Parameter(torch.from_numpy(pair[0].view(np.int16)).view(torch.bfloat16).clone())
    shadow = torch.from_numpy(pair[1].view(np.int16).copy()).view(torch.bfloat16)
    weights = torch.nn.Parameter(shadow.clone())
    delta = delta_pack(new, shadow)
    delta_apply(weights, delta)
    assert weights.requires_grad
    assert weights.grad_fn is None
    assert digest(weights) == digest(new)


def test_topk_of_bfloat16(pair: tuple[Any, Any]) -> None:
    torch = pytest.importorskip("torch")
    new, old = (torch.from_numpy(one.view(np.int16).copy()).view(torch.bfloat16) for one in pair)
    shadow = old.clone()
    delta = topk_pack(new, shadow, budget=5)
    positions, values = topk_unpack(delta, old)
    assert len(positions) <= 5
    assert shadow.view(torch.int16).numpy().view(np.uint16)[positions].tolist() == values.tolist()


def test_what_torch_has_and_transfer_does_not_take() -> None:
    torch = pytest.importorskip("torch")
    here = torch.zeros(8, dtype=torch.bfloat16)
    cases = [
        (torch.zeros(8), here, "new is of float32: a tensor of torch is of bfloat16"),
        (here, here.clone().half(), "new is of bfloat16 and shadow of float16: make them equal"),
        (here[::2], here[:4].clone(), r"new is not contiguous: pass new.contiguous\(\)"),
        (here.to_sparse(), here.clone(), "new is not contiguous"),
        (here.to("meta"), here.to("meta"), "new is on meta: transfer computes on CPUs and GPUs"),
        (here, here.to("meta"), "new is on cpu and shadow on meta: move one of them"),
        (here, here, "new and shadow overlap in memory"),
    ]
    for new, shadow, says in cases:
        with pytest.raises(InvalidArgument, match=says):
            delta_pack(new, shadow)
