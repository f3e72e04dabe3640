"""Quantised weights: every version gives the reference's bits, whatever the host's float modes."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose import _core
from rose.transfer.codec.quantise import dequantise, quantise
from tests.reference import quantise as reference
from tests.reference.quantise import Bits, Block

KINDS = ("fp8", "int8")
ISAS = _core.isa_names()  # all that this machine has
ALL_BITS = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
# Zeros, the smallest and largest subnormals and normals, one, what is not finite; either sign.
EDGES = [0, 1, 2, 0x7F, 0x80, 0x81, 0x3F80, 0x43DF, 0x43E0, 0x43E1, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF]
EDGES += [0x8000 | bits for bits in EDGES]
each_kind = pytest.mark.parametrize("to", KINDS)
each_isa = pytest.mark.parametrize("isa", ISAS)


def bits_of(values: Any) -> Bits:
    """Cut numbers to bf16."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def apart(weights: Bits, *, skip: int, gap: int) -> Bits:
    """Copy to rows that are `gap` apart, from `skip` elements behind a border of 64 bytes on."""
    rows, cols = weights.shape
    room = np.full(rows * (cols + gap) + 64 + skip, 0x7F7F, np.uint16)
    start = -room.ctypes.data % 64 // 2 + skip
    held = room[start : start + rows * (cols + gap)].reshape(rows, cols + gap)[:, :cols]
    held[:] = weights
    return held


def check_all(weights: Bits, *, to: str, block: Block, isas: list[str] = ISAS) -> None:
    """Every instruction set says what the reference says, there and back."""
    rows, cols = block
    want = reference.quantise(weights, to=to, block=block)
    for isa in isas:
        codes, scales = _core.quantise(weights, to=to, block_rows=rows, block_cols=cols, isa=isa)
        np.testing.assert_array_equal(codes, want[0])
        np.testing.assert_array_equal(scales.view(np.uint32), want[1].view(np.uint32))
    back = _core.dequantise(*want, to=to, block_rows=rows, block_cols=cols)
    np.testing.assert_array_equal(back, reference.dequantise(*want, to=to, block=block))


@each_kind
@pytest.mark.parametrize("block", [(256, 256), (128, 128), (1, 256), (3, 50), (1000, 17)])
def test_every_bf16_becomes_the_code_of_the_reference(to: str, block: Block) -> None:
    check_all(ALL_BITS, to=to, block=block)
    check_all(np.random.default_rng(5).permutation(ALL_BITS), to=to, block=block)


# 448 and 127 give a scale of 1, so every tie between two codes occurs; the others end in the
# subnormals of fp32, where a scale has few bits, or at the largest numbers.
@each_kind
@pytest.mark.parametrize("exponent", [0, 1, -3, -120, -130, -134, -141, 60, 119])
def test_every_quotient_of_a_block_rounds_as_the_reference_says(to: str, exponent: int) -> None:
    amax = int(bits_of(np.ldexp(reference.LARGEST[to], exponent)))
    below = np.where(amax >= (ALL_BITS & 0x7FFF), ALL_BITS, 0)
    below[0, 0] = amax
    check_all(below, to=to, block=(256, 256))


