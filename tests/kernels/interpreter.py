"""The Triton codec without a GPU, interpreted in a process of its own.

Triton decides when it is imported whether it compiles kernels or interprets them, for the whole
process. So the tests never import it: a child process does, which takes and returns NumPy arrays.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.codec_twins import CodecTwin
from tests.reference.delta import Delta

Bits = npt.NDArray[Any]  # uint8, uint16 or uint32: how wide the elements are
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


def laid(bits: Bits) -> Guarded:
    """Lay an array for the codec: a row at an odd address, or a box in a larger array."""
    return Guarded(bits, 1) if bits.ndim == 1 else Guarded(bits, shape=bits.shape)


def call(name: str, *arrays: Any, **options: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """Call a method of the twin; return its answer, the arrays, and the ages after the call."""
    from rose.kernels.triton_codec import TritonCodec

    twin = CodecTwin(TritonCodec(), laid)
    answer = getattr(twin, name)(*arrays, **options)
    return answer, arrays, options.get("ages")


def digest(bits: Bits, **options: Any) -> tuple[int, int]:
    """Digest a part of a tensor."""
    from rose.kernels.digest import digest
    from rose.kernels.gpu import pairs_of

    return pairs_of(digest(laid(bits).tensor, **options))[0]


def applied(
    weights: Bits, entries: list[int], offsets: list[int], payload: list[int], **options: Any
) -> Bits:
    """Apply a delta by its parts; words without meaning lie around the payload."""
    import torch

    from rose.kernels.delta_apply import delta_apply

    held, around = laid(weights), [0xFFFFFFFF] * GUARD
    words = np.array([*around, *payload, *around], np.uint32).view(np.int32)
    delta_apply(
        held.tensor,
        torch.from_numpy(np.array(entries, np.uint64).view(np.int64)),
        torch.tensor(offsets, dtype=torch.int64),
        torch.from_numpy(words)[GUARD : GUARD + len(payload)],
        undo=False,
        **options,
    )
    return held.bits()


def set_part_elements(elements: int) -> int:
    """Set the number of elements that are processed at a time, and return the old number."""
    from rose.kernels import tile

    old, tile.PART_ELEMENTS = tile.PART_ELEMENTS, elements
    return old


# ---- the twin -----------------------------------------------------------------------------------


class TritonTwin:
    """The Triton codec of the other process."""

    is_whole = True
    place = (0, 0)

    def __init__(self, child: Child) -> None:
        self.child = child

    def _call(self, name: str, *arrays: Any, **options: Any) -> Any:
        answer, after, ages = self.child.run(call, name, *arrays, **options)
        for mine, changed in zip(arrays, after, strict=True):
            if isinstance(mine, np.ndarray) and mine.flags.writeable:
                mine[...] = changed
        if ages is not None:
            options["ages"].counts[...] = ages.counts
        return answer

    def pack(self, new: Bits, shadow: Bits, **options: Any) -> Any:
        return self._call("pack", new, shadow, **options)

    def apply(self, delta: Delta, weights: Bits, **options: Any) -> Any:
        return self._call("apply", delta, weights, **options)

    def unpack(self, delta: Delta, base: Bits) -> Any:
        return self._call("unpack", delta, base)

    def threshold(self, new: Bits, shadow: Bits, **options: Any) -> Any:
        return self._call("threshold", new, shadow, **options)

    def digest(self, bits: Bits, **options: Any) -> Any:
        return self.child.run(digest, bits, **options) if options else self._call("digest", bits)
