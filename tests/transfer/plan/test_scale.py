"""Plans of real sizes: few tiles, no very small ones, and an even load."""

from collections import Counter

import pytest

from rose.transfer.plan import RelayNode, Replica, SourceRanks, check_coverage, make_plan
from rose.transfer.tiles import TILE_ELEMENTS
from tests.transfer.plan.models import Model, flattened, sharded

LLAMA_8B = Model(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256
)
DENSE_120B = Model(
    layers=88, hidden=12288, heads=96, kv_heads=8, head_dim=128, ffn=28672, vocab=32768
)
MOE_120B = Model(
    layers=36, hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, vocab=201088, experts=128
)


def check_plan(model, source, replicas, *, tiles_over_least, load_over_mean):
    """Plan for replicas in two clusters with two relays each."""
    members = [Replica(f"r{at}", f"c{at % 2}", made.shards) for at, made in enumerate(replicas)]
    relays = [RelayNode(f"relay {at}", f"c{at % 2}") for at in range(4)]
    plan = make_plan(SourceRanks("home", source.shards), members, relays)
    assert plan.cut.count == model.elements
    assert len(plan.tiles) <= tiles_over_least * model.elements / TILE_ELEMENTS
    crossing, sent = Counter(), Counter()
    for tile in plan.tiles:
        crossing.update({one.cluster: tile.nbytes for one in tile.landings})
        sent[tile.contributor] += tile.nbytes * len(tile.landings)
    assert set(crossing.values()) == {2 * model.elements}
    ranks = source.shards.ranks
    assert max(sent.values()) <= load_over_mean * sent.total() / len(ranks)
    for made in replicas:
        assert not check_coverage(made.shards, storages=made.storages).uncovered


def test_eight_billion_parameters_for_four_layouts_need_few_tiles():
    replicas = [
        sharded(LLAMA_8B),
        sharded(LLAMA_8B, tp=2),
        sharded(LLAMA_8B, tp=8),
        sharded(LLAMA_8B, tp=2, pp=2),
    ]
    source = sharded(LLAMA_8B, tp=4)
    check_plan(LLAMA_8B, source, replicas, tiles_over_least=1.12, load_over_mean=1.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "source", "replicas"),
    [
        (DENSE_120B, {"tp": 8, "pp": 4}, [{"tp": 4, "pp": 2}, {"tp": 8}, {"tp": 2, "pp": 4}]),
        (MOE_120B, {"tp": 8, "pp": 4}, [{"tp": 4}, {"tp": 8, "ep": 8}, {"tp": 2, "pp": 2}]),
    ],
    ids=["dense", "experts"],
)
def test_a_hundred_and_twenty_billion_parameters_are_planned(model, source, replicas):
    made = sharded(model, **source)
    others = [sharded(model, **layout) for layout in replicas]
    check_plan(model, made, others, tiles_over_least=1.05, load_over_mean=1.25)


@pytest.mark.slow
def test_flat_shards_of_eight_billion_parameters_are_planned():
    others = [sharded(LLAMA_8B, tp=8), sharded(LLAMA_8B, tp=2)]
    made = flattened(LLAMA_8B, world=64)
    # 64 shares of rows meet 8 of columns in half of the matrices: tiles of 114,688 elements there.
    check_plan(LLAMA_8B, made, others, tiles_over_least=6.1, load_over_mean=1.01)
