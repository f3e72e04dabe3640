"""Quantised weights as values: arrays of either kind, in and out, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rose import _core
from rose.errors import InvalidArgument
from rose.transfer.codec.quantise import Quantised, dequantise, quantise
from tests.reference import quantise as reference

WEIGHTS = np.random.default_rng(2).integers(0, 0x4000, (130, 200), dtype=np.uint16)


def tensor_of(weights: Any = WEIGHTS) -> Any:
    return torch.from_numpy(weights.view(np.int16)).view(torch.bfloat16)


def test_blocks_are_128_by_128_for_fp8_and_a_row_for_int8() -> None:
    fp8, int8 = quantise(WEIGHTS, to="fp8"), quantise(WEIGHTS, to="int8")
    assert (fp8.block, fp8.scales.shape) == ((128, 128), (2, 2))
    assert (int8.block, int8.scales.shape) == ((1, 200), (130, 1))
    nothing = quantise(np.zeros((3, 0), np.uint16), to="int8")
    assert (nothing.block, nothing.scales.shape) == ((1, 1), (3, 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int16, torch.uint16])
def test_tensors_of_torch_give_tensors_of_torch(dtype: Any) -> None:
    weights = tensor_of()
    whole = quantise(weights.view(dtype), to="fp8")
    want = reference.quantise(WEIGHTS, to="fp8", block=(128, 128))
    assert whole.codes.dtype == torch.uint8
    np.testing.assert_array_equal(whole.codes.numpy(), want[0])
    np.testing.assert_array_equal(whole.scales.numpy(), want[1])
    back = dequantise(whole)
    assert back.dtype == torch.bfloat16
    values = whole.codes.view(torch.float8_e4m3fn).float()
    scales = torch.from_numpy(np.kron(want[1], np.ones((128, 128), np.float32))[:130, :200])
    assert torch.equal(back, (values * scales).to(torch.bfloat16))


def test_a_part_of_a_tensor_and_one_with_a_gradient_need_no_copy() -> None:
    weights = tensor_of().clone().requires_grad_(True)
    part = quantise(weights[3:120, 5:77], to="int8")
    want = reference.quantise(WEIGHTS[3:120, 5:77], to="int8", block=(1, 72))
    np.testing.assert_array_equal(part.codes.numpy(), want[0])
    np.testing.assert_array_equal(quantise(WEIGHTS[3:120, 5:77], to="int8").codes, want[0])


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([1, 2], "weights are a list: pass an array of NumPy or a tensor of torch"),
        (np.zeros((2, 2), np.float16), "weights are of float16: pass bfloat16 of torch, or its"),
        (np.zeros((2, 2), np.int16), "weights are of int16: pass bfloat16"),
        (torch.zeros(2, 2), "weights are of float32: pass bfloat16"),
        (np.zeros(4, np.uint16), r"weights have the shape \(4,\): pass a matrix"),
        (np.zeros((1, 2, 2), np.uint16), r"weights have the shape \(1, 2, 2\): pass a matrix"),
        (torch.zeros(2, 2, dtype=torch.bfloat16).to_sparse(), "weights are torch.sparse_coo"),
        (torch.zeros(2, 2, dtype=torch.bfloat16, device="meta"), "weights are on meta: transfer"),
        (WEIGHTS.T, "weights have strides of 2 and 400 bytes; each row must be contiguous"),
        (WEIGHTS[::-1], "weights have strides of -400 and 2 bytes"),
        (np.lib.stride_tricks.as_strided(WEIGHTS, (3, 4), (2, 2)), "rows of 4 weights are 1 apart"),
    ],
    ids=range(11),
)
def test_what_is_no_matrix_of_bf16_is_refused(weights: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        quantise(weights, to="fp8")


@pytest.mark.parametrize("block", [(0, 1), (1, 0), (-1, 4), (1 << 63, 1), (1, 2, 3)])
def test_a_block_of_nothing_is_refused(block: Any) -> None:
    with pytest.raises(InvalidArgument, match="pass rows and columns, each at least 1"):
        quantise(WEIGHTS, to="fp8", block=block)


def test_another_kind_of_code_or_instruction_set_is_refused(monkeypatch: Any) -> None:
    with pytest.raises(InvalidArgument, match="to 'fp4': choose fp8 or int8"):
        quantise(WEIGHTS, to="fp4")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="to 'fp4': choose fp8 or int8"):
        _core.quantise(WEIGHTS, to="fp4", block_rows=1, block_cols=1)
    with pytest.raises(InvalidArgument, match="a scale block of 0 x 1 weights; give at least"):
        _core.quantise(WEIGHTS, to="fp8", block_rows=0, block_cols=1)
    with pytest.raises(InvalidArgument, match="isa 'neon': choose portable, avx2 or avx512"):
        _core.quantise(WEIGHTS, to="fp8", block_rows=1, block_cols=1, isa="neon")
    monkeypatch.setenv("ROSE_ISA", "neon")
    with pytest.raises(InvalidArgument, match="ROSE_ISA=neon"):
        quantise(WEIGHTS, to="fp8")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"to": "fp4"}, "to 'fp4'"),
        ({"block": (0, 1)}, "at least 1"),
        ({"codes": [[1]]}, "codes are a list"),
        ({"codes": np.zeros((130, 200), np.int8)}, "codes are of int8: pass them as uint8"),
        ({"scales": np.ones((2, 2))}, "scales are of float64: pass them as float32"),
        ({"codes": np.zeros((200, 130), np.uint8).T}, "codes are not contiguous"),
        ({"codes": np.zeros(4, np.uint8)}, r"codes have the shape \(4,\): pass a matrix"),
        ({"scales": np.ones((1, 4), np.float32)}, r"scales have the shape \(1, 4\): codes of"),
        ({"codes": torch.zeros(130, 200, dtype=torch.uint8, device="meta")}, "codes are on meta"),
    ],
    ids=range(9),
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        replace(quantise(WEIGHTS, to="fp8"), **fields)


@pytest.mark.parametrize("scale", [0, -1, np.inf, np.nan])
def test_a_scale_that_no_weights_have_is_refused(scale: float) -> None:
    quantised = quantise(WEIGHTS, to="fp8")
    quantised.scales[1, 0] = scale
    with pytest.raises(InvalidArgument, match=r"scale 2 is .*: scales must be above 0 and finite"):
        dequantise(quantised)


def test_the_core_refuses_sizes_that_do_not_go_together() -> None:
    codes, scales = np.zeros((4, 4), np.uint8), np.ones((1, 1), np.float32)
    with pytest.raises(InvalidArgument, match="16 codes and 1 scales: 4 x 4 weights have 2 x 1"):
        _core.dequantise(codes, scales, to="fp8", block_rows=2, block_cols=4)
    with pytest.raises(InvalidArgument, match="scales has 1 dimensions: pass a matrix"):
        _core.dequantise(codes, scales[0], to="fp8", block_rows=4, block_cols=4)


def test_codes_elsewhere_must_be_fetched_first() -> None:
    elsewhere = {"device": "meta"}
    codes, scales = torch.zeros(4, 4, dtype=torch.uint8, **elsewhere), torch.ones(1, 1, **elsewhere)
    with pytest.raises(InvalidArgument, match=r"codes are on meta: dequantise computes on CPUs"):
        dequantise(Quantised(codes, scales, "fp8", (4, 4)))
