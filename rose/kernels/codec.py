"""The codec for a GPU: the embedded CUDA kernels, or their Triton twins."""

import functools
from typing import TYPE_CHECKING

import torch

from rose._core import embedded_kernels
from rose.kernels.embedded import EmbeddedCodec

if TYPE_CHECKING:  # Triton is an optional package.
    from rose.kernels.triton_codec import TritonCodec


# Kernels are loaded once and kept, because loading a kernel at its launch could wait for a stream
# that a closed gate holds.
@functools.cache
def gpu_codec(ordinal: int) -> "EmbeddedCodec | TritonCodec":
    """Return the codec for GPU `ordinal` of torch.

    Raises:
        Unavailable: the driver or the device refuses the embedded kernels.
        ImportError: there are no embedded kernels, and Triton is not installed.
    """
    if embedded_kernels() and torch.version.hip is None:
        return EmbeddedCodec(ordinal)
    from rose.kernels.triton_codec import TritonCodec  # noqa: PLC0415

    return TritonCodec()
