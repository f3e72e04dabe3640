"""Shard maps of several ranks together."""

from collections import Counter
from collections.abc import Iterable
from math import prod

from rose.errors import InvalidArgument
from rose.transfer.plan.coverage import check_coverage
from rose.transfer.plan.spec import Piece, Region, ShardMap, SourceRanks, TensorSpec


def joined(maps: Iterable[ShardMap]) -> ShardMap:
    """Merge the maps of a group of ranks, for instance one map per rank.

    A tensor that is computed on one rank counts as computed on all ranks: the pieces of the other
    ranks are dropped, so that every rank gets the tensor in the same way.

    Raises:
        InvalidArgument: two maps disagree on a tensor.
    """
    maps = tuple(maps)
    tensors: dict[str, TensorSpec] = {}
    computed: dict[str, str] = {}
    for one in maps:
        computed = {**one.computed, **computed}
        for name, spec in one.tensors.items():
            if tensors.setdefault(name, spec) != spec:
                raise InvalidArgument(
                    f"{name} must be the same on all ranks, got {_words(tensors[name])} and "
                    f"{_words(spec)}"
                )
    pieces = dict.fromkeys(piece for one in maps for piece in one.pieces)
    held = tuple(piece for piece in pieces if piece.tensor not in computed)
    return ShardMap(tensors, held, computed)


def one_holder_each(shards: ShardMap, *, cluster: str) -> SourceRanks:
    """Return a trainer's ranks as a source in which one rank holds each element.

    Replicas of a part, as in HSDP, are dropped from all ranks but one. So a part has the same
    sender in every plan, whatever the engines' shards are.

    Args:
        shards: map of all ranks.
        cluster: cluster of the ranks.

    Raises:
        InvalidArgument: some rank must hold each element, and two ranks hold parts that overlap
            but are not equal.
    """
    coverage = check_coverage(shards, is_source=True)
    holders: dict[tuple[str, Region], list[Piece]] = {}
    for piece in coverage.shards.pieces:
        holders.setdefault((piece.tensor, piece.region), []).append(piece)
    load = Counter[int]()
    kept: list[Piece] = []
    for (_, region), pieces in holders.items():
        chosen = min(pieces, key=lambda one: (load[one.rank], one.rank))
        load[chosen.rank] += region.count
        kept.append(chosen)
    elements = Counter[str]()
    for piece in kept:
        elements[piece.tensor] += piece.region.count
    for name, spec in coverage.shards.tensors.items():
        if elements[name] != prod(spec.shape) and name not in shards.computed:
            raise InvalidArgument(
                f"two ranks hold parts of {name} that overlap and are not equal: shard it the same "
                "way on all ranks that hold it"
            )
    only = ShardMap(coverage.shards.tensors, tuple(kept), coverage.shards.computed)
    return SourceRanks(cluster, only, coverage.ties)


def _words(spec: TensorSpec) -> str:
    return f"{spec.dtype} of shape {spec.shape}"
