"""Digests in Triton: the sums of the reference, however a tensor is split."""

import numpy as np
import pytest

from tests.kernels import interpreter as triton
from tests.kernels.interpreter import MASK64, Bits, Child
from tests.reference import delta as reference


def random_bits(count: int, *, width: int = 16) -> Bits:
    rng = np.random.default_rng(count)
    return rng.integers(0, 1 << width, count, dtype=np.dtype(f"u{width // 8}"))


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1023, 1024, 1025, 5003])
def test_the_sums_are_those_of_the_reference(child: Child, count: int, width: int) -> None:
    bits = random_bits(count, width=width)
    assert child.run(triton.digest, bits) == reference.digest(bits)
    assert child.run(triton.digest, bits, skip=1) == reference.digest(bits)


@pytest.mark.parametrize("seed", [1, -1, 1 << 31, 1 << 63, MASK64])
@pytest.mark.parametrize("first_index", [0, 4, 1 << 33])
def test_index_and_seed_are_those_of_the_reference(
    child: Child, first_index: int, seed: int
) -> None:
    bits = random_bits(1030)
    want = reference.digest(bits, first_index=first_index, seed=seed)
    assert child.run(triton.digest, bits, first_index=first_index, seed=seed) == want


@pytest.mark.parametrize("split", [4, 1020, 1024, 2000])
def test_the_digest_of_a_tensor_is_the_sum_of_its_parts(child: Child, split: int) -> None:
    bits = random_bits(2050)
    parts = [
        child.run(triton.digest, bits[:split], seed=7),
        child.run(triton.digest, bits[split:], seed=7, first_index=split),
    ]
    total = tuple(sum(sums) & MASK64 for sums in zip(*parts, strict=True))
    assert total == child.run(triton.digest, bits, seed=7) == reference.digest(bits, seed=7)


@pytest.mark.parametrize("width", [8, 16, 32])
def test_a_box_has_the_digest_of_its_elements_in_row_major_order(child: Child, width: int) -> None:
    bits = random_bits(5 * 7 * 11 * 13, width=width)
    got = child.run(triton.digest, bits, shape=(5, 7, 11, 13), first_index=8, seed=3)
    assert got == reference.digest(bits, first_index=8, seed=3)
