"""The shared vectors are what the reference says, and the twins on the CPU say the same."""

import ctypes
import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from rose import _core
from rose.transfer import Delta
from rose.transfer.codec.backend import HostBackend
from rose.transfer.codec.operations import delta_merge
from tests.transfer.twins import ISAS, LAYOUTS, elements, unaligned
from tests.vectors import delta_v2
from tests.vectors.delta_v2 import from_hex, numbers

M_PERTURB: Final = -6
VECTORS = json.loads(delta_v2.PATH.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def _fresh_memory_is_not_zero() -> Iterator[None]:
    """Have glibc fill what it hands out, so that a word that is never written is seen."""
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(M_PERTURB, 0xA5)
    yield
    mallopt(M_PERTURB, 0)


def named(kind: str) -> Any:
    return pytest.mark.parametrize("case", VECTORS[kind], ids=lambda case: case["name"])


def delta_of(case: dict[str, Any], count: int, words: dict[str, str]) -> Delta:
    return Delta(
        count,
        case["block_elements"],
        case["width"],
        from_hex(words["entries"], "<u8"),
        from_hex(words["payload"], "<u4"),
        (0, 0),
        (0, 0),
    )


def packed(case: dict[str, Any]) -> Delta:
    return delta_of(case, len(bits(case, "new")), case)


def bits(case: dict[str, Any], name: str) -> Any:
    return from_hex(case[name], numbers(case["width"]))


def says(delta: Delta, case: dict[str, Any]) -> bool:
    """Whether a pack gave what the vector says."""
    return (
        delta.entries.tolist() == from_hex(case["entries"], "<u8").tolist()
        and delta.payload.tolist() == from_hex(case["payload"], "<u4").tolist()
        and list(delta.digest) == from_hex(case["digest"], "<u8").tolist()
    )


def test_the_file_is_what_the_reference_says() -> None:
    assert delta_v2.PATH.read_text(encoding="utf-8") == delta_v2.text()


def test_the_vectors_hold_every_kind_of_block() -> None:
    entries = [
        (case["width"], e)
        for case in VECTORS["packs"]
        for e in from_hex(case["entries"], "<u8").tolist()
    ]
    for width in (8, 16, 32):
        of_width = [entry for one, entry in entries if one == width]
        assert {entry & 15 for entry in of_width} >= {1, 2, 3}
        gaps = [entry for entry in of_width if entry & 15 == 1]
        assert {bool(entry >> 24 & 0xFFFFF) for entry in gaps} == {False, True}


def words_of(name: str) -> tuple[list[int], list[int]]:
    case = next(c for c in VECTORS["packs"] if c["name"] == name)
    return from_hex(case["entries"], "<u8").tolist(), from_hex(case["payload"], "<u4").tolist()


def test_two_cases_by_hand() -> None:
    # The fourth of ten elements takes a step up: a bit of ten, and its sign. Elias-Fano would take
    # a word more, and RAW three.
    assert words_of("ten elements, one step up") == ([3 | 1 << 4 | 2 << 44], [0b1000, 0b0])
    # Elias-Fano of 1 in 33 has 5 low bits: position 32 is high bit 1 and low bits 0. Its sign is 0.
    # A bitmap takes three words as well, and comes behind.
    assert words_of("the last of 33 changes") == ([1 | 1 << 4 | 3 << 44], [0b10, 0, 0b0])


@named("packs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("isa", ISAS)
def test_pack_gives_the_bits_of_the_vector(case: dict[str, Any], isa: str, layout: str) -> None:
    shadow = LAYOUTS[layout](bits(case, "shadow"))
    delta = HostBackend(isa=isa).delta_pack(
        LAYOUTS[layout](bits(case, "new")),
        shadow,
        block_elements=case["block_elements"],
        threshold=case["threshold"],
    )
    assert says(delta, case)
    assert elements(shadow) == bits(case, "after").tolist()


@named("packs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_apply_and_undo_give_the_bits_of_the_vector(case: dict[str, Any], layout: str) -> None:
    old, after = bits(case, "shadow"), bits(case, "after")
    weights = LAYOUTS[layout](old)
    backend = HostBackend(isa=None)
    backend.delta_apply(weights, packed(case), undo=False)
    assert elements(weights) == after.tolist()
    backend.delta_apply(weights, packed(case), undo=True)
    assert elements(weights) == old.tolist()


@named("topk")
@pytest.mark.parametrize("isa", ISAS)
def test_topk_gives_the_bits_of_the_vector(case: dict[str, Any], isa: str) -> None:
    backend = HostBackend(isa=isa)
    new, old = bits(case, "new"), bits(case, "shadow")
    ages = from_hex(case["ages"], "u1") if case["limit"] else None
    limit = case["limit"] or 255
    threshold = backend.topk_threshold(
        unaligned(new), unaligned(old), budget=case["budget"], ages=ages, age_limit=limit
    )
    assert threshold == case["threshold"]
    shadow = unaligned(old)
    delta = backend.delta_pack(
        new,
        shadow,
        block_elements=case["block_elements"],
        threshold=threshold,
        ages=ages,
        age_limit=limit,
    )
    assert says(delta, case)
    assert shadow.tolist() == bits(case, "after").tolist()
    if ages is not None:
        assert ages.tolist() == from_hex(case["ages_after"], "u1").tolist()
    positions, values = backend.topk_unpack(unaligned(old), delta)
    assert positions.tolist() == from_hex(case["positions"], "<i8").tolist()
    assert values.tolist() == from_hex(case["values"], "<u2").tolist()
    assert (positions.dtype, values.dtype) == (np.int64, np.uint16)


@named("merges")
def test_merge_gives_the_bits_of_the_vector(case: dict[str, Any]) -> None:
    first, second, merged = (
        delta_of(case, case["count"], case[name]) for name in ("first", "second", "merged")
    )
    found = delta_merge(first, second)
    assert found.entries.tolist() == merged.entries.tolist()
    assert found.payload.tolist() == merged.payload.tolist()


@named("digests")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("isa", ISAS)
def test_digest_gives_the_bits_of_the_vector(case: dict[str, Any], isa: str, layout: str) -> None:
    found = _core.digest(
        LAYOUTS[layout](bits(case, "bits")),
        first_index=case["first_index"],
        seed=case["seed"],
        isa=isa,
    )
    assert list(found) == from_hex(case["digest"], "<u8").tolist()
