"""Bytes of anyone through every parser of transfer that is written in Python: a value or a refusal.

From the root: `python -m tests.fuzz.fuzz_parsers -runs=100000`. The first byte says which parser.
What a receiver may be told goes on into its staging, which must not fall over either.
"""

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Final

from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer import Subscription, Tiles, Version, manifest_bytes
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import Staging
from rose.transfer.signing import fingerprint
from rose.transfer.source import Frame
from rose.transfer.wire import messages
from tests.transfer.faults.disks import VirtualDisk

REFUSED: Final = (CorruptData, InvalidArgument)
WORLD: Final = (*REFUSED, DeadlineExceeded, OutOfMemory, Unavailable)
TILES: Final = Tiles.of(40, 8)
KINDS: Final = sorted(messages._KINDS, key=lambda kind: kind.__name__)


class Told:
    """A source that has said something, and gives no chunk."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._manifests = list(manifests)

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        return self._manifests

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        return self._manifests[0] if self._manifests else None

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        yield from ((one.tile, bytes(one.nbytes)) for one in wanted if one.nbytes < 1 << 16)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:
        pass


def follow(manifests: Sequence[Manifest]) -> None:
    """Let receivers that ask for no signature hear of them."""
    for subset in (None, (0, 2)):
        for held in (Version("", 0, 0), Version("run", 1, 4)):
            source = Told(manifests)
            staging = Staging(
                source,
                "one",
                Held(held, (1, 2)),
                Subscription(TILES, subset),
                puller=Puller(source, threading.Event(), retries=0),
                on_staged=lambda: None,
            )
            for _ in range(3):
                with suppress(*WORLD):
                    staging.round(0)


def try_message(kind: type, content: bytes) -> object | None:
    try:
        value = messages.decode(kind, content)
    except REFUSED:
        return None
    assert messages.decode(kind, messages.encode(value)) == value
    if isinstance(value, messages.ManifestsReply):
        follow(value.manifests)
    return value


def try_manifest(content: bytes) -> object | None:
    try:
        manifest = manifest_bytes.from_bytes(content)
    except REFUSED:
        return None
    assert manifest_bytes.from_bytes(manifest_bytes.to_bytes(manifest)) == manifest
    fingerprint(manifest)
    follow([manifest])
    return manifest


def try_file(content: bytes) -> object | None:
    """Open a folder with a file that has these bytes; it is served as far as it is sound."""
    disk = VirtualDisk(lambda: None)
    disk.write("5.4.update", [content])
    store = DiskStore(disk, bytes_max=1 << 20)
    for manifest in store.manifests():
        frames = [store.get(manifest.key, one.tile) or b"" for one in manifest.chunks]
        assert sum(map(len, frames)) == store.nbytes_of(manifest.key)
    return store.manifests() or None


PARSERS: Final[list[Callable[[bytes], object | None]]] = [
    try_manifest,
    try_file,
    *(lambda content, kind=kind: try_message(kind, content) for kind in KINDS),
]


def one_input(content: bytes) -> None:
    if content:
        PARSERS[content[0] % len(PARSERS)](content[1:])


def main() -> None:
    import atheris

    for function in (try_manifest, try_file, try_message, follow):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
