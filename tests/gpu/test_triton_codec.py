"""The Triton twins of the codec on a GPU, bit for bit.

Few sizes and alignments: Triton compiles each of its kernels anew for every kind of argument.
"""

import numpy as np
import pytest

from tests.gpu import codec_checks as codec
from tests.gpu.codec_checks import LARGE, SMALL
from tests.gpu.twins import TritonTwin

pytestmark = pytest.mark.gpu


@pytest.fixture
def triton(gpu: None) -> TritonTwin:
    pytest.importorskip("triton")
    return TritonTwin()


@pytest.mark.parametrize("count", [1, 33, 1000, LARGE + 7])
def test_pack_is_the_reference(triton: TritonTwin, rng: np.random.Generator, count: int) -> None:
    codec.check_pack(triton, rng, count, (LARGE,))


def test_small_blocks_are_the_reference(triton: TritonTwin, rng: np.random.Generator) -> None:
    codec.check_pack(triton, rng, SMALL + 1, (SMALL,))
    codec.check_apply(triton, rng, SMALL + 1, (SMALL,))


@pytest.mark.parametrize("count", [1, 33, 1000, LARGE + 7])
def test_apply_is_the_reference(triton: TritonTwin, rng: np.random.Generator, count: int) -> None:
    codec.check_apply(triton, rng, count, (LARGE,))


@pytest.mark.parametrize("skew_bytes", [2, 8])
def test_any_address_of_an_element_will_do(
    triton: TritonTwin, rng: np.random.Generator, skew_bytes: int
) -> None:
    codec.check_any_address(triton, rng, skew_bytes)


@pytest.mark.parametrize("share", [0.01, 0.9])
def test_millions_of_elements_pack_as_the_core_packs_them(
    triton: TritonTwin, rng: np.random.Generator, share: float
) -> None:
    codec.check_millions(triton, rng, share)


@pytest.mark.parametrize("count", [33, SMALL + 1])
def test_topk_is_the_reference(triton: TritonTwin, rng: np.random.Generator, count: int) -> None:
    codec.check_topk(triton, rng, count)


def test_millions_have_the_threshold_of_the_core(
    triton: TritonTwin, rng: np.random.Generator
) -> None:
    codec.check_threshold_of_millions(triton, rng)


@pytest.mark.parametrize("count", [1, 3, 1001, 65_537])
def test_digest_is_the_reference(triton: TritonTwin, rng: np.random.Generator, count: int) -> None:
    codec.check_digest(triton, rng, count)


def test_the_digest_of_parts_adds_up(triton: TritonTwin, rng: np.random.Generator) -> None:
    codec.check_digest_of_parts(triton, rng)
