"""Which updates a log keeps: a pure choice; every kept update leads to the newest version.

Updates are edges from version to later version. A *path* is a chain of edges. An edge whose end has
no path to the newest version is useless and not kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rose.errors import InvalidArgument
from rose.transfer.manifest import UpdateKey
from rose.units import GIB

VERSIONS_MAX = 64
MERGED_MAX = 8
BYTES_MAX = 4 * GIB


@dataclass(frozen=True, slots=True)
class Edge:
    """An update, for retention.

    Args:
        key: start and end of the edge.
        nbytes: bytes of its kept chunks.
    """

    key: UpdateKey
    nbytes: int

    @property
    def length(self) -> int:
        """Return the number of versions it advances."""
        return self.key.n - self.key.base_n


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the history that a log keeps.

    Args:
        versions_max: last versions whose edges, single or merged, are kept; at least 1.
        merged_max: merged edges of each length to keep that begin before those versions.
        bytes_max: bytes of all chunks.
    """

    versions_max: int = VERSIONS_MAX
    merged_max: int = MERGED_MAX
    bytes_max: int = BYTES_MAX

    def __post_init__(self) -> None:
        """Refuse limits that keep nothing.

        Raises:
            InvalidArgument: a limit is too small.
        """
        if self.versions_max < 1 or self.bytes_max < 1 or self.merged_max < 0:
            raise InvalidArgument(
                f"a log of {self.versions_max} versions and {self.bytes_max} bytes keeps nothing"
            )


def path(edges: Iterable[Edge], start_n: int, end_n: int) -> list[Edge] | None:
    """Return the path of fewest bytes from a version to a later one; of equals, the fewest edges.

    None if there is no path; [] from a version to itself.
    """
    best: dict[int, tuple[tuple[int, int], Edge | None]] = {start_n: ((0, 0), None)}
    # Edges only go forward: in this order all edges to a base come before edges from it.
    for edge in sorted(edges, key=lambda one: one.key.base_n):
        came = best.get(edge.key.base_n)
        if came is None or edge.key.n > end_n:
            continue
        cost = (came[0][0] + edge.nbytes, came[0][1] + 1)
        if edge.key.n not in best or cost < best[edge.key.n][0]:
            best[edge.key.n] = (cost, edge)
    if end_n not in best:
        return None
    way: list[Edge] = []
    at = end_n
    while (step := best[at][1]) is not None:
        way.append(step)
        at = step.key.base_n
    return way[::-1]


def connected(edges: Iterable[Edge], newest_n: int) -> list[Edge]:
    """Return the edges with a path from their end to the newest version, ascending by base."""
    kept: list[Edge] = []
    reaching = {newest_n}
    # From the highest base down: all possible continuations of an edge come before it.
    for edge in sorted(edges, key=lambda one: one.key.base_n, reverse=True):
        if edge.key.n in reaching:
            reaching.add(edge.key.base_n)
            kept.append(edge)
    return kept[::-1]


def to_forget(
    edges: Sequence[Edge], limits: Limits, *, newest_n: int, opening_n: int | None
) -> list[UpdateKey]:
    """Choose updates to forget so that a log keeps its limits, in order.

    Too old are single edges before the last `versions_max` versions, and merged edges that begin
    before those and are not among the last `merged_max` of their length. To make room, the edges
    with the lowest base go first, for no path from a later version uses them. Edges of the cheapest
    path from the opening go last: a worker that was away for long may hold that version.
    """
    kept = connected(_young(edges, limits, newest_n), newest_n)
    if sum(edge.nbytes for edge in kept) > limits.bytes_max:
        kept = _within(kept, limits.bytes_max, newest_n, opening_n)
    staying = {edge.key for edge in kept}
    return sorted(edge.key for edge in edges if edge.key not in staying)


def _young(edges: Sequence[Edge], limits: Limits, newest_n: int) -> list[Edge]:
    first_n = newest_n - limits.versions_max
    young = [edge for edge in edges if edge.key.base_n >= first_n]
    before: defaultdict[int, list[Edge]] = defaultdict(list)
    for edge in sorted(edges, key=lambda one: one.key, reverse=True):
        if edge.length > 1 and edge.key.base_n < first_n:
            before[edge.length].append(edge)
    for merged in before.values():
        young += merged[: limits.merged_max]
    return young


def _within(
    edges: Sequence[Edge], bytes_max: int, newest_n: int, opening_n: int | None
) -> list[Edge]:
    way = None if opening_n is None else path(edges, opening_n, newest_n)
    anchored = {edge.key for edge in way or ()}
    # First to go first; of one base the shortest, since longer ones serve its holders better.
    order = sorted(edges, key=lambda one: (one.key in anchored, one.key.base_n, one.key.n))
    left = sum(edge.nbytes for edge in edges)
    going = 0
    # The last in this order leads to the newest version, which everybody must learn of: it stays
    # even if snapshots, which are no versions, fill the log.
    while left > bytes_max and going < len(order) - 1:
        left -= order[going].nbytes
        going += 1
    return order[going:]
