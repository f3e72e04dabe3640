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

Bits = npt.NDArray[np.uint16]
MASK64 = (1 << 64) - 1
GUARD = 8  # elements in front of and behind every array, which must stay as they are
GUARD_BITS = 0x5A5A


class Child:
    """Runs functions of this module, or of a test, in the other process."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._pool.submit(function, *args, **options).result(timeout=110)


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


@dataclass
class Unpacked:
    positions: list[int]
    values: list[int]
    count: int
    error: int


def unsigned(tensor: Any, bits: int) -> list[int]:
    return [number & ((1 << bits) - 1) for number in tensor.tolist()]


class Guarded:
    """An array among others, `skip` elements after an aligned address."""

    def __init__(self, bits: Bits, skip: int = 0, dtype: str = "int16") -> None:
        import torch

        self._around = np.full(len(bits) + 2 * GUARD + skip, GUARD_BITS, np.uint16)
        self._part = slice(GUARD + skip, GUARD + skip + len(bits))
        self._around[self._part] = bits
        whole = torch.from_numpy(self._around.view(np.int16)).view(getattr(torch, dtype))
        self.tensor = whole[self._part]

    def bits(self) -> Bits:
        guards = np.delete(self._around, self._part)
        assert (guards == GUARD_BITS).all(), "written outside the array"
        return self._around[self._part].copy()


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
    dtype: str = "int16",
    threshold: int | None = None,
    budget: int | None = None,
    **options: Any,
) -> Packed:
    """Pack, by threshold or with `topk_pack` by budget, and put the blocks into their order."""
    from rose.kernels.delta_pack import delta_pack, gather
    from rose.kernels.topk_pack import topk_pack

    fresh, held = Guarded(new, skip[0], dtype), Guarded(shadow, skip[1], dtype)
    if budget is None:
        packed = delta_pack(fresh.tensor, held.tensor, threshold=scalar(threshold), **options)
    else:
        packed = topk_pack(fresh.tensor, held.tensor, budget=budget, **options)
    gathered = gather(packed)
    assert (fresh.bits() == new).all()
    assert gathered.digest is packed.digest
    return Packed(
        unsigned(gathered.entries, 64),
        gathered.offsets.tolist(),
        unsigned(gathered.arena, 32)[: int(gathered.words)],
        int(packed.words),
        tuple(unsigned(packed.digest, 64)),
        held.bits(),
    )


def gather(entries: list[int], offsets: list[int], arena: list[int]) -> tuple[list[int], list[int]]:
    """Return offsets and payload of blocks that lie in any order."""
    import torch

    from rose.kernels.blocks import PackedBlocks
    from rose.kernels.delta_pack import gather

    words, digest = torch.zeros((), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    gathered = gather(PackedBlocks(*table(entries, offsets, arena), words, digest))
    return gathered.offsets.tolist(), unsigned(gathered.arena, 32)[: int(gathered.words)]


def delta_apply(
    weights: Bits,
    entries: list[int],
    offsets: list[int],
    payload: list[int],
    *,
    skip: int = 0,
    dtype: str = "int16",
    programs: int = 1024,
    around: list[int] | None = None,
    **options: Any,
) -> tuple[int, Bits]:
    from rose.kernels import block_changes
    from rose.kernels.delta_apply import delta_apply

    block_changes.PROGRAMS = programs
    held = Guarded(weights, skip, dtype)
    delta = table(entries, offsets, payload, around=around)
    errors = delta_apply(held.tensor, *delta, **options)
    return int(errors), held.bits()


def topk_threshold(new: Bits, shadow: Bits, *, budget: int) -> int:
    from rose.kernels.topk_pack import topk_threshold

    return int(topk_threshold(Guarded(new).tensor, Guarded(shadow).tensor, budget=budget))


def topk_unpack(
    base: Bits, entries: list[int], offsets: list[int], payload: list[int], **options: Any
) -> Unpacked:
    from rose.kernels.topk_unpack import topk_unpack

    held = Guarded(base)
    found = topk_unpack(held.tensor, *table(entries, offsets, payload), **options)
    assert (held.bits() == base).all()
    return Unpacked(
        found.positions.tolist(), unsigned(found.values, 16), int(found.count), int(found.errors)
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


def digest(bits: Bits, *, skip: int = 0, **options: Any) -> tuple[int, int]:
    from rose.kernels.digest import digest

    return tuple(unsigned(digest(Guarded(bits, skip).tensor, **options), 64))