@st.composite
def matrices(draw: st.DrawFn) -> Bits:
    """Draw a matrix of ordinary weights, any bits, or edges, with its rows apart or not."""
    shape = draw(st.sampled_from([(0, 3), (3, 0), (1, 1), (1, 33), (7, 31), (33, 65), (2, 129)]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    weights = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    if draw(st.booleans()):
        sizes = np.exp2(draw(st.floats(-140, 120)), dtype=np.float32)
        weights = bits_of(rng.standard_normal(shape).astype(np.float32) * sizes)
    if draw(st.booleans()):
        is_edge = rng.random(shape) < 0.3
        weights[is_edge] = rng.choice(np.array(EDGES, np.uint16), int(is_edge.sum()))
    return apart(weights, skip=draw(st.integers(0, 3)), gap=draw(st.sampled_from([0, 1, 13])))


blocks = st.tuples(st.sampled_from([1, 2, 7, 128]), st.sampled_from([1, 8, 31, 40, 1 << 62]))


@given(matrices(), st.sampled_from(KINDS), blocks)
def test_twins_say_what_the_reference_says(weights: Bits, to: str, block: Block) -> None:
    before = weights.copy()
    check_all(weights, to=to, block=block)
    np.testing.assert_array_equal(weights, before)


def test_fp8_rounds_as_torch_does() -> None:
    rng = np.random.default_rng(3)
    weights = bits_of(rng.standard_normal((256, 512)) * np.exp2(rng.uniform(-9, 9, (256, 512))))
    weights[0, 0] = 0x43E0  # 448, and nothing is larger: the scale is 1
    weights[np.abs(reference.widened(weights)) > 448] = 0
    quantised = quantise(weights, to="fp8", block=(256, 512))
    assert quantised.scales.tolist() == [[1]]
    values = torch.from_numpy(weights.view(np.int16)).view(torch.bfloat16)
    want = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(quantised.codes, want)


def test_what_is_no_ordinary_weight() -> None:
    inf, nan, tiny = 0x7F80, 0x7FC1, 0x0001
    weights = np.array([[0, 0x8000, inf, 0x8000 | inf, nan, 0x8000 | nan]], np.uint16)
    fp8, int8 = (quantise(weights, to=to, block=(1, 6)) for to in KINDS)
    assert fp8.scales.tolist() == int8.scales.tolist() == [[1]]
    assert fp8.codes.tolist() == [[0, 0x80, 0x7E, 0xFE, 0x7F, 0xFF]]
    assert int8.codes.view(np.int8).tolist() == [[0, 0, 127, -127, 0, 0]]
    assert dequantise(fp8).tolist() == [[0, 0x8000, 0x43E0, 0xC3E0, 0x7FC0, 0xFFC0]]
    smallest = quantise(np.array([[tiny, inf]], np.uint16), to="fp8", block=(1, 2))
    assert smallest.scales.tolist() == [[146 * 2.0**-149]], "never 0, and rounded"
    assert smallest.codes.tolist() == [[0x7E, 0x7E]]
    assert dequantise(smallest).tolist() == [[tiny, tiny]]


# ---- the host's float modes ----------------------------------------------------------------------


@contextmanager
def flushed_subnormals() -> Iterator[None]:
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def rounded_upwards() -> Iterator[None]:
    libm = ctypes.CDLL("libm.so.6")
    kept, upwards = libm.fegetround(), 0x800
    assert libm.fesetround(upwards) == 0
    assert libm.fegetround() == upwards
    try:
        yield
    finally:
        libm.fesetround(kept)


@each_isa
@each_kind
@pytest.mark.skipif(ISAS == ["portable"], reason="these modes are those of x86-64")
@pytest.mark.parametrize("modes", [flushed_subnormals, rounded_upwards])
def test_modes_of_the_host_change_nothing_and_stay(modes: Any, to: str, isa: str) -> None:
    rng = np.random.default_rng(7)
    small = np.ldexp(rng.standard_normal((16, 64)), -128)
    weights = np.concatenate([bits_of(small), bits_of(rng.standard_normal((16, 64)))])
    sizes = {"to": to, "block_rows": 4, "block_cols": 32}
    want = reference.quantise(weights, to=to, block=(4, 32))
    want_back = reference.dequantise(*want, to=to, block=(4, 32))
    subnormal, third = np.float32(2.0**-125), np.float32(3)
    with modes():
        before = (subnormal / third).tobytes()
        codes, scales = _core.quantise(weights, isa=isa, **sizes)
        back = _core.dequantise(*want, **sizes)
        after = (subnormal / third).tobytes()
    assert before == after, "the modes are the host's"
    assert before != (subnormal / third).tobytes(), "the modes were not changed at all"
    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(scales.view(np.uint32), want[1].view(np.uint32))
    np.testing.assert_array_equal(back, want_back)


# ---- laws ----------------------------------------------------------------------------------------


@given(matrices(), st.sampled_from(KINDS), st.sampled_from([(1, 40), (128, 128), (2, 7)]))
def test_scales_are_stable_and_codes_too_where_bf16_is_not_subnormal(
    weights: Bits, to: str, block: Block
) -> None:
    first = quantise(np.ascontiguousarray(weights), to=to, block=block)
    again = quantise(dequantise(first), to=to, block=block)
    np.testing.assert_array_equal(again.scales, first.scales)
    for row, col, box in reference.blocks(first.codes.shape, block):
        if first.scales[row, col] >= 2.0**-117:  # the smallest code, 2^-9 or 1, is a normal bf16
            np.testing.assert_array_equal(again.codes[box], first.codes[box])
