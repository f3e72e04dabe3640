"""Quantising on a GPU: the embedded kernel and its Triton twin give the reference's bits."""

from typing import Any

import numpy as np
import pytest

from rose import _core
from tests.gpu.memory import Memory
from tests.reference import quantise as reference
from tests.reference.quantise import Bits, Block, Codes, Scales

pytestmark = pytest.mark.gpu

each_kind = pytest.mark.parametrize("to", ["fp8", "int8"])
# Blocks for a CTA and for a warp, some of them cut off by an edge; rows that begin anywhere.
SHAPES = [
    ((1, 1), (1, 1)),
    ((33, 65), (128, 128)),
    ((129, 260), (128, 128)),
    ((257, 1000), (7, 33)),
    ((9, 5001), (1, 5001)),
    ((64, 4096), (1, 32)),
]


def quantised_by_cuda(
    device: Any, weights: Bits, *, to: str, block: Block, gap: int = 0, skew_bytes: int = 0
) -> tuple[Codes, Scales]:
    """Quantise by the embedded kernel; memory without a framework, guarded on both sides."""
    memory, stream = Memory(), _core.CudaStream.create(device, highest=False)
    rows, cols = weights.shape
    spread = np.full((rows, cols + gap), 0x7F7F, np.uint16)
    spread[:, :cols] = weights
    row = spread.ravel()[: spread.size - gap]
    shape = -(-rows // block[0]), -(-cols // block[1])
    held = memory.uploaded(row, skew_bytes=skew_bytes)
    codes = memory.buffer(rows * cols, skew_bytes=skew_bytes)
    scales = memory.buffer(4 * shape[0] * shape[1])
    memory.synchronize()
    _core.DeviceQuantiser.create(device).quantise(
        bits=held.address,
        rows=rows,
        cols=cols,
        row_stride=cols + gap,
        to=to,
        block_rows=block[0],
        block_cols=block[1],
        codes=codes.address,
        scales=scales.address,
        stream=stream.handle,
    )
    stream.wait(timeout_ms=20_000)
    assert (held.read(np.uint16) == row).all(), "the weights are only read"
    return codes.read(np.uint8).reshape(rows, cols), scales.read(np.float32).reshape(shape)


def some_weights(rng: np.random.Generator, shape: tuple[int, int]) -> Bits:
    """Any bits, with rows of ordinary weights of any size between them."""
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-140, 120, (shape[0], 1)))
    ordinary = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    anything = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    return np.where(rng.random((shape[0], 1)) < 0.5, ordinary, anything).astype(np.uint16)


def check_same(made: tuple[Codes, Scales], want: tuple[Codes, Scales]) -> None:
    np.testing.assert_array_equal(made[0], want[0])
    np.testing.assert_array_equal(made[1].view(np.uint32), want[1].view(np.uint32))


@each_kind
@pytest.mark.parametrize(("shape", "block"), SHAPES)
def test_the_kernel_is_the_reference(
    device: Any, rng: np.random.Generator, shape: tuple[int, int], block: Block, to: str
) -> None:
    weights = some_weights(rng, shape)
    want = reference.quantise(weights, to=to, block=block)
    check_same(quantised_by_cuda(device, weights, to=to, block=block), want)
    check_same(quantised_by_cuda(device, weights, to=to, block=block, gap=3, skew_bytes=6), want)


@each_kind
def test_every_bf16_over_every_kind_of_scale(device: Any, gpu: None, to: str) -> None:
    """Quotients of all weights by subnormal, ordinary and the largest scales, on the device."""
    weights = np.arange(1 << 16, dtype=np.uint16).reshape(64, 1024)
    for block in ((1, 1024), (64, 1024)):
        want = reference.quantise(weights, to=to, block=block)
        check_same(quantised_by_cuda(device, weights, to=to, block=block), want)


def test_millions_are_quantised_as_the_core_does(device: Any, rng: np.random.Generator) -> None:
    weights = some_weights(rng, (4096, 4096 + 8))
    for to, block in (("fp8", (128, 128)), ("int8", (1, 4104)), ("fp8", (1, 128))):
        sizes = {"block_rows": block[0], "block_cols": block[1]}
        want = _core.quantise(weights, to=to, **sizes)
        check_same(quantised_by_cuda(device, weights, to=to, block=block), want)


def test_tensors_of_a_gpu_are_quantised_where_they_are(gpu: None, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    from rose.transfer.codec.quantise import quantise

    weights = some_weights(rng, (300, 513))
    tensor = torch.from_numpy(weights.view(np.int16)).cuda().view(torch.bfloat16)
    part = quantise(tensor[3:, 1:], to="fp8")
    assert part.codes.is_cuda
    want = reference.quantise(weights[3:, 1:], to="fp8", block=(128, 128))
    check_same((part.codes.cpu().numpy(), part.scales.cpu().numpy()), want)
