"""The codec for a GPU: the embedded CUDA kernels, or their Triton twins."""

import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from rose._core import embedded_kernels
from rose.kernels.embedded import EmbeddedCodec

if TYPE_CHECKING:  # Triton is an optional package.
    from rose.kernels.triton_codec import TritonCodec


# Kernels are loaded once and kept, because loading a kernel at its launch could wait for a stream
# that a closed gate holds.
@functools.cache
def codec_of(ordinal: int) -> "EmbeddedCodec | TritonCodec":
    """Return the codec for GPU `ordinal` of torch.

    Raises:
        Unavailable: the driver or the device refuses the embedded kernels.
        ImportError: there are no embedded kernels, and Triton is not installed.
    """
    if embedded_kernels() and torch.version.hip is None:
        return EmbeddedCodec(ordinal)
    from rose.kernels.triton_codec import TritonCodec  # noqa: PLC0415

    return TritonCodec()


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
