"""Spans: updates that lead over 2, 4, 8 ... versions at once, merged from the halves they have.

A span of 2^k versions begins at a multiple of 2^k from the opening. So a receiver that is L
versions behind needs at most 2 log2(L) + 1 updates, and each version is merged once a level.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rose.closing import Closing
from rose.errors import CorruptData, OutOfMemory, Unavailable, check, sentence
from rose.thread import Thread
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_merge
from rose.transfer.manifest import Manifest, Signing
from rose.transfer.publishing.contributor import chunk_of
from rose.transfer.publishing.log import VersionLog
from rose.transfer.version import Version
from rose.units import GIB

LEVELS_MAX: Final = 20
# Of deltas that wait for their other half; with more than that, spans begin anew.
WAITING_BYTES_MAX: Final = 2 * GIB
_LOOK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Update:
    """An update with its deltas, none of them coded for a link.

    Args:
        manifest: what was published.
        deltas: by tile, of those that change.
    """

    manifest: Manifest
    deltas: Mapping[int, Delta]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all deltas."""
        return sum(delta.nbytes for delta in self.deltas.values())


def merged_deltas(first: Mapping[int, Delta], second: Mapping[int, Delta]) -> dict[int, Delta]:
    """Return what two updates in a row change together, without the tiles that end as they began.

    Raises:
        CorruptData: the second was not made from what the first makes.
    """
    merged = {**first, **second}
    for tile in first.keys() & second.keys():
        merged[tile] = delta_merge(first[tile], second[tile])
    return {tile: merged[tile] for tile in sorted(merged) if merged[tile].changed}


def merged_update(
    first: Update, second: Update, signing: Signing
) -> tuple[Update, dict[int, bytes]]:
    """Return two updates in a row as one, signed, and its frames."""
    check(second.manifest.base == first.manifest.version, "two updates are not in a row")
    deltas = merged_deltas(first.deltas, second.deltas)
    frames = {tile: delta.to_bytes() for tile, delta in deltas.items()}
    target = second.manifest
    manifest = Manifest(
        version=target.version,
        base=first.manifest.base,
        digest=target.digest,
        base_digest=first.manifest.base_digest,
        layout=target.layout,
        tile_count=target.tile_count,
        count=target.count,
        chunks=tuple(chunk_of(tile, deltas[tile], frame) for tile, frame in frames.items()),
    )
    return Update(signing.signed(manifest), deltas), frames


class Spans:
    """Makes the spans of one chain, a merge a step. Threadless; `SpanMaker` gives it a thread.

    Any thread notes; one thread steps.

    Args:
        log: that the versions are in; gets the spans.
        signing: the publisher's.
    """

    def __init__(self, log: VersionLog, signing: Signing) -> None:
        self._log = log
        self._signing = signing
        self._waiting_bytes_max = WAITING_BYTES_MAX
        self._lock = threading.Lock()  # guards the next two
        self._noted: deque[Update] = deque()
        self._noted_bytes = 0
        self._origin = 0
        self._last: Version | None = None
        self._halves: dict[int, Update] = {}  # by level: the first halves that wait for the second
        self._rising: tuple[int, Update] | None = None  # a level, and what was made for it
        self.made = 0
        self.failure: str | None = None  # why the last span that could not be made could not

    def note(self, manifest: Manifest, deltas: Mapping[int, Delta]) -> None:
        """Take a version that the log has; nothing is computed, and nobody waits.

        Args:
            manifest: of the version; its base is the one before.
            deltas: by tile, as they were packed, before they were coded for a link.
        """
        update = Update(manifest, deltas)
        with self._lock:
            self._noted.append(update)
            self._noted_bytes += update.nbytes
            while self._noted_bytes > self._waiting_bytes_max:
                self._noted_bytes -= self._noted.popleft().nbytes

    def step(self) -> bool:
        """Do one merge, or take the next version; return whether there is more to do."""
        if self._rising is None:
            with self._lock:
                if not self._noted:
                    return False
                update = self._noted.popleft()
                self._noted_bytes -= update.nbytes
            self._begin(update)
        else:
            self._rise(*self._rising)
        with self._lock:
            return self._rising is not None or bool(self._noted)

    def _begin(self, update: Update) -> None:
        base = update.manifest.base
        check(base is not None, "a version without a base has no spans")
        if base != self._last:  # the first, or one after a gap: spans begin anew
            self._origin, self._halves = update.manifest.key.base_n, {}
        self._last = update.manifest.version
        self._rising = (0, update)

    def _rise(self, level: int, update: Update) -> None:
        """Merge an update with the half before it, or let it wait for the half after it."""
        self._rising = None
        is_first = ((update.manifest.key.base_n - self._origin) >> level) % 2 == 0
        if level >= LEVELS_MAX:
            return
        if is_first:
            self._halves[level] = update
            self._drop_oldest()
            return
        first = self._halves.pop(level, None)
        if first is None or first.manifest.version != update.manifest.base:
            return
        try:
            span, frames = merged_update(first, update, self._signing)
            self._log.append_span(span.manifest, frames)
        except (CorruptData, OutOfMemory, Unavailable) as error:
            self.failure = str(error)  # nobody needs a span: there are the versions
            return
        self.made += 1
        self._rising = (level + 1, span)

    def _drop_oldest(self) -> None:
        """Keep to the limit: the largest halves are those of the highest levels."""
        while sum(one.nbytes for one in self._halves.values()) > self._waiting_bytes_max:
            del self._halves[max(self._halves)]


class SpanMaker(Spans, Closing):
    """`Spans` with a thread, from the first line of a `with` to its last.

    Args:
        log: that the versions are in; gets the spans.
        signing: the publisher's.
    """

    def __init__(self, log: VersionLog, signing: Signing) -> None:
        super().__init__(log, signing)
        self._bell = threading.Event()  # rung when there is a version to take, or at the end
        self._is_closed = False
        self._thread = Thread(self._run, name="rose-spans", on_failure=self._broke)
        self._thread.start()

    def _broke(self, failure: BaseException) -> None:
        self.failure = f"no more spans are made: {sentence(failure)}"

    def note(self, manifest: Manifest, deltas: Mapping[int, Delta]) -> None:
        """Take a version that the log has; see `Spans.note`."""
        super().note(manifest, deltas)
        self._bell.set()

    def close(self) -> None:
        """Stop after the merge that is under way, and join the thread."""
        self._is_closed = True
        self._bell.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            if not self.step():
                self._bell.wait(_LOOK_S)
                self._bell.clear()
