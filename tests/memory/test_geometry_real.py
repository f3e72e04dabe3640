"""Geometries of real models: their sizes, their slabs, and that no cell of KV touches another."""

from dataclasses import replace
from itertools import combinations_with_replacement

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rose._core import Arbiter
from rose.errors import InvalidArgument
from rose.memory import KVGeometry, KVSpace, choose_slab_bytes
from rose.memory.geometry import NULL_BLOCKS_MIN, shard_heads
from rose.memory.model_shape import KVDtype, ModelShape
from rose.memory.presets import find_model, preset_names
from rose.units import KIB, MIB

BF16, FP8, FP8_SCALED = KVDtype(2), KVDtype(1), KVDtype(1, head_scale_bytes=4)
SLABS_EACH = 2


def geometries(model: str, *, kv: KVDtype = BF16, tokens: int = 16, tp: int = 1):
    return [one.geometry for one in find_model(model).groups(block_tokens=tokens, kv=kv, tp=tp)]


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "kv", "tp", "bytes_per_token"),
    [
        ("Llama-3.1-8B", BF16, 1, [128 * KIB]),
        ("Llama-3.1-70B", BF16, 8, [40 * KIB]),
        ("Llama-3.1-70B", BF16, 16, [40 * KIB]),  # eight heads: each on two devices
        ("Qwen2.5-7B", FP8, 1, [28 * KIB]),
        ("Qwen3-8B", FP8_SCALED, 1, [2 * 36 * 8 * (128 + 4)]),
        ("DeepSeek-V3", BF16, 1, [61 * 576 * 2]),
        ("DeepSeek-V3", BF16, 8, [61 * 576 * 2]),  # every device keeps the whole latent
        ("DeepSeek-V3", FP8_SCALED, 1, [61 * 576]),  # the latent has no heads, and no scales
        ("gemma-3-1b", BF16, 1, [22 * KIB, 4 * KIB]),
    ],
)
def test_bytes_of_a_token_are_those_of_one_device(model, kv, tp, bytes_per_token) -> None:
    found = [one.bytes_per_token for one in geometries(model, kv=kv, tp=tp)]
    assert found == bytes_per_token


def test_latent_may_keep_its_keys_wider_and_scales_beside_them() -> None:
    # 512 elements of FP8 with four float32 scales, and 64 of bf16: 656 bytes.
    latent = KVGeometry.from_latent(
        layers=61,
        latent_dim=512,
        rope_dim=64,
        dtype_bytes=1,
        rope_dtype_bytes=2,
        scale_bytes=16,
        block_tokens=64,
    )
    assert latent.layer_block_bytes == 64 * 656


@given(kv_heads=st.integers(1, 128), tp=st.integers(1, 128))
def test_every_head_is_on_as_many_devices_as_any_other(kv_heads: int, tp: int) -> None:
    try:
        each = shard_heads(kv_heads, tp)
    except InvalidArgument:
        assert kv_heads % tp != 0
        assert tp % kv_heads != 0
        return
    assert each >= 1
    assert each * tp % kv_heads == 0
    assert each == 1 or each * tp == kv_heads


@pytest.mark.parametrize(("kv_heads", "tp"), [(8, 3), (8, 12), (8, 0), (8, -1)])
def test_heads_that_cannot_be_shared_out_are_refused(kv_heads: int, tp: int) -> None:
    with pytest.raises(InvalidArgument, match="cannot be divided among"):
        shard_heads(kv_heads, tp)


# --- slabs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [BF16, FP8], ids=["bf16", "fp8"])
def test_every_pair_of_presets_has_a_slab_that_wastes_little(kv: KVDtype) -> None:
    for pair in combinations_with_replacement(preset_names(), 2):
        groups = [one for model in pair for one in geometries(model, kv=kv)]
        slab_bytes = choose_slab_bytes(*groups)
        assert slab_bytes % (2 * MIB) == 0
        assert max(one.waste(slab_bytes) for one in groups) <= 0.0625, pair
        assert min(one.blocks_per_slab(slab_bytes) for one in groups) >= NULL_BLOCKS_MIN, pair


# --- addresses ------------------------------------------------------------------------------------


def spaces_of(models: list[ModelShape], *, kv: KVDtype, tokens: int, page_bytes: int):
    """Return a space for each attention group of each model, over one small pool they fill."""
    groups = [one for model in models for one in model.groups(block_tokens=tokens, kv=kv)]
    arbiter = Arbiter.create(
        slab_bytes=choose_slab_bytes(*(one.geometry for one in groups), page_bytes=page_bytes),
        slab_count=SLABS_EACH * len(groups),
        header_slabs=len(groups),
    )
    spaces = []
    for header, group in enumerate(groups):
        partition = arbiter.add_partition(
            f"{header}", reserve_slabs=0, limit_slabs=arbiter.slab_count
        )
        spaces.append(KVSpace(arbiter, partition, group.geometry, header_index=header))
    for _ in range(SLABS_EACH):  # in turns, so that neighbours have different owners
        for space in spaces:
            assert len(arbiter.take(space.partition, 1)) == 1
    return arbiter, spaces


def check_cells(arbiter: Arbiter, spaces: list[KVSpace]) -> None:
    """Write a number of its own into each (block, layer) cell; then find it in all of them."""
    cells = []
    for space in spaces:
        ids = [*space.null_blocks, *space.allocator.alloc(space.allocator.free_blocks)]
        assert len(ids) >= (1 + SLABS_EACH) * space.blocks_per_slab
        cells += [(view, row) for view in space.views(np.uint32) for row in ids]
    for number, (view, row) in enumerate(cells, start=1):
        view[row] = number
    for number, (view, row) in enumerate(cells, start=1):
        assert (view[row] == number).all(), (number, row)
    used = sum(view[row].nbytes for view, row in cells)
    pool = arbiter.pool_view().view(np.uint32)
    assert 4 * np.count_nonzero(pool) == used  # nothing was written outside the cells


def few_layers(model: str, layers: int) -> ModelShape:
    """Return the model with the kinds of its last layers; what a layer keeps stays as it is."""
    shape = find_model(model)
    return replace(shape, layers=layers, windows=shape.windows[-layers:])


@given(
    pair=st.tuples(st.sampled_from(preset_names()), st.sampled_from(preset_names())),
    layers=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    kv=st.sampled_from([BF16, FP8, FP8_SCALED]),
    tokens=st.sampled_from([16, 32]),
    page_kib=st.sampled_from([4, 12, 64, 100]),
)
def test_no_cell_of_a_model_touches_another(pair, layers, kv, tokens, page_kib) -> None:
    models = [few_layers(model, count) for model, count in zip(pair, layers, strict=True)]
    check_cells(*spaces_of(models, kv=kv, tokens=tokens, page_bytes=page_kib * KIB))
