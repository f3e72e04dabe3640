"""Merging two deltas, and deltas that cannot be merged."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply, delta_pack
from rose.transfer.codec.operations import delta_merge, digest
from tests.reference import delta as reference
from tests.transfer.twins import DENSE, WIDTHS, Bits, as_model, same
from tests.vectors.delta_v2 import changed


@st.composite
def chains(draw: st.DrawFn) -> list[Bits]:
    """Draw four versions of one array; some changes of a step are taken back by the next."""
    width = draw(st.sampled_from(WIDTHS))
    count = draw(st.sampled_from([0, 1, 33, 1021, DENSE + 5]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    chain = [changed(rng, count, density=0.0, steps=0.0, width=width)[1]]
    for _ in range(3):
        density = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0]))
        new, old = changed(rng, count, density=density, steps=0.8, width=width)
        following = chain[-1] + (new - old)
        back = rng.random(count) < 0.3
        following[back] = chain[-2 if len(chain) > 1 else -1][back]
        chain.append(following.astype(old.dtype))
    return chain


def deltas_of(chain: list[Bits]) -> list[Delta]:
    shadow = chain[0].copy()
    return [delta_pack(new, shadow, block_elements=DENSE) for new in chain[1:]]


@given(chains())
def test_merge_has_the_effect_of_both_deltas(chain: list[Bits]) -> None:
    first, second, _ = deltas_of(chain)
    merged = delta_merge(first, second)
    held = chain[0].copy()
    delta_apply(held, merged, verify=True)
    assert held.tolist() == chain[2].tolist()
    assert digest(held) == merged.digest
    delta_apply(held, merged, undo=True, verify=True)
    assert held.tolist() == chain[0].tolist()
    # The same as a pack of both steps at once, and as the reference says.
    assert same(merged, delta_pack(chain[2], chain[0].copy(), block_elements=DENSE))
    model = reference.merge(as_model(first), as_model(second))
    assert merged.entries.tolist() == model.entries
    assert merged.payload.tolist() == model.payload


def test_deltas_that_do_not_follow_are_refused() -> None:
    rng = np.random.default_rng(3)
    new, old = changed(rng, 100, density=0.1, steps=0.8)
    first, second = delta_pack(new, old.copy()), delta_pack(old, new.copy())
    with pytest.raises(CorruptData, match="second delta is not the result of the first"):
        delta_merge(first, first)  # replayed
    with pytest.raises(CorruptData, match="second delta is not the result of the first"):
        delta_merge(second, replace(first, base_digest=(1, 2)))
    fewer = replace(delta_pack(old[:9], new[:9].copy()), base_digest=first.digest)
    with pytest.raises(InvalidArgument, match="100 elements of 16 bits, the second 9 of 16"):
        delta_merge(first, fewer)
    dense = delta_pack(old, new.copy(), block_elements=DENSE)
    with pytest.raises(InvalidArgument, match="blocks of 65536 elements, the second of 16384"):
        delta_merge(first, dense)
