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


@dataclass
class Unpacked:
    positions: list[int]
    values: list[int]
    count: int
    error: int


def unsigned(tensor: Any, bits: int) -> list[int]:
    return [number & ((1 << bits) - 1) for number in tensor.tolist()]


class Guarded:
    """An array among others, `skip` elements after an aligned address.

    With a `shape` it is a box of that shape within a larger array.
    """

    def __init__(
        self, bits: Bits, skip: int = 0, dtype: str | None = None, *, shape: Any = None
    ) -> None:
        import torch

        width = 8 * bits.dtype.itemsize
        self._guard = bits.dtype.type(GUARD_BITS & ((1 << width) - 1))
        sizes = shape or (len(bits),)
        room = tuple(size + 3 for size in sizes) if shape else sizes
        around = np.full(GUARD + skip + int(np.prod(room)) + GUARD, self._guard, bits.dtype)
        self._around = around
        end = len(around) - GUARD
        inside = tuple(slice(1, 1 + size) if shape else slice(None) for size in sizes)
        self._part = around[GUARD + skip : end].reshape(room)[inside]
        self._part[...] = bits.reshape(sizes)
        whole = torch.from_numpy(around.view(f"int{width}"))
        flat = whole.view(getattr(torch, dtype or f"int{width}"))[GUARD + skip : end]
        self.tensor = flat.reshape(room)[inside]

    def bits(self) -> Bits:
        found = self._part.copy()
        self._part[...] = self._guard
        assert (self._around == self._guard).all(), "written outside the array"
        self._part[...] = found
        return found.reshape(-1)


def ages_of(ages: Bits | None) -> Any:
    import torch

    return None if ages is None else torch.from_numpy(ages)


def scalar(value: int | None) -> Any:
    import torch

    return None if value is None else torch.tensor(value, dtype=torch.int32)


def table(
    entries: list[int], offsets: list[int], payload: list[int], *, around: list[int] | None = None
) -> tuple[Any, Any, Any]:
    """Return what `delta_apply` takes; `around` lies in front of the payload and behind it."""
    import torch

    around = around or [0xFFFFFFFF] * GUARD
    words = np.array([*around, *payload, *around], np.uint32).view(np.int32)
    return (
        torch.from_numpy(np.array(entries, np.uint64).view(np.int64)),
        torch.tensor(offsets, dtype=torch.int64),
        torch.from_numpy(words)[len(around) : len(around) + len(payload)],
    )


def delta_pack(
    new: Bits,
    shadow: Bits,
    *,
    skip: tuple[int, int] = (0, 0),
    dtype: str | None = None,
    shapes: tuple[Any, Any] = (None, None),
    threshold: int | None = None,
    budget: int | None = None,
    ages: Bits | None = None,
    **options: Any,
) -> Packed:
    """Pack, by threshold or by budget, and put the blocks into their order."""
    from rose.kernels.delta_pack import delta_pack
    from rose.kernels.topk_pack import topk_threshold

    fresh = Guarded(new, skip[0], dtype, shape=shapes[0])
    held = Guarded(shadow, skip[1], dtype, shape=shapes[1])
    counts = ages_of(ages)
    least = scalar(threshold)
    if budget is not None:
        due = {"ages": counts, "age_limit": options.get("age_limit", 255)}
        least = topk_threshold(fresh.tensor, held.tensor, budget=budget, **due)
    packed = delta_pack(fresh.tensor, held.tensor, threshold=least, ages=counts, **options)
    offsets, payload = ordered(packed)
    assert (fresh.bits() == new).all()
    return Packed(
        unsigned(packed.entries, 64),
        offsets,
        payload,
        int(packed.words),
        tuple(unsigned(packed.digest, 64)),
        held.bits(),
        None if ages is None else counts.numpy(),
    )


def ordered(packed: Any) -> tuple[list[int], list[int]]:
    """Return offsets and payload in the order of the table."""
    sizes = [entry >> 44 for entry in unsigned(packed.entries, 64)]
    arena = unsigned(packed.arena, 32)
    places = zip(packed.offsets.tolist(), sizes, strict=True)
    payload = [word for at, size in places for word in arena[at : at + size]]
    return [sum(sizes[:block]) for block in range(len(sizes))], payload


def delta_apply(
    weights: Bits,
    entries: list[int],
    offsets: list[int],
    payload: list[int],
    *,
    skip: int = 0,
    dtype: str | None = None,
    shape: Any = None,
    programs: int = 1024,
    around: list[int] | None = None,
    **options: Any,
) -> tuple[int, Bits]:
    from rose.kernels import block_changes
    from rose.kernels.delta_apply import delta_apply

    block_changes.PROGRAMS = programs
    held = Guarded(weights, skip, dtype, shape=shape)
    delta = table(entries, offsets, payload, around=around)
    errors = delta_apply(held.tensor, *delta, **options)
    return int(errors), held.bits()


Table = tuple[list[int], list[int], list[int]]


def topk_threshold(
    new: Bits, shadow: Bits, *, ages: Bits | None = None, shape: Any = None, **options: Any
) -> int:
    from rose.kernels.topk_pack import topk_threshold

    fresh, held = Guarded(new, shape=shape), Guarded(shadow)
    return int(topk_threshold(fresh.tensor, held.tensor, ages=ages_of(ages), **options))


def topk_unpack(
    base: Bits,
    entries: list[int],
    offsets: list[int],
    payload: list[int],
    *,
    shape: Any = None,
    **options: Any,
) -> Unpacked:
    from rose.kernels.topk_unpack import topk_unpack

    held = Guarded(base, shape=shape)
    found = topk_unpack(held.tensor, *table(entries, offsets, payload), **options)
    assert (held.bits() == base).all()
    return Unpacked(
        found.positions.tolist(),
        unsigned(found.values, 8 * base.dtype.itemsize),
        int(found.count),
        int(found.errors),
    )


def listed_in_a_part(
    base: Bits,
    entries: list[int],
    offsets: list[int],
    payload: list[int],
    *,
    capacity: int,
    **options: Any,
) -> tuple[list[int], list[int]]:
    """Return what lies behind lists of `capacity` once changes were listed there."""
    import torch

    from rose.kernels.block_changes import Lists, change_blocks

    positions = torch.full((len(base),), -1, dtype=torch.int64)
    values = torch.full((len(base),), -1, dtype=torch.int16)
    lists = Lists(torch.zeros(1, dtype=torch.int64), positions[:capacity], values[:capacity])
    delta = table(entries, offsets, payload)
    assert int(change_blocks(Guarded(base).tensor, *delta, to=lists, **options)) == -1
    return positions[capacity:].tolist(), values[capacity:].tolist()


def digest(bits: Bits, *, skip: int = 0, shape: Any = None, **options: Any) -> tuple[int, int]:
    from rose.kernels.digest import digest

    return tuple(unsigned(digest(Guarded(bits, skip, shape=shape).tensor, **options), 64))
