"""The embedded CUDA kernel that quantises on a GPU, on torch tensors."""

import functools
from typing import Any

import torch

from rose._core import CudaDevice, DeviceQuantiser
from rose.kernels.scale_blocks import scale_blocks


class EmbeddedQuantiser:
    """The loaded kernel of one GPU. Any thread may call a method."""

    def __init__(self, ordinal: int) -> None:
        """Load the kernel on GPU `ordinal`.

        Raises:
            Unavailable: no driver, or a build without device code.
        """
        self._quantiser = DeviceQuantiser.create(CudaDevice.open(ordinal))

    def quantise(self, weights: Any, *, to: str, block: tuple[int, int]) -> tuple[Any, Any]:
        """Queue the work on torch's current stream, and return codes and scales without waiting.

        Args:
            weights: (rows, cols) bf16 on the GPU, or their bits as 16-bit integers.
            to: "fp8" or "int8".
            block: rows and columns of a scale block.

        Returns:
            (rows, cols) uint8 codes, and float32 scales, one per scale block.

        Raises:
            InvalidArgument: `scale_blocks` refuses an argument.
        """
        cut = scale_blocks(weights, to=to, block=block)
        rows, cols = weights.shape
        self._quantiser.quantise(
            bits=cut.bits.data_ptr(),
            rows=rows,
            cols=cols,
            row_stride=cut.row_stride,
            to=to,
            block_rows=cut.block_rows,
            block_cols=cut.block_cols,
            codes=cut.codes.data_ptr(),
            scales=cut.scales.data_ptr(),
            stream=int(torch.cuda.current_stream(weights.device).cuda_stream),
        )
        return cut.codes, cut.scales


# Kernels are loaded once and kept, because loading one at its launch could wait for a stream that a
# closed gate holds.
@functools.cache
def quantiser_of(ordinal: int) -> EmbeddedQuantiser:
    """Return the quantiser of GPU `ordinal` of torch.

    Raises:
        Unavailable: no driver, or a build without device code.
    """
    return EmbeddedQuantiser(ordinal)
