"""Which updates a log keeps: a pure choice, so that whatever is kept leads to the newest version.

Updates are links from version to version, all forward. A *path* is links end to end. A link whose
end has no path to the newest version helps nobody and is not kept.
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
    """An update as retention sees it.

    Args:
        key: from where to where.
        nbytes: of its chunks, as far as they are kept.
    """

    key: UpdateKey
    nbytes: int

    @property
    def length(self) -> int:
        """Return how many versions it goes on by."""
        return self.key.n - self.key.base_n


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is kept.

    Args:
        versions_max: single links, and the spans among them, at least 1.
        spans_max: of each length, spans that begin before those.
        bytes_max: of all chunks.
    """

    versions_max: int = VERSIONS_MAX
    spans_max: int = SPANS_MAX
    bytes_max: int = BYTES_MAX

    def __post_init__(self) -> None:
        """Refuse limits that keep nothing.

        Raises:
            InvalidArgument: one is too small.
        """
        if self.versions_max < 1 or self.bytes_max < 1 or self.spans_max < 0:
            raise InvalidArgument(
                f"a log of {self.versions_max} versions and {self.bytes_max} bytes keeps nothing"
            )


def path(links: Iterable[Link], start_n: int, end_n: int) -> list[Link] | None:
    """Return the way of fewest bytes from a version to a later one; of equals, the fewest links.

    None where there is no way; none is needed from a version to itself.
    """
    best: dict[int, tuple[tuple[int, int], Link | None]] = {start_n: ((0, 0), None)}
    # Links only go forward: in this order whatever leads to a base is known before it is used.
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
    """Return the links whose end has a path to the newest version, ascending by their base."""
    kept: list[Link] = []
    reaching = {newest_n}
    # From the highest base down: whatever a link could go on by was seen before it.
    for link in sorted(links, key=lambda one: one.key.base_n, reverse=True):
        if link.key.n in reaching:
            reaching.add(link.key.base_n)
            kept.append(link)
    return kept[::-1]


def to_forget(
    links: Sequence[Link], limits: Limits, *, newest_n: int, opening_n: int | None
) -> list[UpdateKey]:
    """Choose what a log forgets so that it keeps to its limits, the first to go first.

    Too old are single links before the last `versions_max` versions, and spans that begin before
    those and are not among the last `spans_max` of their length. For room, the links with the
    lowest base go first, for no path from a later version leads over them; those of the cheapest
    way from the opening go last, because a worker that was away for long may hold just that.
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
    # What goes first; of one base, the shortest, for the longer ones serve whoever is there best.
    order = sorted(links, key=lambda one: (one.key in anchored, one.key.base_n, one.key.n))
    left = sum(link.nbytes for link in links)
    going = 0
    # The last in this order leads to the newest version, of which everybody is to hear: it stays
    # where whole tiles, which are not versions, leave no room for anything.
    while left > bytes_max and going < len(order) - 1:
        left -= order[going].nbytes
        going += 1
    return order[going:]
