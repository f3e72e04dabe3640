"""The CUDA kernels against the vectors in the repository: the same bits, whoever made them."""

import json
from typing import Any

import numpy as np
import pytest

from tests.kernels.on_cpu import KernelsOnCpu
from tests.reference.delta import Ages, Delta
from tests.vectors.delta_v2 import PATH, from_hex, numbers

VECTORS = json.loads(PATH.read_text(encoding="utf-8"))


def each(name: str) -> Any:
    return pytest.mark.parametrize("case", VECTORS[name], ids=lambda case: case["name"])


def delta_of(case: dict[str, Any], written: dict[str, str], count: int) -> Delta:
    entries = from_hex(written["entries"], "<u8").tolist()
    payload = from_hex(written["payload"], "<u4").tolist()
    return Delta(count, case["block_elements"], entries, payload, case["width"])


@each("packs")
def test_vector_is_packed_applied_and_undone(kernels: KernelsOnCpu, case: dict[str, Any]) -> None:
    dtype = numbers(case["width"])
    new, shadow, after = (from_hex(case[name], dtype) for name in ("new", "shadow", "after"))
    old, wanted = shadow.copy(), delta_of(case, case, len(new))
    packed = kernels.pack(new, shadow, block_elements=case["block_elements"])
    assert packed.entries == wanted.entries
    assert packed.payload() == wanted.payload
    assert np.array_equal(shadow, after)
    assert packed.digest == tuple(from_hex(case["digest"], "<u8").tolist())
    weights = old.copy()
    assert kernels.apply(wanted, weights) is None
    assert np.array_equal(weights, after)
    assert kernels.apply(wanted, weights, undo=True) is None
    assert np.array_equal(weights, old)


@each("topk")
def test_vector_of_the_largest_changes(kernels: KernelsOnCpu, case: dict[str, Any]) -> None:
    new, shadow = (from_hex(case[name], "<u2") for name in ("new", "shadow"))
    counts = from_hex(case["ages"], "u1")
    ages = Ages(counts, case["limit"]) if case["limit"] else None
    old, wanted = shadow.copy(), delta_of(case, case, len(new))
    histogram = kernels.histogram(new, shadow, ages=ages)
    assert kernels.threshold(histogram, budget=case["budget"]) == case["threshold"]
    packed = kernels.pack(
        new,
        shadow,
        block_elements=case["block_elements"],
        threshold=case["threshold"],
        ages=ages,
    )
    assert packed.entries == wanted.entries
    assert packed.payload() == wanted.payload
    assert np.array_equal(shadow, from_hex(case["after"], "<u2"))
    if ages is not None:
        assert np.array_equal(ages.counts, from_hex(case["ages_after"], "u1"))
    positions, values, bad = kernels.unpack(wanted, old)
    assert bad is None
    assert positions == from_hex(case["positions"], "<i8").tolist()
    assert values == from_hex(case["values"], "<u2").tolist()


@each("merges")
def test_vector_is_merged_by_packing_what_both_make_of_zeros(
    kernels: KernelsOnCpu, case: dict[str, Any]
) -> None:
    count = case["count"]
    differences = np.zeros(count, numbers(case["width"]))
    for name in ("first", "second"):
        assert kernels.apply(delta_of(case, case[name], count), differences) is None
    merged = delta_of(case, case["merged"], count)
    packed = kernels.pack(differences, None, block_elements=case["block_elements"])
    assert packed.entries == merged.entries
    assert packed.payload() == merged.payload


@each("digests")
def test_vector_is_digested(kernels: KernelsOnCpu, case: dict[str, Any]) -> None:
    bits = from_hex(case["bits"], numbers(case["width"]))
    got = kernels.digest(bits, first_index=case["first_index"], seed=case["seed"])
    assert got == tuple(from_hex(case["digest"], "<u8").tolist())
