"""The chosen class rule is close to the best one; without a gain there is none."""

from typing import Any

import numpy as np
import pytest
import torch

from rose.transfer import Delta, delta_pack
from rose.transfer.codec.class_rule import SAMPLED_BLOCKS, class_rule, rules_at, sample
from rose.transfer.codec.strat import strat_pack
from rose.transfer.codec.tensor import bits_of
from tests.transfer.lr_law import versions

COUNT = 3 * 65_536 + 1_021
WITHIN = 1.02


def packed(new: Any, old: Any) -> Delta:
    return delta_pack(new, old.clone() if isinstance(old, torch.Tensor) else old.copy())


def least_bytes(delta: Delta, new: Any, old: Any, origins: range) -> int:
    """Return what the delta takes by the best of the rules with these origins."""
    histogram = sample(bits_of("new", new), bits_of("old", old))
    assert histogram is not None
    rules, _ = rules_at(histogram, np.array(origins))
    return min(strat_pack(delta, old, rule).nbytes for rule in rules)


@pytest.mark.parametrize("learning_rate", [3e-7, 1e-6, 3e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("std", [0.005, 0.02])
def test_chosen_origin_is_close_to_the_best(learning_rate: float, std: float) -> None:
    new, old = versions(COUNT, learning_rate, std=std)
    rule = class_rule(new, old)
    assert rule is not None
    delta = packed(new, old)
    chosen = strat_pack(delta, old, rule).nbytes
    assert chosen <= WITHIN * least_bytes(delta, new, old, range(92, 130))
    assert chosen < 0.95 * delta.nbytes


@pytest.mark.parametrize("learning_rate", [3e-6, 1e-4])
def test_chosen_widths_of_magnitudes_are_close_to_the_best(
    learning_rate: float,
) -> None:
    new, old = versions(COUNT, learning_rate)
    rule = class_rule(new, old)
    assert rule is not None
    delta = packed(new, old)
    chosen = strat_pack(delta, old, rule).nbytes
    for c in range(8):
        for bits in range(9):
            for mask in (rule.all_mask, rule.all_mask ^ 1 << c):
                widths = (*rule.magnitude_bits[:c], bits, *rule.magnitude_bits[c + 1 :])
                other = type(rule)(rule.shift, rule.exponent_bits, rule.origin, mask, widths)
                assert chosen <= WITHIN * strat_pack(delta, old, other).nbytes


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [
        (torch.bfloat16, (7, 8)),
        (torch.float16, (10, 5)),
        (torch.float8_e4m3fn, (3, 4)),
        (torch.float8_e5m2, (2, 5)),
    ],
)
def test_every_float_has_its_exponent(dtype: torch.dtype, exponent: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    masters = torch.from_numpy(rng.normal(0, 0.3, COUNT).astype(np.float32))
    steps = torch.from_numpy(rng.normal(0, 3e-4, COUNT).astype(np.float32))
    new, old = (masters + steps).to(dtype), masters.to(dtype)
    rule = class_rule(new, old)
    assert rule is not None
    assert (rule.shift, rule.exponent_bits) == exponent
    delta = packed(new, old)
    link = strat_pack(delta, old, rule)
    assert link.nbytes < delta.nbytes
    assert link.nbytes <= WITHIN * least_bytes(delta, new, old, range(1 << exponent[1]))


def test_float32_has_a_rule_where_it_was_rounded() -> None:
    # As bf16 that is kept in float32: steps of 2^16.
    new, old = (bits.astype(np.uint32) << 16 for bits in versions(COUNT, 3e-6))
    rule = class_rule(new.view(np.float32), old.view(np.float32))
    assert rule is not None
    assert (rule.shift, rule.exponent_bits) == (23, 8)
    delta = packed(new, old)
    assert strat_pack(delta, old, rule).nbytes < delta.nbytes


def test_no_rule_is_returned_without_a_gain() -> None:
    rng = np.random.default_rng(4)
    old = rng.integers(0, 1 << 16, COUNT).astype(np.uint16)
    new = old + (rng.random(COUNT) < 0.01).astype(np.uint16)
    assert class_rule(new, old) is None, "whether an element changes does not go by its exponent"
    assert class_rule(old, old) is None, "nothing changes"
    nothing = np.zeros(0, np.uint16)
    assert class_rule(nothing, nothing) is None
    assert class_rule(new.view(np.int8), old.view(np.int8)) is None, "int8 has no exponent"


def test_large_tensors_are_sampled_evenly_and_the_same_each_time() -> None:
    count = 3 * SAMPLED_BLOCKS * 65_536
    old = np.zeros(count, np.uint8)
    new = old.copy()
    new[-1] = 1  # in the last block, which an even sample of every third leaves out
    histogram = sample(bits_of("new", new), bits_of("old", old))
    assert histogram is not None
    assert histogram.blocks == SAMPLED_BLOCKS
    assert histogram.rows[:, 0].sum() == SAMPLED_BLOCKS * 65_536
    assert histogram.rows[:, 1:].sum() == 0
    new[3 * 65_536 * 5] = 1
    assert class_rule(new, old) == class_rule(new, old)
    again = sample(bits_of("new", new), bits_of("old", old))
    assert again is not None
    assert again.rows[:, 1:].sum() == 1
