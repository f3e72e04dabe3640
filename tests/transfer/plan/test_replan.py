"""Somebody comes or goes: the tiles of a plan from nothing, and nobody moves without a reason."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer.plan import Relay, Replica, ShardMap, Source, make_plan, replan
from tests.reference.plan import elements_of, least_load
from tests.transfer.plan.models import Model, flattened, sharded
from tests.transfer.plan.random_maps import shard_maps, specs
from tests.transfer.plan.test_coverage import map_of, piece
from tests.transfer.plan.test_plan import check_carried, check_tiles

MODEL = Model(layers=1)
COPIES = map_of(*(piece("v", (0,), (60,), rank=rank) for rank in range(3)), v=(60,))
RELAYS = [Relay("e1", "east"), Relay("e2", "east"), Relay("w1", "west")]
TP2 = Replica("tp2", "east", sharded(MODEL, tp=2).shards)
TP4 = Replica("tp4", "west", sharded(MODEL, tp=4).shards)
FSDP = Replica("fsdp", "west", flattened(MODEL, world=3).shards)
SOURCE = Source("home", sharded(MODEL, tp=4).shards)


def keys(plan):
    return [(tile.tensor, tile.region) for tile in plan.tiles]


def ways(plan):
    return {
        (tile.tensor, tile.region): (tile.contributor, tile.landings, tile.receivers)
        for tile in plan.tiles
    }


def check_replanned(before, after, fresh, *, gone=frozenset()):
    """Compare with the plan before, and with one made from nothing."""
    plan = after.plan
    assert plan.layout_id == fresh.layout_id
    assert (plan.sources, plan.relays) == (fresh.sources, fresh.relays)
    assert {one.name for one in plan.replicas} == {one.name for one in fresh.replicas}
    for tile, other in zip(plan.tiles, fresh.tiles, strict=True):
        assert (tile.landings, tile.receivers) == (other.landings, other.receivers)
    old = {(tile.tensor, tile.region): tile for tile in before.tiles}
    for tile in plan.tiles:
        was = old.get((tile.tensor, tile.region))
        if was is None:
            assert after.origins[tile.index] == meeting(before, tile)
            continue
        assert tile.index not in after.origins
        if was.contributor not in gone:
            assert tile.contributor == was.contributor
    changed = [
        tile.index
        for tile in plan.tiles
        if ways(before).get(keys(plan)[tile.index])
        not in (None, ways(plan)[keys(plan)[tile.index]])
    ]
    assert list(after.rerouted) == changed


def meeting(before, tile):
    elements = set(elements_of(tile.region))
    return tuple(
        old.index
        for old in before.tiles
        if old.tensor == tile.tensor and not elements.isdisjoint(elements_of(old.region))
    )


def test_a_relay_that_leaves_moves_its_tiles_only():
    before = make_plan(SOURCE, [TP2, TP4], RELAYS, tile_elements=16)
    after = replan(before, left=["e1"])
    check_replanned(before, after, make_plan(SOURCE, [TP2, TP4], RELAYS[1:], tile_elements=16))
    landed = {landing.relay for tile in before.tiles for landing in tile.landings}
    assert landed == {"e1", "e2", "w1"}
    moved = [
        tile.index
        for tile in before.tiles
        if any(landing.relay == "e1" for landing in tile.landings)
    ]
    assert list(after.rerouted) == moved
    assert not after.origins
    assert after.plan.sources is before.sources  # no map was looked at again


def test_a_relay_that_joins_takes_its_share_and_nothing_else_moves():
    before = make_plan(SOURCE, [TP2, TP4], RELAYS[1:], tile_elements=16)
    after = replan(before, joined=[RELAYS[0]])
    fresh = make_plan(SOURCE, [TP2, TP4], [*RELAYS[1:], RELAYS[0]], tile_elements=16)
    check_replanned(before, after, fresh)
    assert 0 < len(after.rerouted) < len(after.plan.tiles)
    for index in after.rerouted:
        assert "e1" in {landing.relay for landing in after.plan.tiles[index].landings}


def test_a_replica_of_a_layout_that_is_there_needs_no_new_digest():
    twin = replace(TP4, name="twin", cluster="east")
    before = make_plan(SOURCE, [TP2, TP4], RELAYS)
    after = replan(before, joined=[twin])
    check_replanned(before, after, make_plan(SOURCE, [TP2, TP4, twin], RELAYS))
    assert after.plan.layout_id == before.layout_id
    assert not after.origins
    back = replan(after.plan, left=["twin"])
    assert back.plan == before


def test_a_replica_of_another_layout_says_which_tiles_are_new_and_where_they_come_from():
    before = make_plan(SOURCE, [TP2], RELAYS)
    after = replan(before, joined=[FSDP])
    check_replanned(before, after, make_plan(SOURCE, [TP2, FSDP], RELAYS))
    assert after.origins
    assert len(after.origins) < len(after.plan.tiles)
    check_tiles(after.plan)
    check_carried(after.plan, SOURCE.shards)


def test_a_source_rank_that_leaves_hands_its_tiles_to_those_that_hold_them():
    before = make_plan(Source("home", COPIES), [], tile_elements=2)
    after = replan(before, left=[1])
    alone = replace(COPIES, pieces=(COPIES.pieces[0], COPIES.pieces[2]))
    fresh = make_plan(Source("home", alone), [], tile_elements=2)
    check_replanned(before, after, fresh, gone={1})
    assert after.rerouted == before.contributes(1)
    assert [len(after.plan.contributes(rank)) for rank in range(3)] == [15, 0, 15]


def test_what_only_one_rank_held_cannot_be_lost():
    before = make_plan(SOURCE, [TP2], RELAYS)
    with pytest.raises(InvalidArgument, match="no rank of the source holds"):
        replan(before, left=[3])


def test_source_ranks_that_join_can_follow_those_that_leave():
    four = COPIES.pieces[0]
    more = ShardMap(COPIES.tensors, (replace(four, rank=7),), {})
    before = make_plan(Source("home", COPIES), [], tile_elements=2)
    joined = replan(before, joined=[more])
    assert not joined.rerouted  # nobody moves only because there is more room
    after = replan(joined.plan, left=[0])
    assert after.rerouted == before.contributes(0)
    assert [len(after.plan.contributes(rank)) for rank in (1, 2, 7)] == [10, 10, 10]


def test_a_source_rank_may_join_under_a_tied_name():
    tied = map_of(piece("v", (0,), (4,)), piece("w", (0,), (4,)), v=(4,), w=(4,))
    before = make_plan(Source("home", tied), [])
    one = map_of(piece("w", (0,), (4,), rank=1), w=(4,))
    after = replan(before, joined=[one], left=[0])
    assert [(tile.tensor, tile.contributor) for tile in after.plan.tiles] == [("v", 1)]


@pytest.mark.parametrize(
    ("joined", "left", "says"),
    [
        ([], ["x"], "x cannot leave, as the plan does not have it"),
        ([], [9], "rank 9 of the source cannot leave"),
        ([TP2], [], "two replicas or relays have the name tp2"),
        ([SOURCE.shards], [], "rank 0 of the source is there already"),
        ([map_of(piece("v", (0,), (1,), rank=9), v=(1,))], [], "has another v than the source"),
    ],
)
def test_who_cannot_come_or_go_is_refused(joined, left, says):
    plan = make_plan(SOURCE, [TP2], RELAYS)
    with pytest.raises(InvalidArgument, match=says):
        replan(plan, joined=joined, left=left)


@st.composite
def changes(draw):
    tensors = draw(specs())
    source = Source("home", draw(shard_maps(tensors)))
    clusters = st.sampled_from(["home", "east", "west"])
    replicas = [
        Replica(f"r{at}", draw(clusters), draw(shard_maps(tensors, is_source=False)))
        for at in range(3)
    ]
    cut = draw(st.integers(1, 3))
    leaving = draw(st.sets(st.sampled_from([one.name for one in replicas[:cut]] + ["e1", "w1"])))
    return source, replicas[:cut], replicas[cut:], leaving


@given(changes(), st.integers(1, 30))
def test_replanning_is_planning_from_nothing_up_to_balance(change, tile_elements):
    source, present, joining, leaving = change
    before = make_plan(source, present, RELAYS, tile_elements=tile_elements)
    after = replan(before, joined=joining, left=leaving)
    members = [one for one in [*present, *joining] if one.name not in leaving]
    relays = [one for one in RELAYS if one.name not in leaving]
    fresh = make_plan(source, members, relays, tile_elements=tile_elements)
    check_replanned(before, after, fresh)
    check_carried(after.plan, source.shards)


@given(st.permutations(range(9)), st.integers(1, 3))
def test_tiles_that_must_move_are_balanced_with_those_that_stay(order, copies):
    """The largest load is at most the least possible with settled tiles, and one tile."""
    held = [[rank for rank in range(3) if (order[at] + rank) % 3 < copies] for at in range(9)]
    held = [[*ranks, 9] for ranks in held]
    pieces = [
        piece("v", (at,), (1,), at, rank=rank) for at, ranks in enumerate(held) for rank in ranks
    ]
    before = make_plan(Source("home", map_of(*pieces, v=(9,))), [])
    after = replan(before, left=[9]).plan
    settled = dict.fromkeys(range(3), 0)
    free = []
    for tile, was in zip(after.tiles, before.tiles, strict=True):
        if was.contributor == 9:
            free.append(tuple(held[tile.region.offset[0]][:-1]))
        else:
            settled[was.contributor] += 1
    most = max(len(after.contributes(rank)) for rank in range(3))
    assert most <= least_load(free, [1] * len(free), settled) + 1
