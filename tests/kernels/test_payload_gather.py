"""The payloads of packed blocks, gathered in the order of their table."""

import numpy as np
import pytest

from tests.kernels.on_cpu import KernelsOnCpu

GAP = 1
# Words of each block: none, less than a warp, a warp, more than one, and more blocks than a CTA.
SIZES = [0, 1, 31, 32, 33, 500, 0, 129, *[3] * 20]


@pytest.mark.parametrize("blocks", [1, 7, 8, 9, len(SIZES)])
def test_payloads_come_in_the_order_of_the_table(kernels: KernelsOnCpu, blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    sizes = np.array(SIZES[-blocks:], np.uint64)
    arena = rng.integers(0, 1 << 32, int(sizes.sum()) + 7, dtype=np.uint32)
    order = rng.permutation(blocks)
    offsets = np.zeros(blocks, np.uint64)
    offsets[order] = np.cumsum([3, *sizes[order][:-1]])
    entries = sizes << np.uint64(44) | np.uint64(GAP)
    expected = [
        word
        for size, offset in zip(sizes.tolist(), offsets.tolist(), strict=True)
        for word in arena[offset : offset + size].tolist()
    ]
    assert kernels.gather(entries, offsets, arena) == expected
