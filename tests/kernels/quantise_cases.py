"""What the quantising kernels are tried on; shared by the plain and the sanitised run."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.kernels.quantise_on_cpu import QuantiseOnCpu
from tests.reference import quantise as reference
from tests.reference.quantise import Bits, Codes, Scales

KINDS = ("fp8", "int8")


@dataclass(frozen=True)
class Case:
    rows: int
    cols: int
    block: tuple[int, int]
    gap: int = 0  # elements between two rows


@cache
def weights(rows: int, cols: int) -> Bits:
    """Any bits, and blocks of ordinary weights between them."""
    rng = np.random.default_rng(rows * 1000 + cols)
    values = rng.standard_normal((rows, cols)) * np.exp2(rng.integers(-100, 100, (rows, 1)))
    ordinary = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    anything = rng.integers(0, 1 << 16, (rows, cols), dtype=np.uint16)
    return np.where(rng.random((rows, 1)) < 0.5, ordinary, anything).astype(np.uint16)


@cache
def answer(case: Case, to: str) -> tuple[Codes, Scales]:
    return reference.quantise(weights(case.rows, case.cols), to=to, block=case.block)


CASES = [
    # One block: what a row leaves over of eight, and rows that end with those of a CTA or a warp.
    *(Case(3, cols, (4, 40)) for cols in (0, 1, 7, 8, 9, 16, 31, 33)),
    *(Case(rows, 8, (300, 8)) for rows in (31, 32, 33, 255, 256, 257)),
    Case(0, 8, (1, 1)),
    Case(1, 2051, (1, 4000)),
    Case(3, 20, ((1 << 63) - 1, (1 << 63) - 1)),
    # Many: blocks at the edges, rows apart by what breaks an alignment, the sizes of the defaults.
    Case(5, 7, (1, 1)),
    Case(9, 40, (2, 16), gap=8),
    Case(9, 41, (2, 13), gap=3),
    Case(11, 70, (4, 32), gap=1),
    Case(130, 264, (128, 128)),
    Case(6, 300, (1, 300), gap=4),
]


def quantise_agrees(kernels: QuantiseOnCpu, case: Case, *, by: str, blocks: int = 2) -> None:
    """The kernel's codes and scales are the reference's, to the bit, in any grid."""
    held = weights(case.rows, case.cols)
    for to in KINDS:
        codes, scales = kernels.quantise(
            held, to=to, block=case.block, by=by, gap=case.gap, blocks=blocks
        )
        want = answer(case, to)
        np.testing.assert_array_equal(codes, want[0])
        np.testing.assert_array_equal(scales.view(np.uint32), want[1].view(np.uint32))
