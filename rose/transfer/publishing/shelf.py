"""The shelf: the kept updates of one chain of versions. Receivers request them or wait for more.

The functions that choose the updates to keep are pure. They treat an update as an edge from a
version to a later version; a *path* is a chain of edges. An edge whose end has no path to the
newest version is useless and not kept.
"""

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.publishing.shadow_memory import SharedTiles
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.source import Frame, Frames
from rose.units import GIB

NO_VERSION: Final = -1


VERSIONS_MAX = 64
MERGED_MAX = 8
BYTES_MAX = 4 * GIB


@dataclass(frozen=True, slots=True)
class Edge:
    """An update as an edge between two versions.

    Args:
        key: start and end of the edge.
        nbytes: bytes of the kept chunks.
    """

    key: UpdateKey
    nbytes: int

    @property
    def length(self) -> int:
        """Return the number of versions from start to end."""
        return self.key.n - self.key.base_n


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the history that a log keeps.

    Args:
        versions_max: number of last versions among which all edges are kept; at least 1.
        merged_max: for each length, number of merged edges to keep that begin before those
            versions.
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
                f"a log must keep at least 1 version, 1 byte and 0 merged edges, got "
                f"versions_max={self.versions_max}, bytes_max={self.bytes_max} and "
                f"merged_max={self.merged_max}"
            )


def path(edges: Iterable[Edge], start_n: int, end_n: int) -> list[Edge] | None:
    """Return the path with the fewest bytes; among equal paths, the path with the fewest edges.

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
    """Choose the updates to forget so that a log keeps its limits; return them ascending.

    Edges that begin before the last `versions_max` versions are too old, except the last
    `merged_max` merged edges of each length. To make room, edges with the lowest base are dropped
    first, since no path from a later version uses them. Edges of the cheapest path from the opening
    (the chain's first version) are dropped last: a worker that was away for long may still have it.
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
    # In the order of dropping. Of edges with the same base the shortest comes first, since a longer
    # edge brings a receiver at that base further.
    order = sorted(edges, key=lambda one: (one.key in anchored, one.key.base_n, one.key.n))
    left = sum(edge.nbytes for edge in edges)
    going = 0
    # The last edge in this order leads to the newest version, which every receiver must learn of.
    while left > bytes_max and going < len(order) - 1:
        left -= order[going].nbytes
        going += 1
    return order[going:]


class Shelf(ABC):
    """Manifests of kept updates, and their frames in a store.

    The opening, which is the announcement of the chain's first version, always stays.

    Logs and relays are shelves: sources for receivers in this process, and for the server that
    serves other processes.

    Any thread may call. The lock guards the manifests and is not held over writes to the store; one
    thread at a time puts and trims.

    Args:
        store: store of the frames; updates already in it are adopted.
    """

    shared: SharedTiles | None = None
    """Tiles that receivers of this host may read without a request."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._manifests: dict[UpdateKey, Manifest] = {one.key: one for one in store.manifests()}
        self._opening = next(
            (one for one in reversed(self._manifests.values()) if one.is_announcement), None
        )

    @property
    def newest(self) -> Manifest | None:
        """Return a manifest of the newest version; None without versions."""
        with self._changed:
            return self._manifests[max(self._manifests)] if self._manifests else None

    @property
    def newest_n(self) -> int:
        """Return the number of the newest version; -1 without versions."""
        with self._changed:
            return self._newest_n()

    @property
    def opening(self) -> Manifest | None:
        """Return the announcement of the chain's first version, if known."""
        with self._changed:
            return self._opening

    def edges(self) -> list[Edge]:
        """Return the kept updates as edges."""
        with self._changed:
            keys = [one.key for one in self._manifests.values() if not one.is_announcement]
        return [Edge(key, self._store.nbytes_of(key)) for key in keys]

    def manifest(self, key: UpdateKey) -> Manifest | None:
        """Return the manifest of an update, if kept."""
        with self._changed:
            return self._manifests.get(key)

    def _put(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        """Keep an update, or more frames of a kept update, and announce it."""
        self._store.put(manifest, frames)
        self._show(manifest)

    def _show(self, manifest: Manifest) -> None:
        """Announce an update, whether or not its frames are here."""
        with self._changed:
            self._manifests[manifest.key] = manifest
            if manifest.is_announcement:
                self._opening = manifest
            self._changed.notify_all()

    def _forget(self, keys: Iterable[UpdateKey]) -> None:
        """Drop updates."""
        gone = list(keys)
        with self._changed:
            for key in gone:
                self._manifests.pop(key, None)
            if self._opening is not None and self._opening.key not in self._manifests:
                self._opening = None
        for key in gone:
            self._store.forget(key)

    def _forget_others(self, run: str, incarnation: int) -> None:
        """Drop updates of other chains."""
        with self._changed:
            others = [
                key
                for key, one in self._manifests.items()
                if (one.version.run, one.version.incarnation) != (run, incarnation)
            ]
        self._forget(others)

    def _trim_to(self, limits: Limits) -> None:
        """Enforce limits; the opening stays, since it has no frames."""
        opening = self.opening
        opening_n = None if opening is None else opening.version.n
        self._forget(to_forget(self.edges(), limits, newest_n=self.newest_n, opening_n=opening_n))

    def manifests_after(self, n: int) -> list[Manifest]:
        """Return the kept updates to versions above `n`, ascending."""
        with self._changed:
            return [self._manifests[key] for key in sorted(self._manifests) if key.n > n]

    def wait_manifests(
        self, after_n: int, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False
    ) -> list[Manifest]:
        """Wait for a version above `after_n`; return the updates to such versions, [] on timeout.

        Args:
            after_n: number of the newest known version; -1 for none.
            timeout_s: longest wait, in seconds.
            is_over: function that tells whether to stop waiting; checked after each `wake`.
        """
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._newest_n() > after_n, timeout_s)
        return self.manifests_after(after_n)

    def wake(self) -> None:
        """Make waiting threads check whether their wait is over."""
        with self._changed:
            self._changed.notify_all()

    def _newest_n(self) -> int:
        return max(self._manifests).n if self._manifests else NO_VERSION

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield the frames without copying."""
        for one in wanted:
            yield one.tile, self.chunk(key, one.tile)

    def frames_of(self, key: UpdateKey, tiles: Sequence[int]) -> Iterable[tuple[int, Frame | None]]:
        """Yield the frames of several tiles, as `chunk` returns each."""
        for tile in tiles:
            yield tile, self.chunk(key, tile)

    def break_off(self) -> None:  # noqa: B027  (a log has nothing to do)
        """Do nothing: local chunks never block."""

    @abstractmethod
    def chunk(self, key: UpdateKey, tile: int) -> Frame | None:
        """Return the frame of a tile, counted as sent; None if it is not kept."""

    @abstractmethod
    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Return a snapshot; see `Source.snapshot`."""

    @abstractmethod
    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Record a receiver's report; see `Source.report`."""
