"""The shared vectors are what the reference says, and the twins on the CPU say the same."""

import json
from typing import Any

import numpy as np
import pytest

from rose import _core
from rose.transfer import Delta
from rose.transfer.backend import HostBackend
from tests.transfer.twins import ISAS, same, unaligned
from tests.vectors import delta_v1
from tests.vectors.delta_v1 import from_hex

VECTORS = json.loads(delta_v1.PATH.read_text(encoding="utf-8"))


def named(kind: str) -> Any:
    return pytest.mark.parametrize("case", VECTORS[kind], ids=lambda case: case["name"])


def delta_of(case: dict[str, Any]) -> Delta:
    return Delta(
        len(from_hex(case["new"], "<u2")),
        case["block_elements"],
        from_hex(case["entries"], "<u8"),
        from_hex(case["payload"], "<u4"),
        tuple(from_hex(case["digest"], "<u8").tolist()),
    )


def test_the_file_is_what_the_reference_says() -> None:
    assert delta_v1.PATH.read_text(encoding="utf-8") == delta_v1.text()


def test_the_vectors_hold_every_kind_of_block() -> None:
    entries = [e for case in VECTORS["packs"] for e in from_hex(case["entries"], "<u8").tolist()]
    assert {entry & 15 for entry in entries} == {0, 1, 2}
    gaps = [entry for entry in entries if entry & 15 == 1]
    assert {bool(entry >> 24 & 0xFFFFF) for entry in gaps} == {False, True}


def test_one_case_by_hand() -> None:
    # The fourth of ten elements takes a step up. Elias-Fano of 1 in 10 has 3 low bits: position 3
    # is high bit 0 and low bits 3. Its sign is 0. Three words, of which RAW would need five.
    case = next(c for c in VECTORS["packs"] if c["name"] == "ten elements, one step up")
    assert from_hex(case["payload"], "<u4").tolist() == [0b1, 0b011, 0b0]
    assert from_hex(case["entries"], "<u8").tolist() == [1 | 1 << 4 | 0 << 24 | 3 << 44]


@named("packs")
@pytest.mark.parametrize("isa", ISAS)
def test_pack_gives_the_bits_of_the_vector(case: dict[str, Any], isa: str) -> None:
    shadow = unaligned(from_hex(case["shadow"], "<u2"))
    delta = HostBackend(isa=isa).delta_pack(
        unaligned(from_hex(case["new"], "<u2")),
        shadow,
        block_elements=case["block_elements"],
        threshold=case["threshold"],
    )
    assert same(delta, delta_of(case))
    assert shadow.tolist() == from_hex(case["after"], "<u2").tolist()


@named("packs")
def test_apply_and_undo_give_the_bits_of_the_vector(case: dict[str, Any]) -> None:
    old, after = from_hex(case["shadow"], "<u2"), from_hex(case["after"], "<u2")
    weights = unaligned(old)
    backend = HostBackend(isa=None)
    backend.delta_apply(weights, delta_of(case), undo=False)
    assert weights.tolist() == after.tolist()
    backend.delta_apply(weights, delta_of(case), undo=True)
    assert weights.tolist() == old.tolist()


@named("topk")
@pytest.mark.parametrize("isa", ISAS)
def test_topk_gives_the_bits_of_the_vector(case: dict[str, Any], isa: str) -> None:
    backend = HostBackend(isa=isa)
    new, old = from_hex(case["new"], "<u2"), from_hex(case["shadow"], "<u2")
    threshold = backend.topk_threshold(unaligned(new), unaligned(old), budget=case["budget"])
    assert threshold == case["threshold"]
    shadow = unaligned(old)
    delta = backend.delta_pack(
        new, shadow, block_elements=case["block_elements"], threshold=threshold
    )
    assert same(delta, delta_of(case))
    assert shadow.tolist() == from_hex(case["after"], "<u2").tolist()
    positions, values = backend.topk_unpack(unaligned(old), delta)
    assert positions.tolist() == from_hex(case["positions"], "<i8").tolist()
    assert values.tolist() == from_hex(case["values"], "<u2").tolist()
    assert (positions.dtype, values.dtype) == (np.int64, np.uint16)


@named("digests")
@pytest.mark.parametrize("isa", ISAS)
def test_digest_gives_the_bits_of_the_vector(case: dict[str, Any], isa: str) -> None:
    found = _core.digest(
        unaligned(from_hex(case["bits"], "<u2")),
        first_index=case["first_index"],
        seed=case["seed"],
        isa=isa,
    )
    assert list(found) == from_hex(case["digest"], "<u8").tolist()
