"""From a trainer's map to the memory of two engines, through a plan and views alone."""

import torch

from rose.engines.shards import (
    Replicate,
    Shard,
    joined_traces,
    parameters_of,
    pieces_of_placements,
    trace_loader,
    views_of,
)
from rose.transfer import delta_pack
from rose.transfer.plan import Replica, ShardMap, SourceRanks, check_coverage, make_plan
from rose.transfer.tiles import ShardViews
from tests.engines.shards.miniature import Miniature, Sizes
from tests.engines.shards.poured import bytes_of, random_like

SPECS = Sizes().checkpoint()
MESH = (2, 2)


def trainer() -> tuple[ShardMap, dict[int, dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Return four ranks of FSDP over TP, what is in their memory, and what that is together."""
    whole = random_like(SPECS, seed=8)
    pieces = []
    for at, spec in enumerate(SPECS):
        columns = Shard(1) if len(spec.shape) > 1 and at % 2 else Replicate()
        pieces += pieces_of_placements(spec.name, spec.shape, MESH, [Shard(0), columns])
    memory = {rank: {} for rank in range(4)}
    for piece in pieces:
        ends = zip(piece.region.offset, piece.region.shape, strict=True)
        box = whole[piece.tensor][tuple(slice(at, at + size) for at, size in ends)]
        memory[piece.rank][piece.tensor] = box.clone(memory_format=torch.contiguous_format)
    return ShardMap({spec.name: spec for spec in SPECS}, tuple(pieces), {}), memory, whole


def test_every_bit_of_two_engines_arrives_in_tiles_and_can_be_undone() -> None:
    shards, memory, whole = trainer()
    check_coverage(shards, is_source=True)
    engines = {size: [Miniature(rank, size) for rank in range(size)] for size in (1, 2)}
    replicas = []
    for size, models in engines.items():
        traced = joined_traces(
            trace_loader(model, model.load_weights, SPECS, rank=rank)
            for rank, model in enumerate(models)
        )
        check_coverage(traced.shards, storages=traced.storages, buffers=traced.excused)
        replicas.append(Replica(f"tp{size}", "here", traced.shards))
        for model in models:
            for one in parameters_of(model).values():
                one.data.zero_()
    plan = make_plan(SourceRanks("there", shards), replicas, tile_elements=50)
    assert len(plan.tiles) > 2 * len(SPECS)

    sent = {}
    for rank, parameters in memory.items():
        views = views_of(parameters, plan.sent_from(rank))
        sent |= {tile: view for tile, (view,) in views.items()}
    changes = {tile: delta_pack(new, torch.zeros(new.shape).to(new)) for tile, new in sent.items()}
    for size, models in engines.items():
        for rank, model in enumerate(models):
            target = ShardViews(views_of(parameters_of(model), plan.places(f"tp{size}", rank)))
            for tile in target.tiles:
                target.apply(tile, changes[tile], undo=False)
            arrived = bytes_of(model)
            model.load_weights(whole.items())
            loaded = bytes_of(model)
            wrong = [name for name, one in loaded.items() if not torch.equal(one, arrived[name])]
            assert not wrong, (size, rank)
            for tile in target.tiles:
                target.apply(tile, changes[tile], undo=True)
            assert not any(one.any() for one in bytes_of(model).values())
