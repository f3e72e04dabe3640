"""Quantising in Triton: the codes and scales of the reference."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rose.errors import InvalidArgument
from tests.kernels import interpreter as triton
from tests.kernels.interpreter import Child
from tests.kernels.quantise_cases import CASES, KINDS, Case, answer, weights
from tests.reference import quantise as reference
from tests.reference.quantise import Bits, Block


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with triton.child(interpret=True) as running:
        yield running


def quantised(weights: Bits, *, to: str, block: Block, skip: int = 0, gap: int = 0) -> Any:
    """Quantise in the child, with `gap` elements of nobody behind each row."""
    from rose.kernels.quantise import quantise

    rows, cols = weights.shape
    spread = np.full((rows, cols + gap), 0x7F7F, np.uint16)
    spread[:, :cols] = weights
    held = triton.Guarded(spread.ravel(), skip, "bfloat16")
    codes, scales = quantise(held.tensor.view(rows, cols + gap)[:, :cols], to=to, block=block)
    assert (held.bits() == spread.ravel()).all()
    return codes.numpy(), scales.numpy()


each_kind = pytest.mark.parametrize("to", KINDS)


@each_kind
@pytest.mark.parametrize("case", CASES, ids=str)
def test_quantise_is_the_reference(child: Child, case: Case, to: str) -> None:
    held = weights(case.rows, case.cols)
    codes, scales = child.run(
        quantised, held, to=to, block=case.block, skip=case.rows % 3, gap=case.gap
    )
    want = answer(case, to)
    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(scales.view(np.uint32), want[1].view(np.uint32))


@each_kind
def test_every_bf16_has_the_code_of_the_reference(child: Child, to: str) -> None:
    held = np.arange(1 << 16, dtype=np.uint16).reshape(64, 1024)
    codes, scales = child.run(quantised, held, to=to, block=(1, 1024))
    want = reference.quantise(held, to=to, block=(1, 1024))
    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(scales, want[1])


def test_without_device_code_a_gpu_quantises_by_triton(child: Child) -> None:
    case = CASES[-2]
    held = weights(case.rows, case.cols)
    codes, scales = child.run(quantised_for_a_gpu, held, to="fp8", block=case.block)
    want = answer(case, "fp8")
    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(scales, want[1])


def quantised_for_a_gpu(weights: Bits, *, to: str, block: Block) -> Any:
    import torch

    from rose.kernels import quantiser

    quantiser.embedded_kernels = list
    codes, scales = quantiser.quantiser_of(0).quantise(
        torch.from_numpy(weights.view(np.int16)), to=to, block=block
    )
    return codes.numpy(), scales.numpy()


def of_another_kind(dtype: str, *, shape: tuple[int, ...], is_turned: bool = False) -> None:
    import torch

    from rose.kernels.quantise import quantise

    tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
    quantise(tensor.T if is_turned else tensor, to="fp8", block=(1, 1))


def test_what_is_no_matrix_of_bf16_is_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match=r"weights are torch\.float32; they must be bfloat16"):
        child.run(of_another_kind, "float32", shape=(2, 2))
    with pytest.raises(InvalidArgument, match=r"weights have the shape \(4,\); give a matrix"):
        child.run(of_another_kind, "bfloat16", shape=(4,))
    with pytest.raises(InvalidArgument, match=r"strides \(1, 3\); each row must be contiguous"):
        child.run(of_another_kind, "bfloat16", shape=(2, 3), is_turned=True)
    held = np.zeros((2, 2), np.uint16)
    with pytest.raises(InvalidArgument, match="to 'fp4': choose fp8 or int8"):
        child.run(quantised, held, to="fp4", block=(1, 1))
    with pytest.raises(InvalidArgument, match=r"block \(0, 1\): pass rows and columns"):
        child.run(quantised, held, to="fp8", block=(0, 1))
