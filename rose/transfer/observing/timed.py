"""The parts of an update that a timeline shows, each around the part that does the work."""

from collections.abc import Callable, Sequence

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.observing.timeline import Timeline
from rose.transfer.publishing.contributor import Contributor, Part
from rose.transfer.publishing.log import Chunks, VersionLog
from rose.transfer.receiving.staleness import Staleness
from rose.transfer.source import NOTHING_KNOWN, Frames, Source, SourceAround
from rose.transfer.views import TileViews


class TimedContributor(Contributor):
    """Notes how long a pack takes; `timeline` is set by who made it."""

    timeline: Timeline

    def pack(self, new: TileViews, part: Part) -> None:
        """Pack, and note it."""
        with self.timeline.span("pack", tiles=len(self.owned)):
            super().pack(new, part)


class TimedLog(VersionLog):
    """Notes how long versions take to be kept; `timeline` is set by who made it."""

    timeline: Timeline

    def append(self, manifest: Manifest, chunks: Chunks) -> None:
        """Append, and note it."""
        with self.timeline.span("append", n=manifest.version.n, bytes=manifest.nbytes):
            super().append(manifest, chunks)


class TimedSource(SourceAround):
    """A source that notes what crosses and when, and knows how far a receiver is behind.

    Args:
        source: where versions come from.
        timeline: gets "wire" and, when `staged` is called, the "stage" around it.
    """

    def __init__(self, source: Source, timeline: Timeline) -> None:
        super().__init__(source)
        self._timeline = timeline
        self.staleness = Staleness(timeline.clock)
        self._stage_ns: int | None = None
        self._stage_n = 0
        self.staged_ns = 0
        self.reported_n = NOTHING_KNOWN  # of the version that the source heard of last

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait, and note which versions there are."""
        manifests = self._source.wait_manifests(after_n, timeout_s)
        for one in manifests:
            self.staleness.seen(one.version)
        return manifests

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Pass them on; the span lasts until the last one is taken."""
        begin_ns = self._timeline.now_ns()
        if self._stage_ns is None or self._stage_n != key.n:
            self._stage_ns, self._stage_n = begin_ns, key.n
        nbytes = sum(one.nbytes for one in wanted)
        with self._timeline.span("wire", n=key.n, tiles=len(wanted), bytes=nbytes):
            yield from self._source.chunks(key, wanted)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Pass it on, and note that it was heard."""
        self._source.report(receiver, n, is_match, digest)
        self.reported_n = n

    def staged(self, then: Callable[[], None]) -> Callable[[], None]:
        """Return what a receiver calls when a version lies ready: it notes that, and calls on."""

        def call() -> None:
            self.staged_ns = self._timeline.now_ns()
            if self._stage_ns is not None:
                self._timeline.add("stage", self._stage_ns, self.staged_ns, n=self._stage_n)
            self._stage_ns = None
            then()

        return call
