"""The Triton codec, interpreted on this CPU: the laws of every twin, and what only Triton does.

Interpreted kernels are slow, so there are fewer and smaller cases than for the other twins.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.codec_cases import BLOCK, BOXES, Case, answer
from tests.codec_laws import VECTORS, CodecLaws, DigestLaws, check_pack
from tests.kernels import interpreter
from tests.kernels.interpreter import Bits, Child, TritonTwin
from tests.reference import delta as reference
from tests.vectors.delta_v2 import weights

pytestmark = pytest.mark.timeout(600)

EDGES = (0, 1, 31, 32, 33, 1_023, 1_025)


@pytest.fixture(scope="module")
def twin(child: Child) -> TritonTwin:
    return TritonTwin(child)


class TestTriton(CodecLaws):
    """The Triton codec."""

    cases = (
        *(Case(BLOCK, count, 0.5, 0.3, width=width) for count in EDGES for width in (8, 16, 32)),
        *(Case(BLOCK, 401, density, wild) for density, wild in ((0, 0), (0.1, 1), (1, 0), (1, 1))),
        *(Case(BLOCK, BLOCK + by, density) for by, density in ((-1, 0.01), (0, 0.3), (1, 1))),
        Case(65_536, 65_536 + 5, 0.004),
        Case(BLOCK, 399, is_special=True),
        Case(BLOCK, 401, is_special=True, width=32),
    )
    topk_cases = (Case(BLOCK, 700, 0.5, 0.5), Case(BLOCK, 399, is_special=True))
    budgets = (0, 1, 200, 1 << 40)
    boxes = tuple(box for box in BOXES if box.name in {"rows_of_five", "four_permuted"})
    # Every third vector: all kinds of blocks are among them.
    packs = tuple(VECTORS["packs"][::3])


class TestTritonDigest(DigestLaws):
    """Digests of parts, by the same kernels."""


def test_blocks_of_all_kinds_are_the_reference(twin: TritonTwin) -> None:
    parts = [answer(Case(BLOCK, BLOCK, density, 0.1)) for density in (0.02, 0, 1, 0.5)]
    old = np.concatenate([part.old for part in parts])
    new = np.concatenate([part.new for part in parts])
    new[2 * BLOCK : 3 * BLOCK] = ~old[2 * BLOCK : 3 * BLOCK] * 3
    shadow = old.copy()
    want = reference.pack(new, old.copy(), block_elements=BLOCK)
    assert [entry & 15 for entry in want.entries] == [
        reference.GAP,
        reference.EMPTY,
        reference.RAW,
        reference.BITMAP,
    ]
    delta, digest = twin.pack(new, shadow, block_elements=BLOCK)
    assert (delta, digest) == (want, reference.digest(new))
    assert twin.unpack(want, old) == (*reference.topk_unpack(want, old), None)
    assert twin.apply(want, old) is None
    assert np.array_equal(old, new)


def test_blocks_may_lie_in_any_order(child: Child) -> None:
    want = answer(Case(BLOCK, 2 * BLOCK + 100, 0.002))
    ends = np.cumsum([0, *(entry >> 44 for entry in want.delta.entries)]).tolist()
    blocks = [want.delta.payload[first:last] for first, last in pairwise(ends)]
    arena = [word for block in reversed(blocks) for word in block]
    offsets = [len(arena) - last for last in ends[1:]]
    after = child.run(
        interpreter.applied, want.old, want.delta.entries, offsets, arena, block_elements=BLOCK
    )
    assert np.array_equal(after, want.new)


@pytest.mark.parametrize("count", [BLOCK, BLOCK + 1, 2 * BLOCK + 9])
def test_array_in_several_parts_has_the_bits_of_the_whole(
    twin: TritonTwin, child: Child, count: int
) -> None:
    case = Case(BLOCK, count, 0.002, 0.9)
    elements = child.run(interpreter.set_part_elements, BLOCK)
    try:
        check_pack(twin, answer(case), case)
        CodecLaws().test_apply_and_undo_are_the_reference(twin, case)
        CodecLaws().test_unpack_is_the_reference(twin, case)
        check_pack(twin, answer(case, 0x3C00), case, threshold=0x3C00)
    finally:
        child.run(interpreter.set_part_elements, elements)


def left_by_a_pack_that_fails(new: Bits, old: Bits, ages: Bits) -> tuple[Bits, Bits]:
    """Pack by age in the child, without memory for the last step."""
    import torch

    from rose.kernels import triton_codec

    def no_memory(_: Any) -> Any:
        raise MemoryError

    found, triton_codec.on_host = triton_codec.on_host, no_memory
    try:
        fresh, shadow, aged = (
            torch.from_numpy(one.view(f"i{one.itemsize}")) for one in (new, old, ages)
        )
        triton_codec.TritonCodec().delta_pack(
            [fresh],
            [shadow],
            block_elements=65_536,
            base_digests=[None],
            threshold=0x3C00,
            ages=aged,
        )
    except MemoryError:
        return old, ages
    finally:
        triton_codec.on_host = found
    raise AssertionError


def test_pack_that_fails_changes_nothing(child: Child) -> None:
    new, old = weights(np.random.default_rng(6), 400)
    ages = (np.arange(400) % 256).astype(np.uint8)
    shadow, left = child.run(left_by_a_pack_that_fails, new, old, ages)
    assert np.array_equal(shadow, old)
    assert np.array_equal(left, ages)


def verified(new: Bits, old: Bits) -> tuple[bool, Bits, Bits]:
    """Apply in the child with `verify`, to the base of a delta and to other weights."""
    import torch

    from rose.errors import CorruptData
    from rose.kernels.triton_codec import TritonCodec
    from rose.transfer import delta_pack

    def tensor(bits: Bits) -> Any:
        return torch.from_numpy(bits.view(f"i{bits.itemsize}"))

    codec, delta = TritonCodec(), delta_pack(new, old.copy())
    other, is_refused = old.copy(), False
    other[3] ^= 1
    try:
        codec.delta_apply([tensor(other)], [delta], ["w"], undo=False, verify=True)
    except CorruptData as error:
        is_refused = (
            str(error) == "w: the weights are not the base of the delta: nothing was changed"
        )
    held = old.copy()
    codec.delta_apply([tensor(held)], [delta], ["w"], undo=False, verify=True)
    return is_refused, other, held


def test_weights_of_another_version_are_refused(child: Child) -> None:
    new, old = weights(np.random.default_rng(6), 400)
    is_refused, other, held = child.run(verified, new, old)
    assert is_refused
    assert np.flatnonzero(other != old).tolist() == [3]
    assert np.array_equal(held, new)
