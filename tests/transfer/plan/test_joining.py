"""Each part of a trainer's weights has one holder, whichever engines the plan is for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.shards.placements import Replicate, Shard, StridedShard, pieces_of_placements
from rose.errors import InvalidArgument
from rose.transfer.plan import (
    LocalView,
    Piece,
    Region,
    Replica,
    ShardMap,
    TensorSpec,
    make_plan,
    one_holder_each,
)
from rose.transfer.plan.files import places_from_json, places_to_json


def mapped(shape: tuple[int, ...], mesh: tuple[int, ...], placements: list) -> ShardMap:
    pieces = pieces_of_placements("w", shape, mesh, placements)
    return ShardMap({"w": TensorSpec("w", shape, "bfloat16")}, pieces, {})


@st.composite
def shards(draw: st.DrawFn, shape: tuple[int, ...]) -> ShardMap:
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    dims = st.integers(0, len(shape) - 1)
    one = st.one_of(
        st.just(Replicate()), st.builds(Shard, dims), st.builds(StridedShard, dims, st.just(2))
    )
    return mapped(shape, mesh, [draw(one) for _ in mesh])


@given(trainer=shards((7, 6)), engine=shards((7, 6)))
def test_an_element_has_the_same_sender_in_every_plan(trainer: ShardMap, engine: ShardMap) -> None:
    source = one_holder_each(trainer, cluster="trainer")
    senders = []
    for replicas in ([], [Replica("engine", "engines", engine)]):
        plan = make_plan(source, replicas, tile_elements=8)
        senders.append(
            {
                (row, column): tile.contributor
                for tile in plan.tiles
                for row in range(
                    tile.region.offset[0], tile.region.offset[0] + tile.region.shape[0]
                )
                for column in range(
                    tile.region.offset[1], tile.region.offset[1] + tile.region.shape[1]
                )
            }
        )
        for rank in trainer.ranks:
            places = plan.sent_from(rank)
            file = places_from_json(places_to_json(plan, places), what="x")
            assert (file.places, file.cut) == (places, plan.cut)
    assert senders[0] == senders[1]
    assert len(senders[0]) == 42


def test_replicas_share_the_work() -> None:
    copied = mapped((8, 8), (4,), [Replicate()])
    names = {f"w{at}": TensorSpec(f"w{at}", (8, 8), "bfloat16") for at in range(8)}
    pieces = tuple(
        Piece(name, one.region, one.rank, LocalView(name, 0, one.view.strides))
        for name in names
        for one in copied.pieces
    )
    plan = make_plan(one_holder_each(ShardMap(names, pieces, {}), cluster="trainer"), [])
    assert [len(plan.contributes(rank)) for rank in range(4)] == [2, 2, 2, 2]


def test_parts_that_overlap_are_refused() -> None:
    views = [LocalView("w", 0, (1,)), LocalView("w", 0, (1,))]
    pieces = (
        Piece("w", Region((0,), (6,)), 0, views[0]),
        Piece("w", Region((4,), (4,)), 1, views[1]),
    )
    with pytest.raises(InvalidArgument, match="two ranks hold parts of w that overlap"):
        one_holder_each(ShardMap({"w": TensorSpec("w", (8,), "bfloat16")}, pieces, {}), cluster="t")
