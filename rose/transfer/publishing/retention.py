"""Which updates a log keeps: a pure choice; every kept update leads to the newest version.

Updates are links from version to later version. A *path* is a chain of links. A link whose end has
no path to the newest version is useless and not kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rose.errors import InvalidArgument
from rose.transfer.manifest import UpdateKey
from rose.units import GIB

VERSIONS_MAX = 64
SPANS_MAX = 8
BYTES_MAX = 4 * GIB


@dataclass(frozen=True, slots=True)
class Link:
    """An update, for retention.

    Args:
        key: start and end of the link.
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
        versions_max: last versions whose links, single or merged, are kept; at least 1.
        spans_max: merged links of each length to keep that begin before those versions.
        bytes_max: bytes of all chunks.
    """

    versions_max: int = VERSIONS_MAX
    spans_max: int = SPANS_MAX
    bytes_max: int = BYTES_MAX

    def __post_init__(self) -> None:
        """Refuse limits that keep nothing.

        Raises:
            InvalidArgument: a limit is too small.
        """
        if self.versions_max < 1 or self.bytes_max < 1 or self.spans_max < 0:
            raise InvalidArgument(
                f"versions_max {self.versions_max} and bytes_max {self.bytes_max} must be at least "
                f"1, spans_max {self.spans_max} at least 0"
            )


def path(links: Iterable[Link], start_n: int, end_n: int) -> list[Link] | None:
    """Return the path of fewest bytes from a version to a later one; of equals, the fewest links.

    None if there is no path; [] from a version to itself.
    """
    best: dict[int, tuple[tuple[int, int], Link | None]] = {start_n: ((0, 0), None)}
    # Links only go forward: in this order all links to a base come before links from it.
    for link in sorted(links, key=lambda one: one.key.base_n):
        came = best.get(link.key.base_n)
        if came is None or link.key.n > end_n:
            continue
        cost = (came[0][0] + link.nbytes, came[0][1] + 1)
        if link.key.n not in best or cost < best[link.key.n][0]:
            best[link.key.n] = (cost, link)
    if end_n not in best:
        return None
    way: list[Link] = []
    at = end_n
    while (step := best[at][1]) is not None:
        way.append(step)
        at = step.key.base_n
    return way[::-1]


def connected(links: Iterable[Link], newest_n: int) -> list[Link]:
    """Return the links with a path from their end to the newest version, ascending by base."""
    kept: list[Link] = []
    reaching = {newest_n}
    # From the highest base down: all possible continuations of a link come before it.
    for link in sorted(links, key=lambda one: one.key.base_n, reverse=True):
        if link.key.n in reaching:
            reaching.add(link.key.base_n)
            kept.append(link)
    return kept[::-1]


def to_forget(
    links: Sequence[Link], limits: Limits, *, newest_n: int, opening_n: int | None
) -> list[UpdateKey]:
    """Choose updates to forget so that a log keeps its limits, in order.

    Too old are single links before the last `versions_max` versions, and merged links that begin
    before those and are not among the last `spans_max` of their length. To make room, the links
    with the lowest base go first, for no path from a later version uses them. Links of the cheapest
    path from the opening go last: a worker that was away for long may hold that version.
    """
    kept = connected(_young(links, limits, newest_n), newest_n)
    if sum(link.nbytes for link in kept) > limits.bytes_max:
        kept = _within(kept, limits.bytes_max, newest_n, opening_n)
    staying = {link.key for link in kept}
    return sorted(link.key for link in links if link.key not in staying)


def _young(links: Sequence[Link], limits: Limits, newest_n: int) -> list[Link]:
    first_n = newest_n - limits.versions_max
    young = [link for link in links if link.key.base_n >= first_n]
    before: defaultdict[int, list[Link]] = defaultdict(list)
    for link in sorted(links, key=lambda one: one.key, reverse=True):
        if link.length > 1 and link.key.base_n < first_n:
            before[link.length].append(link)
    for spans in before.values():
        young += spans[: limits.spans_max]
    return young


def _within(
    links: Sequence[Link], bytes_max: int, newest_n: int, opening_n: int | None
) -> list[Link]:
    way = None if opening_n is None else path(links, opening_n, newest_n)
    anchored = {link.key for link in way or ()}
    # First to go first; of one base the shortest, since longer ones serve its holders better.
    order = sorted(links, key=lambda one: (one.key in anchored, one.key.base_n, one.key.n))
    left = sum(link.nbytes for link in links)
    going = 0
    # The last in this order leads to the newest version, which everybody must learn of: it stays
    # even if snapshots, which are no versions, fill the log.
    while left > bytes_max and going < len(order) - 1:
        left -= order[going].nbytes
        going += 1
    return order[going:]
