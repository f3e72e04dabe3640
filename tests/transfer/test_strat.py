"""STRAT on the host equals the reference, and damaged encodings are refused."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose import _core
from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply, delta_pack
from rose.transfer.codec.delta import ClassRule
from rose.transfer.codec.operations import digest
from rose.transfer.codec.strat import has_strat, strat_pack, strat_unpack, wire_pack
from tests.reference import delta as reference
from tests.reference import strat as strat_reference
from tests.transfer.lr_law import versions
from tests.vectors.delta_v2 import PATH, from_hex, numbers

CASES = json.loads(PATH.read_text(encoding="utf-8"))["strats"]
ISAS = _core.isa_names()
DENSE = 16_384
RULE = ClassRule(7, 8, 112, 0b1, (5, 1, 0, 0, 0, 0, 0, 0))


def packed(new: Any, old: Any, block_elements: int = DENSE) -> Delta:
    return delta_pack(new, old.copy(), block_elements=block_elements)


def encoded_of(
    count: int = 3 * DENSE + 77, learning_rate: float = 3e-6
) -> tuple[Delta, Delta, Any]:
    """Return a delta, its encoded, and what they were made from."""
    new, old = versions(count, learning_rate)
    delta = packed(new, old)
    return delta, strat_pack(delta, old, RULE), old


def same(one: Delta, other: Delta) -> bool:
    return one.to_bytes() == other.to_bytes()


def rule_of(fields: list[int]) -> ClassRule:
    return ClassRule(*fields[:4], tuple(fields[4:]))


def model_of(delta: Delta) -> reference.Delta:
    return reference.Delta(
        delta.count, delta.block_elements, delta.entries.tolist(), delta.payload.tolist(),
        delta.width,
    )  # fmt: skip


def delta_of(case: dict[str, Any], which: str, rule: ClassRule | None) -> Delta:
    old = from_hex(case["old"], numbers(case["width"]))
    return Delta(
        len(old),
        case["block_elements"],
        case["width"],
        from_hex(case[which]["entries"], "<u8"),
        from_hex(case[which]["payload"], "<u4"),
        digest(old),
        (0, 0),
        rule,
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_vectors_are_packed_and_unpacked_to_the_bit(
    case: dict[str, Any], isa: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rose.transfer.codec.strat.host_isa", lambda: isa)
    old, rule = from_hex(case["old"], numbers(case["width"])), rule_of(case["rule"])
    delta, encoded = delta_of(case, "delta", None), delta_of(case, "wire", rule)
    encoded = encoded if has_strat(encoded.entries) else delta
    assert same(strat_pack(delta, old, rule, threads=threads), encoded)
    assert same(strat_unpack(encoded, old, threads=threads), delta)


def test_vectors_shrink_by_strat_in_every_width() -> None:
    assert {case["width"] for case in CASES if case["delta"] != case["wire"]} == {8, 16, 32}


@st.composite
def rules(draw: st.DrawFn, width: int) -> ClassRule:
    shift = draw(st.integers(0, width))
    exponent_bits = draw(st.integers(0, width - shift))
    least = st.integers(0, width - 1)
    return ClassRule(
        shift,
        exponent_bits,
        draw(st.integers(0, min(255, (1 << exponent_bits) - 1))),
        draw(st.integers(0, 255)),
        tuple(draw(st.lists(least, min_size=8, max_size=8))),
    )


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, Any, ClassRule]:
    """Return old and new bits and a rule; small elements change more often."""
    width = draw(st.sampled_from([8, 16, 32]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    count = draw(st.sampled_from([1, 31, 63, 64, 65, 127, 300, 1021]))
    old = rng.integers(0, 1 << width, count, dtype=np.uint64) >> rng.integers(
        0, width, count
    ).astype(np.uint64)
    by = rng.geometric(draw(st.sampled_from([0.2, 0.9])), count)
    by = np.where(rng.random(count) < 0.02, rng.integers(1, 1 << (width - 1), count), by)
    by = np.where(rng.random(count) < 0.5, by, -by)
    by[rng.random(count) >= draw(st.sampled_from([0.01, 0.1, 0.5])) / (1 + np.log2(1.0 + old))] = 0
    dtype = numbers(width)
    return old.astype(dtype), (old.astype(np.int64) + by).astype(dtype), draw(rules(width))


@given(made=changes(), isa=st.sampled_from(ISAS))
def test_any_rule_packs_what_the_reference_packs_and_comes_back(
    made: tuple[Any, Any, ClassRule], isa: str
) -> None:
    old, new, rule = made
    delta = packed(new, old)
    model_rule = strat_reference.ClassRule(
        rule.shift, rule.exponent_bits, rule.origin, rule.all_mask, rule.magnitude_bits
    )
    model = strat_reference.strat_pack(model_of(delta), old, model_rule)
    fields = (rule.shift, rule.exponent_bits, rule.origin, rule.all_mask, rule.magnitude_bits)
    for weights, is_after in ((old, False), (new, True)):
        entries, payload = _core.strat_pack(weights, delta, fields, is_after=is_after, isa=isa)
        assert entries.tolist() == model.entries
        assert payload.tolist() == model.payload
    encoded = replace(delta, entries=entries, payload=payload, rule=rule)
    assert same(strat_unpack(encoded, old), delta)


@given(made=changes(), isa=st.sampled_from(ISAS))
def test_one_pass_makes_the_delta_and_its_wire_encoding(
    made: tuple[Any, Any, ClassRule], isa: str
) -> None:
    old, new, rule = made
    shadow = old.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rose.transfer.codec.strat.host_isa", lambda: isa)
        delta, encoded = wire_pack(new, shadow, rule)
    plain = packed(new, old, 65_536)
    assert same(delta, plain)
    assert same(encoded, strat_pack(plain, old, rule))
    assert np.array_equal(shadow, new)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_pass_takes_a_base_that_is_known_on_trust(threads: int) -> None:
    new, old = versions(4 * DENSE + 77, 3e-6)
    first, second = digest(old)
    asked = [
        wire_pack(new, old.copy(), RULE, threads=threads, base_digest=base)
        for base in (None, (first, second), (first, second ^ 1))
    ]
    assert all(same(one, other) for one, other in zip(asked[0], asked[1], strict=True))
    assert [delta.base_digest for delta in asked[2]] == [(first, second ^ 1)] * 2
    with pytest.raises(InvalidArgument, match=r"base_digest .* two numbers of 64 bits"):
        wire_pack(new, old.copy(), RULE, base_digest=(-1, 0))


def test_refused_wire_pack_leaves_the_shadow() -> None:
    new, old = (bits.reshape(16, 16) for bits in versions(256, 3e-5))
    box = np.zeros((16, 20), np.uint16)[:, :16]
    bent = replace(RULE, shift=9)
    for shadow, rule, says in (
        (old, bent, "class rule"),
        (box, RULE, "contiguous"),
        (old.T[:3], RULE, "shape"),
    ):
        before = shadow.copy()
        with pytest.raises(InvalidArgument, match=says):
            wire_pack(new, shadow, rule)
        assert np.array_equal(shadow, before)


def test_wrong_base_is_refused() -> None:
    _, encoded, old = encoded_of()
    # The last bit of one element: no class changes, so the stream alone would not show it.
    old[5] ^= 1
    with pytest.raises(CorruptData, match="weights are not the base of the delta"):
        strat_unpack(encoded, old)


def test_wire_encoding_can_be_neither_applied_nor_packed() -> None:
    delta, encoded, old = encoded_of()
    before = old.copy()
    with pytest.raises(CorruptData, match="STRAT"):
        delta_apply(old, encoded)
    assert np.array_equal(old, before)
    with pytest.raises(InvalidArgument, match="wire encoding already"):
        strat_pack(encoded, old, RULE)
    delta_apply(old, strat_unpack(encoded, old))
    assert digest(old) == delta.digest


def test_delta_that_strat_would_not_shrink_is_unchanged() -> None:
    old = np.random.default_rng(1).integers(0, 1 << 16, 500).astype(np.uint16)
    delta = packed(old + np.uint16(1), old)
    assert strat_pack(delta, old, RULE) is delta
    assert strat_unpack(delta, old) is delta


def test_boxes_and_tensors_of_torch_are_bases_too() -> None:
    delta, encoded, old = encoded_of(2 * DENSE, 3e-6)
    box = np.zeros((128, 2 * DENSE // 128 + 9), np.uint16)
    box[:, 4:-5] = old.reshape(128, -1)
    assert same(strat_unpack(encoded, box[:, 4:-5]), delta)
    tensor = torch.from_numpy(old.view(np.int16)).view(torch.bfloat16).reshape(2, -1)
    assert same(strat_unpack(encoded, tensor), delta)
    assert same(strat_pack(delta, tensor, RULE), encoded)


def test_weights_of_another_size_or_width_are_refused() -> None:
    delta, encoded, old = encoded_of(DENSE, 3e-6)
    for other in (old[:-1], np.zeros(DENSE, np.uint8), np.zeros(DENSE, np.uint32)):
        with pytest.raises(InvalidArgument, match="elements"):
            strat_pack(delta, other, RULE)
        with pytest.raises(InvalidArgument, match="elements"):
            strat_unpack(encoded, other)


def test_invalid_rule_is_refused() -> None:
    delta, _, old = encoded_of(DENSE, 3e-6)
    for rule in (replace(RULE, shift=9), replace(RULE, magnitude_bits=(16,) + (0,) * 7)):
        with pytest.raises(InvalidArgument, match="class rule is invalid"):
            strat_pack(delta, old, rule)
    with pytest.raises(InvalidArgument, match="threads"):
        strat_pack(delta, old, RULE, threads=0)
