"""Plans by the element: sets and arrays where the product has boxes.

Every element of every tensor gets a number of its own. What a rank holds is an array of numbers; a
plan is right if its tiles, read through the views of the source and written through those of the
replicas, put every number where the replica's map says that it belongs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rose.transfer.plan import LocalView, Plan, Region, Replica, ShardMap

NOTHING = -1
Memory = dict[tuple[int, str], np.ndarray]


def elements_of(region: Region) -> Iterator[tuple[int, ...]]:
    """Yield the indices of a box in row-major order."""
    ranges = zip(region.offset, region.shape, strict=True)
    return product(*(range(at, at + size) for at, size in ranges))


def holders_of(
    shape: tuple[int, ...], regions: Sequence[Region]
) -> dict[tuple[int, ...], frozenset]:
    """Return, by element, the places of the regions that have it."""
    sets = [frozenset(elements_of(region)) for region in regions]
    return {
        element: frozenset(place for place, held in enumerate(sets) if element in held)
        for element in product(*map(range, shape))
    }


def least_boxes(held_by: Mapping[tuple[int, int], frozenset]) -> int:
    """Return the least number of boxes that divide a small matrix, each held by the same regions.

    The first element in row-major order that no box has is the first corner of one: each is tried.
    """
    order = sorted(held_by)
    bit = {element: 1 << place for place, element in enumerate(order)}
    all_bits = (1 << len(order)) - 1
    rows, columns = (max(element[dim] for element in order) + 1 for dim in (0, 1))

    @cache
    def least(taken: int) -> int:
        if taken == all_bits:
            return 0
        row, column = next(element for element in order if not taken & bit[element])
        best = len(order)
        width_max = columns - column
        for last_row in range(row, rows):
            width = 0
            while width < width_max:
                element = (last_row, column + width)
                if taken & bit[element] or held_by[element] != held_by[row, column]:
                    break
                width += 1
            width_max = width
            if not width_max:
                break
            for width in range(1, width_max + 1):
                box = Region((row, column), (last_row - row + 1, width))
                more = sum(bit[element] for element in elements_of(box))
                best = min(best, 1 + least(taken | more))
        return best

    return least(0)


def addresses(view: LocalView, shape: tuple[int, ...]) -> list[int]:
    """Return the elements of the storage that a view names, in row-major order."""
    return [
        view.offset + sum(at * stride for at, stride in zip(index, view.strides, strict=True))
        for index in product(*map(range, shape))
    ]


def storage_holders(shards: ShardMap) -> dict[tuple[int, str], dict[int, set]]:
    """Return, by storage and element of it, which elements of which tensors are there."""
    found: dict[tuple[int, str], dict[int, set]] = {}
    for piece in shards.pieces:
        storage = found.setdefault((piece.rank, piece.view.parameter), {})
        here = addresses(piece.view, piece.region.shape)
        for address, element in zip(here, elements_of(piece.region), strict=True):
            storage.setdefault(address, set()).add((piece.tensor, element))
    return found


def numbers(shards: ShardMap) -> dict[str, np.ndarray]:
    """Return tensors in which every element of every tensor has its own number."""
    first, tensors = 0, {}
    for name, spec in sorted(shards.tensors.items()):
        count = int(np.prod(spec.shape, dtype=np.int64))
        tensors[name] = np.arange(first, first + count).reshape(spec.shape)
        first += count
    return tensors


def memory_of(shards: ShardMap, tensors: Mapping[str, np.ndarray]) -> Memory:
    """Return what each storage of each rank holds, if the map is right; NOTHING elsewhere."""
    memory = empty_memory(shards)
    for piece in shards.pieces:
        box = tuple(
            slice(at, at + size)
            for at, size in zip(piece.region.offset, piece.region.shape, strict=True)
        )
        held = memory[piece.rank, piece.view.parameter]
        seen(held, piece.view, piece.region.shape)[...] = tensors[piece.tensor][box]
    return memory


def empty_memory(shards: ShardMap) -> Memory:
    """Return storages as large as the views need, full of NOTHING."""
    sizes: dict[tuple[int, str], int] = {}
    for piece in shards.pieces:
        storage = (piece.rank, piece.view.parameter)
        last = max(addresses(piece.view, piece.region.shape))
        sizes[storage] = max(sizes.get(storage, 0), last + 1)
    return {storage: np.full(size, NOTHING) for storage, size in sizes.items()}


def seen(storage: np.ndarray, view: LocalView, shape: tuple[int, ...]) -> np.ndarray:
    """Return a view as an array that shares the storage."""
    strides = tuple(storage.itemsize * stride for stride in view.strides)
    return as_strided(storage[view.offset :], shape, strides)


def transferred(plan: Plan, source: Memory, replica: Replica) -> Memory:
    """Carry every tile of one replica from its contributor to its receivers, one element a time."""
    memory = empty_memory(replica.shards)
    places_of = {rank: plan.sent_from(rank) for rank in plan.sources.shards.ranks}
    for rank in replica.shards.ranks:
        for index, places in plan.places(replica.name, rank).items():
            contributor = plan.tiles[index].contributor
            ((view, shape),) = places_of[contributor][index]
            sent = seen(source[contributor, view.parameter], view, shape)
            for place, size in places:
                seen(memory[rank, place.parameter], place, size)[...] = sent
    return memory


def least_crossing(
    home: str, replicas: Iterable[Replica], bytes_of: Callable[[str, tuple[int, ...]], int]
) -> dict[tuple[str, str], int]:
    """Return the least bytes over each link: every element that a cluster holds, once.

    Args:
        home: the cluster of the source.
        replicas: who receives.
        bytes_of: an element of a tensor.
    """
    needed: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
    for replica in replicas:
        for piece in replica.shards.pieces:
            there = needed.setdefault(replica.cluster, set())
            there.update((piece.tensor, element) for element in elements_of(piece.region))
    return {
        (home, cluster): sum(bytes_of(*element) for element in elements)
        for cluster, elements in needed.items()
        if cluster != home
    }
