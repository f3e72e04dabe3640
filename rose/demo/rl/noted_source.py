"""A source of weights that tells of every version that passes."""

from collections.abc import Callable, Sequence

from rose.transfer.manifest import Manifest
from rose.transfer.source import Source, SourceAround


class NotedSource(SourceAround):
    """A `rose.transfer.source.Source` around another.

    Args:
        source: the other.
        note: takes each manifest, in the thread that asked for it; must not wait.
    """

    def __init__(self, source: Source, note: Callable[[Manifest], None]) -> None:
        super().__init__(source)
        self._note = note

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for versions, and tell of them."""
        return self._noted(self._source.wait_manifests(after_n, timeout_s))

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask for a seed, and tell of it if any tile comes whole."""
        manifest = self._source.seed(n, tiles)
        if manifest is not None and manifest.chunks:
            self._note(manifest)
        return manifest

    def _noted(self, manifests: list[Manifest]) -> list[Manifest]:
        for manifest in manifests:
            self._note(manifest)
        return manifests
