"""Megatron's ranks: each element is where cutting and fusing the arrays puts it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.shards.megatron import MegatronModel, megatron_layout
from rose.errors import InvalidArgument
from tests.reference.megatron import ranks_of


@st.composite
def models(draw) -> MegatronModel:
    tp, ep = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    kv_heads = tp * draw(st.integers(1, 2))
    experts = ep * draw(st.integers(1, 3)) if ep > 1 or draw(st.booleans()) else 0
    return MegatronModel(
        stage_layers=tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))),
        hidden=draw(st.integers(1, 5)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head=draw(st.integers(1, 4)),
        ffn=tp * draw(st.integers(1, 3)),
        vocabulary=draw(st.integers(1, 20)),
        experts=experts,
        tp=tp,
        ep=ep,
        vocabulary_multiple=draw(st.integers(1, 4)),
        is_tied=draw(st.booleans()),
        has_qkv_bias=draw(st.booleans()),
        has_qk_norm=draw(st.booleans()),
        are_experts_stacked=draw(st.booleans()),
    )


@given(models())
def test_every_element_is_where_cutting_and_fusing_puts_it(model) -> None:
    layout = megatron_layout(model)
    tensors, count = {}, 1  # 0 is what no piece covers
    for name, spec in layout.shards.tensors.items():
        size = int(np.prod(spec.shape))
        tensors[name] = np.arange(count, count + size).reshape(spec.shape)
        count += size
    expected = ranks_of(model, tensors)
    places = {place: np.zeros(size, np.int64) for place, size in layout.storages.items()}
    for piece in layout.shards.pieces:
        region, view = piece.region, piece.view
        ends = zip(region.offset, region.shape, strict=True)
        row = places[piece.rank, view.parameter][view.offset :]
        to = np.lib.stride_tricks.as_strided(row, region.shape, [8 * one for one in view.strides])
        assert not to.any()
        to[...] = tensors[piece.tensor][tuple(slice(at, at + n) for at, n in ends)]
    assert places.keys() == {(rank, name) for rank, held in enumerate(expected) for name in held}
    for (rank, name), row in places.items():
        assert row.tolist() == expected[rank][name].flatten().tolist(), (rank, name)
        assert np.count_nonzero(row == 0) == layout.padding.get((rank, name), 0)
    assert layout.padding.keys() <= layout.storages.keys()


def test_a_rank_may_hold_rows_of_no_token_only() -> None:
    sizes = {"hidden": 3, "heads": 4, "kv_heads": 4, "head": 2, "ffn": 4, "vocabulary": 5}
    model = MegatronModel(stage_layers=(1,), tp=4, vocabulary_multiple=2, is_tied=True, **sizes)
    layout = megatron_layout(model)
    name = "embedding.word_embeddings.weight"
    assert model.padded_vocabulary == 8
    assert layout.padding == {(2, name): 3, (3, name): 6}
    held = [one.rank for one in layout.shards.pieces if one.view.parameter == name]
    assert held == [0, 1, 2]
    assert not layout.shards.computed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 3}, "heads must be a multiple of kv_heads, got 3 and 2"),
        ({"tp": 4}, "kv_heads must be a multiple of tp, got 2 and 4"),
        ({"ffn": 3}, "ffn must be a multiple of tp, got 3 and 2"),
        ({"experts": 3, "ep": 2}, "experts must be a multiple of ep, got 3 and 2"),
        ({"ep": 2}, "ep must be 1 for a dense model"),
        ({"stage_layers": ()}, "at least one count"),
        ({"tp": 0}, "kv_heads must be a multiple of tp, got 2 and 0"),
    ],
)
def test_model_that_cannot_be_spread_is_refused(change, words) -> None:
    sizes = {"hidden": 3, "heads": 4, "kv_heads": 2, "head": 2, "ffn": 4, "vocabulary": 5}
    with pytest.raises(InvalidArgument, match=words):
        MegatronModel(**({"stage_layers": (1,), "tp": 2, **sizes} | change))
