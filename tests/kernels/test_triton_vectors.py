"""The Triton twins say what the shared vectors of the delta format, version 2, say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels import interpreter as triton
from tests.kernels.interpreter import Child

pytestmark = pytest.mark.timeout(600)  # each test is a file of cases, and interpreted


def cases(kind: str, repo: Path) -> list[dict[str, Any]]:
    found = json.loads((repo / "tests/vectors/delta_v2.json").read_text(encoding="utf-8"))[kind]
    assert found
    return found


def numbers(digits: str, dtype: str) -> Any:
    return np.frombuffer(bytes.fromhex(digits), dtype).copy()


def table(case: dict[str, Any]) -> triton.Table:
    entries = numbers(case["entries"], "<u8").tolist()
    offsets = [sum(entry >> 44 for entry in entries[:block]) for block in range(len(entries))]
    return entries, offsets, numbers(case["payload"], "<u4").tolist()


def bits(case: dict[str, Any], name: str) -> Any:
    """Return elements as wide as the case says."""
    return numbers(case[name], f"<u{case['width'] // 8}")


def check_pack(child: Child, case: dict[str, Any], **which: Any) -> Any:
    packed = child.run(
        triton.delta_pack,
        bits(case, "new"),
        bits(case, "shadow"),
        block_elements=case["block_elements"],
        **which,
    )
    assert (packed.entries, packed.offsets, packed.arena) == table(case), case["name"]
    assert packed.digest == tuple(numbers(case["digest"], "<u8").tolist()), case["name"]
    assert (packed.shadow == bits(case, "after")).all(), case["name"]
    return packed


@pytest.mark.parametrize("width", [8, 16, 32])
def test_packs_are_those_of_the_vectors(child: Child, repo: Path, width: int) -> None:
    # Each third one: interpreted, all would take minutes; every kind of block is among them.
    for case in [case for case in cases("packs", repo) if case["width"] == width][::3]:
        check_pack(child, case)
        old, after = bits(case, "shadow"), bits(case, "after")
        for before, want, undo in ((old, after, False), (after, old, True)):
            got = child.run(
                triton.delta_apply,
                before,
                *table(case),
                block_elements=case["block_elements"],
                undo=undo,
            )
            assert (got == want).all(), case["name"]


def test_topk_deltas_are_those_of_the_vectors(child: Child, repo: Path) -> None:
    for case in cases("topk", repo):
        ages = numbers(case["ages"], "u1") if case["ages"] else None
        due = {"ages": ages, "age_limit": case["limit"] or 255}
        new, old = bits(case, "new"), bits(case, "shadow")
        threshold = child.run(triton.topk_threshold, new, old, budget=case["budget"], **due)
        assert threshold == case["threshold"], case["name"]
        packed = check_pack(child, case, budget=case["budget"], **due)
        if ages is not None:
            assert (packed.ages == numbers(case["ages_after"], "u1")).all(), case["name"]
        positions = numbers(case["positions"], "<i8").tolist()
        found = child.run(
            triton.topk_unpack,
            old,
            *table(case),
            block_elements=case["block_elements"],
        )
        assert found == (positions, bits(case, "values").tolist()), case["name"]


def test_digests_are_those_of_the_vectors(child: Child, repo: Path) -> None:
    for case in cases("digests", repo):
        got = child.run(
            triton.digest,
            bits(case, "bits"),
            first_index=case["first_index"],
            seed=case["seed"],
        )
        assert got == tuple(numbers(case["digest"], "<u8").tolist()), case["name"]
