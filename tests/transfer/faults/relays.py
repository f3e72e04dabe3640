"""A relay of a run across restarts of its process, and the way to reach it."""

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Final

from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, Subscription, UpdateKey
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.shelf import Limits
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay import Relay
from rose.transfer.source import Frame, Source
from tests.transfer.faults.disks import DISK_FAULTS, VirtualDisk
from tests.transfer.faults.shards import EVERY, TILES, Killed

# What a follower takes for the world's doing.
WORLD: Final = (CorruptData, DeadlineExceeded, InvalidArgument, OutOfMemory, Unavailable)


class RelayKilled(Killed):
    """The process of a relay ends, whoever was in one of its calls."""


class RelayProcess:
    """One relay.

    Args:
        wire: to the publisher.
        rng: for its sizes, its tiles and whether it has a disk.
    """

    def __init__(self, wire: Source, rng: Random) -> None:
        self._wire = wire
        self._rng = rng
        self.disk = VirtualDisk(self._die) if rng.random() < 0.6 else None
        some = sorted(rng.sample(EVERY, rng.randint(1, len(EVERY))))
        self._landing = Subscription(TILES, some) if rng.random() < 0.5 else None
        self._limits = Limits(rng.choice((1, 2, 4, 8)), rng.choice((0, 2)), 1 << 20)
        self._memory_bytes_max = rng.choice((0, 2000, 1 << 20))
        self.life = 0
        self.is_rounding = False
        self.relay: Relay | None = None
        self.start()

    def start(self) -> None:
        self.kill()
        store: MemoryStore = MemoryStore()
        if self.disk is not None:
            store = DiskStore(self.disk, bytes_max=1 << 20, memory_bytes_max=1000)
        self.relay = Relay(
            self._wire,
            store=store,
            landing=self._landing,
            limits=self._limits,
            memory_bytes_max=self._memory_bytes_max,
            patience_s=0.0,  # nobody else gets on while one waits
            retries=1,
        )

    def kill(self) -> None:
        self.life += 1
        self.relay = None

    def _die(self) -> None:
        self.kill()
        raise RelayKilled

    def round(self) -> str | None:
        """Follow the publisher; return what was in its way."""
        relay = self.relay
        if relay is None or self.is_rounding:
            return None
        self.is_rounding = True
        try:
            relay.round(0.5)
        except WORLD as error:
            return str(error)
        except RelayKilled:
            pass
        finally:
            self.is_rounding = False
        return None

    def fail_disk(self, rng: Random) -> None:
        if self.disk is not None:
            self.disk.arm(rng.choice(DISK_FAULTS), rng.getrandbits(32))

    def rot_disk(self, rng: Random) -> None:
        if self.disk is not None:
            self.disk.rot(rng)


class RelayEnd:
    """A relay as its receivers see it: when it dies in a call, the connection breaks."""

    def __init__(self, relay: Callable[[], Relay | None]) -> None:
        self._relay = relay

    def _source(self) -> Source:
        if (relay := self._relay()) is None:
            raise Unavailable("no relay is there")
        return relay

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        return _alive(lambda: self._source().wait_manifests(after_n, timeout_s))

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        return _alive(lambda: self._source().snapshot(n, tiles))

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        frames = self._source().chunks(key, wanted)
        for _ in wanted:
            yield _alive(lambda: next(frames))

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:
        _alive(lambda: self._source().report(receiver, n, is_match, digest))


def _alive(call: Callable[[], object]) -> object:
    try:
        return call()
    except RelayKilled:
        raise Unavailable("the relay died") from None
