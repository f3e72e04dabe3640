"""Geometries and the choice of a slab size, against plain search."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rose.errors import InvalidArgument
from rose.memory import KVGeometry, Layout, choose_slab_bytes
from rose.units import MIB

GEOMETRIES = st.builds(
    lambda layers, tokens, each, layout: KVGeometry(layers, tokens, layers * each, layout),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from(Layout),
)


def test_attention_keeps_k_and_v_of_every_layer() -> None:
    llama_8b = KVGeometry.from_attention(
        layers=32, kv_heads=8, head_dim=128, dtype_bytes=2, block_tokens=16
    )
    assert llama_8b.bytes_per_token == 128 << 10
    assert llama_8b.block_bytes == 2 * MIB
    assert llama_8b.layer_block_bytes == 64 << 10
    assert llama_8b.blocks_per_slab(32 * MIB) == 16
    assert llama_8b.waste(32 * MIB) == 0


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2)])
def test_blocks_are_whole(tokens: int, blocks: int) -> None:
    assert KVGeometry(1, 16, 64).blocks_for(tokens) == blocks


@given(geometry=GEOMETRIES, slab_bytes=st.integers(1, 3000), slab=st.integers(0, 12))
def test_every_slab_holds_the_blocks_that_are_promised(
    geometry: KVGeometry, slab_bytes: int, slab: int
) -> None:
    promised = geometry.blocks_per_slab(slab_bytes)
    first = -(-slab * slab_bytes // geometry.id_bytes)
    skew = first * geometry.id_bytes - slab * slab_bytes
    fits = max(0, slab_bytes - skew) // geometry.block_bytes
    assert promised <= fits <= promised + 1
    assert 0 <= geometry.waste(slab_bytes) <= 1


@given(geometries=st.lists(GEOMETRIES, min_size=1, max_size=3), page=st.integers(1, 300))
def test_chosen_size_is_the_smallest_that_suits_all(
    geometries: list[KVGeometry], page: int
) -> None:
    at_most = 40 * page
    suits = [
        size
        for size in range(page, at_most + 1, page)
        if max(one.waste(size) for one in geometries) <= 0.0625
        and min(one.blocks_per_slab(size) for one in geometries) >= 2
    ]
    if suits:
        assert choose_slab_bytes(*geometries, page_bytes=page, at_most=at_most) == suits[0]
    else:
        with pytest.raises(InvalidArgument, match="no slab of up to"):
            choose_slab_bytes(*geometries, page_bytes=page, at_most=at_most)


def test_refusal_names_the_geometry_and_its_waste() -> None:
    fine, coarse = KVGeometry(1, 1, 1), KVGeometry(1, 1, 600 << 10)
    with pytest.raises(InvalidArgument, match=r"bytes_per_token=614400.* at least 41\.4%"):
        choose_slab_bytes(fine, coarse, page_bytes=2 * MIB, at_most=2 * MIB)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (3, 1, 4)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument):
        KVGeometry(*sizes)
