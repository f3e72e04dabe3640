"""Deltas of quantised weights: of 8-bit codes and 32-bit scales, and nothing moves by halves."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.codec.operations import digest
from rose.transfer.codec.quantise import Quantised, quantise, quantise_pack
from tests.reference import quantise as reference
from tests.reference.quantise import Bits

KINDS = ("fp8", "int8")


def held(quantised: Quantised) -> tuple[bytes, bytes]:
    return np.asarray(quantised.codes).tobytes(), np.asarray(quantised.scales).tobytes()


def two_versions(seed: int, *, lr: float = 1e-6) -> tuple[Bits, Bits]:
    """Return the bf16 weights before a step and after it."""
    rng = np.random.default_rng(seed)
    masters = rng.standard_normal((300, 500)).astype(np.float32) * np.float32(0.02)
    step = rng.choice(np.float32([-1, 1]), masters.shape) * np.float32(lr)
    return reference.narrowed(masters), reference.narrowed(masters + step)


@given(st.integers(0, 1 << 32), st.sampled_from(KINDS), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_a_receiver_that_applies_both_deltas_holds_the_new_weights(
    seed: int, to: Any, lr: float
) -> None:
    old, new = two_versions(seed, lr=lr)
    shadow, receiver = quantise(old, to=to), quantise(old, to=to)
    want = quantise(new, to=to)
    codes, scales = quantise_pack(new, shadow)
    assert (codes.width, scales.width) == (8, 32)
    assert (codes.count, scales.count) == (want.codes.size, want.scales.size)
    assert held(shadow) == held(want)
    before = held(receiver)
    delta_apply(receiver.codes, codes)
    delta_apply(receiver.scales, scales)
    assert held(receiver) == held(want)
    assert digest(receiver.codes) == codes.digest
    delta_apply(receiver.codes, codes, undo=True)
    delta_apply(receiver.scales, scales, undo=True)
    assert held(receiver) == before


def test_tensors_of_torch_move_too() -> None:
    old, new = two_versions(4, lr=1e-3)
    tensors = [torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) for bits in (old, new)]
    shadow = quantise(tensors[0], to="int8")
    mixed = quantise(old, to="int8")
    of_torch, of_numpy = quantise_pack(tensors[1], shadow), quantise_pack(new, mixed)
    assert [one.to_bytes() for one in of_torch] == [one.to_bytes() for one in of_numpy]
    assert held(shadow) == held(mixed) == held(quantise(new, to="int8"))


def test_weights_of_another_shape_are_refused() -> None:
    old, new = two_versions(5)
    shadow = quantise(old, to="fp8")
    before = held(shadow)
    with pytest.raises(InvalidArgument, match=r"shape \(299, 500\) and the shadow \(300, 500\)"):
        quantise_pack(new[1:], shadow)
    assert held(shadow) == before


@pytest.mark.parametrize("name", ["codes", "scales"])
def test_a_shadow_that_is_read_only_moves_by_nothing(name: str) -> None:
    old, new = two_versions(6, lr=1.0)
    shadow = quantise(old, to="int8")
    before = held(shadow)
    getattr(shadow, name).setflags(write=False)
    with pytest.raises(InvalidArgument, match="read-only"):
        quantise_pack(new, shadow)
    assert held(shadow) == before, "also the scales, which were packed first"


def test_an_interrupt_leaves_codes_and_scales_of_one_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = two_versions(4, lr=1.0)
    shadow = quantise(old, to="fp8")
    before, calls = held(shadow), [0]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return delta_pack(*arguments, **named)

    monkeypatch.setattr(import_module("rose.transfer.codec.quantise"), "delta_pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantise_pack(new, shadow)
    assert held(shadow) == before
