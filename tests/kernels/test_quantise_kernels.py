"""The quantising kernels give the reference's bits, in every order of their threads."""

from pathlib import Path

import numpy as np
import pytest

from tests.kernels.on_cpu import Order
from tests.kernels.quantise_cases import CASES, KINDS, Case, quantise_agrees
from tests.kernels.quantise_on_cpu import QuantiseOnCpu
from tests.reference import quantise as reference


@pytest.fixture(params=Order, ids=lambda order: order.name.lower())
def kernels(request: pytest.FixtureRequest, library: Path) -> QuantiseOnCpu:
    """Run in one order; the matrices are aligned to 16 bytes in the first one only."""
    order: Order = request.param
    return QuantiseOnCpu(library, order=order, shift=2 * order.value)


each_way = pytest.mark.parametrize("by", ["cta", "warp"])


@each_way
@pytest.mark.parametrize("case", CASES, ids=str)
def test_quantise_is_the_reference(kernels: QuantiseOnCpu, case: Case, by: str) -> None:
    quantise_agrees(kernels, case, by=by)


@each_way
@pytest.mark.parametrize("blocks", [1, 5, 40])
def test_quantise_is_that_of_any_grid(kernels: QuantiseOnCpu, by: str, blocks: int) -> None:
    quantise_agrees(kernels, Case(9, 41, (2, 13), gap=3), by=by, blocks=blocks)


@each_way
@pytest.mark.parametrize("to", KINDS)
def test_every_bf16_has_the_code_of_the_reference(library: Path, to: str, by: str) -> None:
    kernels = QuantiseOnCpu(library, order=Order.FORWARD)
    weights = np.arange(1 << 16, dtype=np.uint16).reshape(64, 1024)
    # Rows of subnormals have scales of few bits; those of the largest numbers hold all that is
    # not finite.
    codes, scales = kernels.quantise(weights, to=to, block=(1, 1024), by=by)
    want = reference.quantise(weights, to=to, block=(1, 1024))
    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(scales, want[1])


@each_way
def test_any_address_of_an_element_will_do(library: Path, by: str) -> None:
    for shift in (4, 6, 8, 14):
        kernels = QuantiseOnCpu(library, order=Order.SHUFFLED, shift=shift)
        quantise_agrees(kernels, Case(9, 40, (2, 16), gap=8), by=by)


def test_guards_see_codes_that_are_written_outside(library: Path) -> None:
    kernels = QuantiseOnCpu(library, order=Order.FORWARD)
    weights = np.zeros((4, 16), np.uint16)
    with pytest.raises(AssertionError, match="outside its memory"):
        kernels.quantise(weights, to="int8", block=(8, 16), lie_rows=1)
