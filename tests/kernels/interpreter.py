"""The Triton functions, run without a GPU in a process of their own.

Triton decides when it is imported whether it compiles kernels or interprets them, for the whole
process. So the tests never import it: a child does, which gets and returns NumPy arrays.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]  # uint8, uint16 or uint32: how wide the elements are
MASK64 = (1 << 64) - 1
GUARD = 8  # elements in front of and behind every array, which must stay as they are
GUARD_BITS = 0x5A5A5A5A


class Child:
    """Runs functions of this module, or of a test, in the other process."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._pool.submit(function, *args, **options).result(timeout=280)


@contextmanager
def child(*, interpret: bool) -> Iterator[Child]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, prepare, (interpret,)) as pool:
        yield Child(pool)


def prepare(interpret: bool) -> None:
    os.environ["TRITON_INTERPRET"] = "1" if interpret else "0"
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)  # fills what torch.empty() gives with the maximum
    if interpret:
        np.seterr(invalid="ignore")  # NaN and infinity are subtracted on purpose
        let_scalars_be_loop_bounds()


def let_scalars_be_loop_bounds() -> None:
    """Mend the interpreter where NumPy >= 2.4 refuses int() of an array of one element."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_mend


# ---- what runs in the child ----------------------------------------------------------------------


@dataclass
class Packed:
    entries: list[int]
    offsets: list[int]
    arena: list[int]
    words: int
    digest: tuple[int, int]
    shadow: Bits
    ages: Bits | None


def unsigned(tensor: Any, bits: int) -> list[int]:
    return [number & ((1 << bits) - 1) for number in tensor.tolist()]


class Guarded:
    """An array among others, `skip` elements after an aligned address.

    With a `shape` it is a box of that shape within a larger array.
    """

    def __init__(self, bits: Bits, skip: int = 0, *, shape: Any = None) -> None:
        import torch

        width = 8 * bits.dtype.itemsize
        self._guard = bits.dtype.type(GUARD_BITS & ((1 << width) - 1))
        sizes = shape or (len(bits),)
        room = tuple(size + 3 for size in sizes) if shape else sizes
        around = np.full(GUARD + skip + int(np.prod(room)) + GUARD, self._guard, bits.dtype)
        self._around = around
        inside = tuple(slice(1, 1 + size) if shape else slice(None) for size in sizes)
        part = slice(GUARD + skip, len(around) - GUARD)
        self._part = around[part].reshape(room)[inside]
        self._part[...] = bits.reshape(sizes)
        self.tensor = torch.from_numpy(around.view(f"int{width}"))[part].reshape(room)[inside]

    def bits(self) -> Bits:
        found = self._part.copy()
        self._part[...] = self._guard
        assert (self._around == self._guard).all(), "written outside the array"
        self._part[...] = found
        return found.reshape(-1)


Table = tuple[list[int], list[int], list[int]]


def table(entries: list[int], offsets: list[int], payload: list[int]) -> tuple[Any, Any, Any]:
    """Return what `delta_apply` takes; words that mean nothing lie around the payload."""
    import torch

    around = [0xFFFFFFFF] * GUARD
    words = np.array([*around, *payload, *around], np.uint32).view(np.int32)
    return (
        torch.from_numpy(np.array(entries, np.uint64).view(np.int64)),
        torch.tensor(offsets, dtype=torch.int64),
        torch.from_numpy(words)[GUARD : GUARD + len(payload)],
    )


def codec(group: int | None = None) -> Any:
    """Return the codec, which works on so many elements at a time."""
    from rose.kernels import block_plan, decode, triton_codec

    elements = group or block_plan.GROUP_ELEMENTS
    decode.GROUP_ELEMENTS = triton_codec.GROUP_ELEMENTS = elements
    return triton_codec.TritonCodec()


def ages_of(ages: Bits | None) -> Any:
    import torch

    return None if ages is None else torch.from_numpy(ages.view(np.int8))


def delta_pack(
    new: Bits,
    shadow: Bits,
    *,
    skip: int = 0,
    shapes: tuple[Any, Any] = (None, None),
    threshold: int | None = None,
    budget: int | None = None,
    ages: Bits | None = None,
    age_limit: int = 255,
    block_elements: int,
    group: int | None = None,
) -> Packed:
    """Pack, by threshold or by budget."""
    fresh, held = Guarded(new, skip, shape=shapes[0]), Guarded(shadow, shape=shapes[1])
    one = codec(group)
    counts = ages_of(ages)
    due = {"ages": counts, "age_limit": age_limit}
    if budget is not None:
        threshold = one.topk_threshold(fresh.tensor, held.tensor, budget=budget, **due)
    options = {"threshold": threshold, "block_elements": block_elements, **due}
    packed = one.delta_pack(fresh.tensor, held.tensor, **options)
    assert (fresh.bits() == new).all()
    return Packed(
        unsigned(packed.entries, 64),
        packed.offsets.tolist(),
        unsigned(packed.arena, 32),
        int(packed.words),
        tuple(unsigned(packed.digest, 64)),
        held.bits(),
        ages,
    )


def delta_apply(
    weights: Bits,
    entries: list[int],
    offsets: list[int],
    payload: list[int],
    *,
    skip: int = 0,
    shape: Any = None,
    group: int | None = None,
    **options: Any,
) -> Bits:
    held = Guarded(weights, skip, shape=shape)
    codec(group).delta_apply(held.tensor, *table(entries, offsets, payload), **options)
    return held.bits()


def topk_threshold(
    new: Bits, shadow: Bits, *, ages: Bits | None = None, shape: Any = None, **options: Any
) -> int:
    fresh, held = Guarded(new, shape=shape), Guarded(shadow)
    return int(codec().topk_threshold(fresh.tensor, held.tensor, ages=ages_of(ages), **options))


def topk_unpack(
    base: Bits,
    entries: list[int],
    offsets: list[int],
    payload: list[int],
    *,
    shape: Any = None,
    group: int | None = None,
    **options: Any,
) -> tuple[list[int], list[int]]:
    held = Guarded(base, shape=shape)
    delta = table(entries, offsets, payload)
    positions, values = codec(group).topk_unpack(held.tensor, *delta, **options)
    assert (held.bits() == base).all()
    return positions.tolist(), unsigned(values, 8 * base.dtype.itemsize)


def digest(bits: Bits, *, skip: int = 0, shape: Any = None, **options: Any) -> tuple[int, int]:
    return tuple(unsigned(codec().digest(Guarded(bits, skip, shape=shape).tensor, **options), 64))
