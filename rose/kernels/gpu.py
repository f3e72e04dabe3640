"""Copies between host and GPU, and checks of tensors, for both codecs of a GPU.

Work is queued on torch's current stream.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from rose import _core
from rose.errors import CorruptData, InvalidArgument
from rose.kernels.deltas import DeltaLike, about

MASK64: Final = (1 << 64) - 1


def on_gpu_of(like: Any, *arrays: npt.NDArray[Any]) -> list[Any]:
    """Copy rows of 4 or 8-byte numbers to the GPU of `like`, as signed numbers, with one copy.

    The copy is queued on the current stream from pinned memory: nothing waits, and the caller may
    free the arrays. Rows of 8-byte numbers must come first.
    """
    pinned = torch.empty(
        sum(one.nbytes for one in arrays) // 4, dtype=torch.int32, pin_memory=like.is_cuda
    )
    words, firsts = pinned.numpy(), [0]
    for one in arrays:
        firsts.append(firsts[-1] + one.nbytes // 4)
        np.copyto(words[firsts[-2] : firsts[-1]], one.view(np.int32))
    there = pinned.to(like.device, non_blocking=True)
    return [
        there[first:last].view(getattr(torch, f"int{8 * one.itemsize}"))
        for one, (first, last) in zip(arrays, itertools.pairwise(firsts), strict=True)
    ]


def on_host(row: Any) -> npt.NDArray[Any]:
    """Copy a row from a GPU into pinned memory. Waits for the current stream."""
    pinned = torch.empty(row.shape, dtype=row.dtype, pin_memory=row.is_cuda)
    array: npt.NDArray[Any] = pinned.copy_(row).numpy()
    return array


def pairs_of(sums: Any) -> list[tuple[int, int]]:
    """Copy digests to the host. Waits for the current stream."""
    return [(first & MASK64, second & MASK64) for first, second in sums.view(-1, 2).tolist()]


def base_digests_of(
    tensors: Sequence[Any],
    known: Sequence[tuple[int, int] | None],
    digests: Callable[[Sequence[Any]], Any],
) -> Any:
    """Return the digests of tensors, (tensors, 2) int64 on their GPU.

    Args:
        tensors: tensors of one GPU.
        known: digest of each tensor, or None.
        digests: computes the unknown digests.
    """
    if not any(known):
        return digests(tensors)
    given = np.array([one or (0, 0) for one in known], np.uint64)
    found = on_gpu_of(tensors[0], given.reshape(-1))[0].view(-1, 2)
    unknown = [at for at, one in enumerate(known) if one is None]
    if unknown:
        for at, pair in zip(unknown, digests([tensors[at] for at in unknown]), strict=True):
            found[at] = pair
    return found


def sizes_of(entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the number of payload words of each block."""
    sizes: npt.NDArray[np.int64] = (entries >> np.uint64(44)).astype(np.int64)
    return sizes


def tables_of(
    deltas: Sequence[DeltaLike], like: Any, numbers: Sequence[npt.NDArray[np.int64]] = ()
) -> list[list[Any]]:
    """Return table, offsets, `numbers` and payload of each delta, on the GPU of `like`.

    One copy sends them all.

    Raises:
        CorruptData: the block sizes of a table do not add up to the size of its payload.
    """
    offsets = []
    for delta in deltas:
        sizes = sizes_of(delta.entries)
        ends = np.cumsum(sizes)
        if len(delta.payload) != (ends[-1] if len(ends) else 0):
            _core.delta_check(delta)
        offsets.append(ends - sizes)
    entries, payloads = [one.entries for one in deltas], [one.payload for one in deltas]
    rows = on_gpu_of(like, *entries, *offsets, *numbers, *payloads)
    count = len(deltas)
    return [rows[at::count] for at in range(count)]


def check_sizes(deltas: Sequence[DeltaLike], tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse deltas for another number or width of elements.

    Raises:
        InvalidArgument: the message names the tensor.
    """
    for delta, tensor, name in zip(deltas, tensors, names, strict=True):
        if (delta.count, delta.width) != (tensor.numel(), 8 * tensor.element_size()):
            with about(name):
                raise InvalidArgument(
                    f"the delta is for {delta.count} elements of {delta.width} bits, and the "
                    f"tensor has {tensor.numel()} elements of {8 * tensor.element_size()} bits"
                )


def refuse_base(name: str, *, undo: bool) -> None:
    """Refuse weights to which a delta cannot be applied, or from which it cannot be undone.

    Raises:
        CorruptData: always.
    """
    must_be = "the result of the delta" if undo else "the base of the delta"
    with about(name):
        raise CorruptData(f"the weights are not {must_be}: nothing was changed")
