"""The codec for a GPU: the embedded CUDA kernels, or their Triton twins."""

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rose._core import embedded_kernels
from rose.kernels.embedded import EmbeddedCodec

if TYPE_CHECKING:  # Triton is an optional package.
    from rose.kernels.triton_codec import TritonCodec


# Kernels are loaded once and kept: loading at a launch could wait for a stream held by a closed
# gate.
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


def on_gpu_of(array: Any, like: Any, dtype: Any) -> Any:
    """Copy a NumPy array to the GPU of `like`, as signed numbers of `dtype`'s size.

    The copy is queued on the current stream from pinned memory: nothing waits, and the array may be
    freed.
    """
    signed = array.view(dtype)
    pinned = torch.empty(
        signed.shape, dtype=getattr(torch, str(signed.dtype)), pin_memory=like.is_cuda
    )
    np.copyto(pinned.numpy(), signed)
    return pinned.to(like.device, non_blocking=True)
