"""Which code quantises on a GPU: the embedded CUDA kernel, or its Triton twin."""

import functools
from typing import Any, Protocol

import torch

from rose._core import CudaDevice, DeviceQuantiser, embedded_kernels
from rose.kernels.scale_blocks import scale_blocks


class Quantiser(Protocol):
    """Quantises tensors of one GPU; see `rose.kernels.quantise`."""

    def quantise(self, weights: Any, *, to: str, block: tuple[int, int]) -> tuple[Any, Any]:
        """Return codes and scales, which nothing waited for."""
        ...


class EmbeddedQuantiser:
    """The kernel of one GPU, loaded; any thread."""

    def __init__(self, ordinal: int) -> None:
        """Load the kernel on GPU `ordinal`.

        Raises:
            Unavailable: no driver, or a build without device code.
        """
        self._quantiser = DeviceQuantiser.create(CudaDevice.open(ordinal))

    def quantise(self, weights: Any, *, to: str, block: tuple[int, int]) -> tuple[Any, Any]:
        """As `rose.kernels.quantise.quantise`, on torch's current stream."""
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


class TritonQuantiser:
    """The Triton twin, for any GPU that Triton compiles for."""

    def __init__(self) -> None:
        """Import Triton.

        Raises:
            ImportError: there is none.
        """
        # Here, because Triton is an optional package.
        from rose.kernels.quantise import quantise  # noqa: PLC0415

        self._quantise = quantise

    def quantise(self, weights: Any, *, to: str, block: tuple[int, int]) -> tuple[Any, Any]:
        """As `rose.kernels.quantise.quantise`."""
        return self._quantise(weights, to=to, block=block)


# Kernels are loaded once and stay: to load them at a launch could wait for a stream that a closed
# gate holds.
@functools.cache
def quantiser_of(ordinal: int) -> Quantiser:
    """Return what quantises on GPU `ordinal` of torch.

    Raises:
        Unavailable: the driver or the device refuses the embedded kernel.
        ImportError: there is none, and no Triton either.
    """
    if embedded_kernels() and torch.version.hip is None:
        return EmbeddedQuantiser(ordinal)
    return TritonQuantiser()
