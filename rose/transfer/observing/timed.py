"""A contributor, a log and a source that record their work in a timeline."""

from collections.abc import Callable, Sequence

from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.observing.timeline import Timeline
from rose.transfer.publishing.contributor import Contributor, PackedPart
from rose.transfer.publishing.log import Chunks, VersionLog
from rose.transfer.receiving.staleness import Staleness
from rose.transfer.source import NOTHING_KNOWN, Frames, Source, SourceAround
from rose.transfer.tiles import TileViews


class TimedContributor(Contributor):
    """A contributor that records each pack in `timeline`, which the creating code sets."""

    timeline: Timeline

    def pack(self, new: TileViews, part: PackedPart) -> None:
        """Pack, and record the duration."""
        with self.timeline.span("pack", tiles=len(self.owned)):
            super().pack(new, part)


class TimedLog(VersionLog):
    """A log that records each append in `timeline`, which the creating code sets."""

    timeline: Timeline

    def append(self, manifest: Manifest, chunks: Chunks) -> None:
        """Append, and record the duration."""
        with self.timeline.span("append", n=manifest.version.n, bytes=manifest.nbytes):
            super().append(manifest, chunks)


class TimedSource(SourceAround):
    """A source that records transfers, and knows how far a receiver is behind.

    Args:
        source: source of the versions.
        timeline: timeline that gets a "wire" span for each pull. The callback of `staged` adds a
            "stage" span that begins with the first pull of the version.
    """

    def __init__(self, source: Source, timeline: Timeline) -> None:
        super().__init__(source)
        self._timeline = timeline
        self.staleness = Staleness(timeline.clock)
        self._stage_ns: int | None = None
        self._stage_n = 0
        self.staged_ns = 0
        self.reported_n = NOTHING_KNOWN  # version of the last report

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for manifests, and record their versions."""
        manifests = self._source.wait_manifests(after_n, timeout_s)
        for one in manifests:
            self.staleness.seen(one.version)
        return manifests

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield the chunks; the span lasts until the last chunk is consumed."""
        begin_ns = self._timeline.clock.now_ns()
        if self._stage_ns is None or self._stage_n != key.n:
            self._stage_ns, self._stage_n = begin_ns, key.n
        nbytes = sum(one.nbytes for one in wanted)
        with self._timeline.span("wire", n=key.n, tiles=len(wanted), bytes=nbytes):
            yield from self._source.chunks(key, wanted)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Send the report, and record its version."""
        self._source.report(receiver, n, is_match, digest)
        self.reported_n = n

    def staged(self, then: Callable[[], None]) -> Callable[[], None]:
        """Return a callback that records when a version was staged, and then calls `then`."""

        def call() -> None:
            self.staged_ns = self._timeline.clock.now_ns()
            if self._stage_ns is not None:
                self._timeline.add("stage", self._stage_ns, self.staged_ns, n=self._stage_n)
            self._stage_ns = None
            then()

        return call
