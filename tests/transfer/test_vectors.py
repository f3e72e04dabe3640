"""The vectors in the repository are those of the reference; `tests.codec_laws` tests the twins."""

import json
from typing import Any

import pytest

from rose.transfer import Delta
from rose.transfer.codec.operations import delta_merge
from tests.vectors import delta_v2
from tests.vectors.delta_v2 import from_hex

VECTORS = json.loads(delta_v2.PATH.read_text(encoding="utf-8"))


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


def test_file_is_that_of_the_reference() -> None:
    assert delta_v2.PATH.read_text(encoding="utf-8") == delta_v2.text()


def test_vectors_hold_every_kind_of_block() -> None:
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


@named("merges")
def test_merge_of_a_vector(case: dict[str, Any]) -> None:
    first, second, merged = (
        delta_of(case, case["count"], case[name]) for name in ("first", "second", "merged")
    )
    found = delta_merge(first, second)
    assert found.entries.tolist() == merged.entries.tolist()
    assert found.payload.tolist() == merged.payload.tolist()
