"""A plan sends every element to all its receivers, and over each slow link once."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer.plan import (
    Places,
    Plan,
    RelayNode,
    Replica,
    ShardMap,
    SourceRanks,
    TensorSpec,
    make_plan,
)
from rose_lab.sim.plan_traffic import traffic
from tests.reference.plan import (
    elements_of,
    least_crossing,
    memory_of,
    numbers,
    transferred,
)
from tests.transfer.plan.models import Model, flattened, sharded
from tests.transfer.plan.random_maps import shard_maps, specs
from tests.transfer.plan.test_coverage import map_of, piece

DENSE = Model(ffn=32)
MOE = Model(hidden=8, experts=8, ffn=8, vocab=16)
TIED = replace(DENSE, is_tied=True)
RELAYS = [RelayNode("e1", "east"), RelayNode("e2", "east"), RelayNode("w1", "west")]


def replicas_of(model):
    experts = 8 if model.experts else 1
    return [
        Replica("tp2", "east", sharded(model, tp=2).shards),
        Replica("tp8", "east", sharded(model, tp=8, ep=experts).shards),
        Replica("pp2", "west", sharded(model, tp=2, pp=2).shards),
        Replica("tp4", "west", sharded(model, tp=4).shards),
    ]


PAIRS = {
    "dense, TP4 PP2": (sharded(DENSE, tp=4, pp=2), replicas_of(DENSE)),
    "dense, FSDP": (flattened(DENSE, world=6), replicas_of(DENSE)),
    "experts, EP4": (sharded(MOE, tp=4, pp=2, ep=4), replicas_of(MOE)),
    "experts, FSDP": (flattened(MOE, world=3), replicas_of(MOE)),
    "tied": (sharded(TIED, tp=2), replicas_of(TIED)[:2]),
}


def plan_of(name, **more) -> Plan:
    made, replicas = PAIRS[name]
    return make_plan(SourceRanks("home", made.shards), replicas, RELAYS, **more)


def check_tiles(plan):
    """Every element that the source holds is in one tile, and nobody has a part of a tile."""
    seen = {name: [] for name in plan.sources.shards.tensors}
    for place, tile in enumerate(plan.tiles):
        assert tile.index == place
        assert tile.count <= plan.tile_elements
        seen[tile.tensor] += elements_of(tile.region)
    for name, spec in plan.sources.shards.tensors.items():
        assert len(seen[name]) == len(set(seen[name])) == prod(spec.shape)
    maps = [plan.sources.shards, *(replica.shards for replica in plan.replicas)]
    for shards in maps:
        check_whole_or_not_at_all(plan, shards)


def check_whole_or_not_at_all(plan, shards):
    held = {}
    for one in shards.pieces:
        held.setdefault(one.tensor, set()).add(frozenset(elements_of(one.region)))
    for tile in plan.tiles:
        elements = set(elements_of(tile.region))
        for region in held.get(tile.tensor, ()):
            assert elements <= region or elements.isdisjoint(region)


def check_carried(plan, source):
    """What arrives is what the maps say, element by element."""
    tensors = numbers(plan.sources.shards)
    sent = memory_of(plan.sources.shards, tensors)
    assert sent.keys() == memory_of(source, numbers(source)).keys()
    for replica in plan.replicas:
        wanted = memory_of(replica.shards, tensors)
        got = transferred(plan, sent, replica)
        assert wanted.keys() == got.keys()
        for storage, held in wanted.items():
            assert np.array_equal(held, got[storage])


@pytest.mark.parametrize("tile_elements", [7, 1 << 20])
@pytest.mark.parametrize("name", PAIRS)
def test_a_real_layout_arrives_in_every_other(name, tile_elements):
    plan = plan_of(name, tile_elements=tile_elements)
    check_tiles(plan)
    check_carried(plan, PAIRS[name][0].shards)


@st.composite
def random_members(draw):
    tensors = draw(specs())
    source = draw(shard_maps(tensors))
    replicas = [
        Replica(f"r{at}", draw(st.sampled_from(["home", "east", "west"])), shards)
        for at, shards in enumerate(
            draw(st.lists(shard_maps(tensors, is_source=False), max_size=3))
        )
    ]
    return source, replicas


@given(random_members(), st.integers(1, 30))
def test_any_layout_arrives_in_any_other_and_crosses_once(members, tile_elements):
    shards, replicas = members
    plan = make_plan(SourceRanks("home", shards), replicas, RELAYS, tile_elements=tile_elements)
    check_tiles(plan)
    check_carried(plan, shards)
    crossing = traffic(plan, [tile.nbytes for tile in plan.tiles]).crossing
    least = least_crossing("home", plan.replicas, lambda *_: 2)
    assert crossing == {link: nbytes for link, nbytes in least.items() if nbytes}


@pytest.mark.parametrize("name", PAIRS)
def test_bytes_on_links_are_the_least_whatever_each_element_takes(name):
    plan = plan_of(name, tile_elements=50)

    def bytes_of(tensor, element):
        return 1 + (len(tensor) + sum(element)) % 5

    sizes = [
        sum(bytes_of(tile.tensor, element) for element in elements_of(tile.region))
        for tile in plan.tiles
    ]
    assert traffic(plan, sizes).crossing == least_crossing("home", plan.replicas, bytes_of)


def test_every_byte_that_leaves_arrives():
    plan = plan_of("dense, TP4 PP2")
    moved = traffic(plan, [tile.nbytes for tile in plan.tiles])
    assert sum(moved.sent.values()) == sum(moved.crossing.values())
    assert sum(moved.relayed.values()) == sum(moved.received.values())
    held = {
        (replica.cluster, replica.name, rank): sum(
            2 * one.region.count for one in replica.shards.pieces if one.rank == rank
        )
        for replica in plan.replicas
        for rank in replica.shards.ranks
    }
    received = {
        (one.cluster, one.replica, one.rank): nbytes for one, nbytes in moved.received.items()
    }
    assert received == held


def test_without_relays_a_tile_crosses_for_each_receiver():
    made, replicas = PAIRS["dense, TP4 PP2"]
    plan = make_plan(SourceRanks("home", made.shards), replicas)
    moved = traffic(plan, [1] * len(plan.tiles))
    assert sum(moved.crossing.values()) == sum(len(tile.receivers) for tile in plan.tiles)
    assert not moved.relayed


def test_replicas_beside_the_trainer_cross_no_link():
    made, replicas = PAIRS["dense, TP4 PP2"]
    here = [replace(replica, cluster="home") for replica in replicas]
    for relays in ([], [RelayNode("h", "home")]):
        plan = make_plan(SourceRanks("home", made.shards), here, relays)
        moved = traffic(plan, [1] * len(plan.tiles))
        assert not moved.crossing
        copies = sum(len(tile.receivers) for tile in plan.tiles)
        assert moved.fan_out["home"] == copies + (len(plan.tiles) if relays else 0)


def test_sizes_of_other_tiles_are_refused():
    with pytest.raises(InvalidArgument, match="sizes, got 1"):
        traffic(plan_of("tied"), [1])


def test_contributors_are_balanced_by_how_often_they_send_a_tile():
    copies = [piece("v", (0,), (3,), rank=rank) for rank in range(2)]
    all_of_it = Replica("a", "east", map_of(piece("v", (0,), (3,)), v=(3,)))
    one = Replica("b", "west", map_of(piece("v", (0,), (1,)), v=(3,)))
    plan = make_plan(
        SourceRanks("home", map_of(*copies, v=(3,))), [all_of_it, one], RELAYS, tile_elements=1
    )
    assert traffic(plan, [1, 1, 1]).sent == {0: 2, 1: 2}
    assert [len(plan.contributes(rank)) for rank in range(3)] == [1, 2, 0]


def test_identity_tells_layouts_and_plans_apart():
    plan = plan_of("dense, TP4 PP2")
    again = plan_of("dense, TP4 PP2")
    assert (plan.layout_id, plan.plan_id) == (again.layout_id, again.plan_id)
    assert len(plan.layout_id) == len(plan.plan_id) == 64
    made, replicas = PAIRS["dense, TP4 PP2"]
    away = make_plan(SourceRanks("home", made.shards), replicas, RELAYS[:2])
    assert away.layout_id == plan.layout_id
    assert away.plan_id != plan.plan_id
    others = [
        plan_of("dense, TP4 PP2", tile_elements=20),
        plan_of("dense, FSDP"),
        make_plan(SourceRanks("home", sharded(DENSE).shards), []),
        make_plan(SourceRanks("home", sharded(replace(DENSE, dtype="float16")).shards), []),
    ]
    assert len({one.layout_id for one in [plan, *others]}) == 5


@pytest.mark.parametrize("field", ["contributor", "landings", "receivers"])
def test_every_part_of_a_way_is_part_of_the_identity(field):
    plan = plan_of("dense, TP4 PP2")
    tile = plan.tiles[0]
    other = {
        "contributor": tile.contributor + 1,
        "landings": (replace(tile.landings[0], relay="x"), *tile.landings[1:]),
        "receivers": (replace(tile.receivers[0], rank=9), *tile.receivers[1:]),
    }
    tile = replace(tile, **{field: other[field]})
    changed = replace(plan, tiles=(tile, *plan.tiles[1:]))
    assert changed.layout_id == plan.layout_id
    assert changed.plan_id != plan.plan_id


def test_plan_does_not_depend_on_the_order_of_tensors_and_pieces():
    made, replicas = PAIRS["experts, EP4"]
    plan = plan_of("experts, EP4")
    shards = made.shards
    names = dict(sorted(shards.tensors.items(), reverse=True))
    turned = ShardMap(names, shards.pieces[::-1], {})
    assert (
        make_plan(SourceRanks("home", turned), replicas[::-1], RELAYS[::-1]).plan_id == plan.plan_id
    )


@pytest.mark.parametrize(
    ("dtype", "tiles"), [("float8_e4m3fn", 4), ("bfloat16", 4), ("float32", 7)]
)
def test_plan_cuts_tiles_like_publishers_and_receivers(dtype, tiles):
    """A tile has at most 1 Mi elements and 2 MiB, so wide elements need more of them."""
    shape = (7, 1 << 19)
    plan = make_plan(
        SourceRanks("home", map_of(piece("v", (0, 0), shape), dtype=dtype, v=shape)), []
    )
    assert len(plan.cut) == tiles
    assert plan.cut.layout == plan.layout_id
    assert plan.cut.count == prod(shape)
    assert [tile.count for tile in plan.cut] == [tile.count for tile in plan.tiles]


def test_unsupported_dtype_is_refused():
    odd = ShardMap({"v": TensorSpec("v", (1,), "complex64")}, (piece("v", (0,), (1,)),), {})
    with pytest.raises(InvalidArgument, match="v has the dtype complex64: choose one of bool, "):
        make_plan(SourceRanks("home", odd), [])


HALF = map_of(piece("v", (0,), (4,)), v=(4,))
TWICE = map_of(piece("v", (0,), (4,)), piece("w", (0,), (4,), 4), v=(4,), w=(4,))
ONCE = map_of(piece("v", (0,), (4,)), piece("w", (0,), (4,)), v=(4,), w=(4,))


@pytest.mark.parametrize(
    ("source", "replica", "says"),
    [
        (HALF, TWICE, "replica r holds w, which the source does not have"),
        (HALF, map_of(piece("v", (0,), (5,)), v=(5,)), r"\(4,\) at the source and \(5,\) at rep"),
        (HALF, map_of(v=(4,)), None),
        (TWICE, ONCE, "w and v are one tensor at replica r and two at the source"),
        (
            HALF,
            map_of(piece("v", (0,), (4,)), dtype="float8_e4m3fn", v=(4,)),
            "float8_e4m3fn at replica r, which declares no conversion from bfloat16 to float8_",
        ),
        (
            replace(map_of(piece("v", (0,), (3,)), v=(4,)), computed={"v": "padded"}),
            HALF,
            r"replica r needs v\[3:4\], which no rank of the source holds: it is computed \(padded",
        ),
        (map_of(piece("v", (0,), (3,)), v=(4,)), HALF, r"no rank of the source holds v\[3:4\]"),
    ],
    ids=["tensor", "shape", "nothing", "ties", "dtype", "computed", "source"],
)
def test_replica_with_a_tensor_unknown_to_the_source_is_refused(source, replica, says):
    if says is None:
        assert (
            not make_plan(SourceRanks("home", source), [Replica("r", "c", replica)])
            .tiles[0]
            .receivers
        )
        return
    with pytest.raises(InvalidArgument, match=says):
        make_plan(SourceRanks("home", source), [Replica("r", "c", replica)])


def test_converting_replica_gets_the_dtype_of_the_source():
    narrow = map_of(piece("v", (0,), (4,)), dtype="float8_e4m3fn", v=(4,))
    converts = frozenset({("bfloat16", "float8_e4m3fn")})
    plan = make_plan(SourceRanks("home", HALF), [Replica("r", "c", narrow, converts)])
    assert plan.tiles[0].dtype == "bfloat16"
    assert len(plan.tiles[0].receivers) == 1


def test_names_tied_on_one_side_only_reach_both_places():
    plan = make_plan(SourceRanks("home", ONCE), [Replica("r", "c", TWICE)])
    assert [tile.tensor for tile in plan.tiles] == ["v"]
    assert [view.offset for view, _ in plan.places("r", 0)[0]] == [0, 4]


def test_replica_may_use_either_name_of_a_tied_tensor():
    only = map_of(piece("w", (0,), (4,)), w=(4,))
    plan = make_plan(SourceRanks("home", ONCE), [Replica("r", "c", only)])
    assert [len(tile.receivers) for tile in plan.tiles] == [1]
    late = make_plan(SourceRanks("home", only), [Replica("r", "c", ONCE)])
    assert [(tile.tensor, len(tile.receivers)) for tile in late.tiles] == [("w", 1)]


def test_copies_that_the_trainer_declares_equal_are_one_tensor():
    source = SourceRanks("home", TWICE, {"w": "v"})
    plan = make_plan(source, [Replica("r", "c", ONCE)])
    assert [(tile.tensor, len(tile.receivers)) for tile in plan.tiles] == [("v", 1)]
    other = replace(TWICE, tensors={**TWICE.tensors, "w": TensorSpec("w", (4,), "int16")})
    with pytest.raises(InvalidArgument, match="w and v are tied, but differ in shape or dtype"):
        make_plan(SourceRanks("home", other, {"w": "v"}), [])


def test_tile_held_twice_has_two_places():
    twice = map_of(piece("v", (0,), (4,)), piece("v", (0,), (4,), 10), v=(4,))
    plan = make_plan(SourceRanks("home", HALF), [Replica("r", "c", twice)], tile_elements=2)
    assert offsets(plan.places("r", 0)) == {0: [0, 10], 1: [2, 12]}
    assert plan.tiles_for("r", 0) == (0, 1)
    assert plan.tiles_for("r", 1) == ()
    assert offsets(plan.sent_from(0)) == {0: [0], 1: [2]}
    assert all(shape == (2,) for row in plan.places("r", 0).values() for _, shape in row)


def offsets(places: Places) -> dict[int, list[int]]:
    return {tile: [view.offset for view, _ in row] for tile, row in places.items()}


def test_members_of_one_name_and_unknown_ones_are_refused():
    replica = Replica("r", "c", HALF)
    with pytest.raises(InvalidArgument, match="two replicas or relays have the name r"):
        make_plan(SourceRanks("home", HALF), [replica], [RelayNode("r", "c")])
    with pytest.raises(InvalidArgument, match="the plan has no replica q"):
        make_plan(SourceRanks("home", HALF), [replica]).tiles_for("q", 0)
    for tile_elements in (0, (1 << 20) + 1):
        with pytest.raises(InvalidArgument, match="must be from 1 to 1048576"):
            make_plan(SourceRanks("home", HALF), [], tile_elements=tile_elements)
