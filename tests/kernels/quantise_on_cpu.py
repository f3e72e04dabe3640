"""The quantising kernels as a function on arrays, beside those of `on_cpu.py`."""

import numpy as np
import numpy.typing as npt

from tests.kernels.on_cpu import Buffer, KernelsOnCpu, params
from tests.reference.quantise import Bits, Codes, Scales

QuantiseParams = params("bits rows cols row_stride block_rows block_cols codes scales kind")


class QuantiseOnCpu(KernelsOnCpu):
    """Both kernels, run in one order of their threads."""

    def _room(self, count: int, dtype: npt.DTypeLike, *, shift: int = 0) -> Buffer:
        buffer = Buffer(count * np.dtype(dtype).itemsize, guard=self._guard, shift=shift)
        self._buffers.append(buffer)
        return buffer

    def quantise(
        self,
        weights: Bits,
        *,
        to: str,
        block: tuple[int, int],
        by: str = "cta",
        gap: int = 0,
        blocks: int = 2,
        lie_rows: int = 0,
    ) -> tuple[Codes, Scales]:
        """Quantise, with `gap` elements of nobody behind each row; the lie is a higher matrix."""
        rows, cols = weights.shape
        across = -(-cols // block[1])
        down = -(-rows // block[0])
        spread = np.full((rows, cols + gap), 0x7F7F, np.uint16)
        spread[:, :cols] = weights
        row = spread.ravel()[: max(0, spread.size - gap)]
        held = self._room(len(row), np.uint16, shift=self._shift)
        held.view(np.uint16)[:] = row
        codes = self._room(rows * cols, np.uint8, shift=self._shift)
        scales = self._room(down * across, np.float32)
        values = QuantiseParams(
            bits=held.address,
            rows=rows + lie_rows,
            cols=cols,
            row_stride=cols + gap,
            block_rows=block[0],
            block_cols=block[1],
            codes=codes.address,
            scales=scales.address,
            kind=("fp8", "int8").index(to),
        )
        self.launch(f"quantise_{by}", values, blocks=blocks, threads=256)
        assert (held.view(np.uint16) == row).all(), "the weights are only read"
        return (
            codes.view(np.uint8).reshape(rows, cols).copy(),
            scales.view(np.float32).reshape(down, across).copy(),
        )
