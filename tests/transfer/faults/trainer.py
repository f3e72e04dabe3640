"""The trainer of a run: publishes, dies, and restarts from an older checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from rose.errors import OutOfMemory
from rose.transfer import Contributor, Publisher, Version, VersionLog
from rose.transfer.manifest import Manifest
from rose.transfer.publishing.contributor import Encoding
from rose.transfer.publishing.log import Chunks
from rose.transfer.publishing.merger import Merger
from rose.transfer.signing import Signing
from tests.transfer.faults.history import History, demand
from tests.transfer.faults.shards import (
    OWNED,
    TILES,
    Bits,
    Killed,
    changed,
    copied,
    random_bits,
    views,
)

SIGNING: Final = Signing(b"shared by publishers and receivers")
# What a trainer's log keeps: often too little for a receiver that was away.
VERSIONS_MAX: Final = (1, 2, 4, 8)
BYTES_MAX: Final = (2500, 6000, 1 << 20)
CHECKPOINTS_MAX: Final = 6


class Interrupted(BaseException):
    """Somebody stopped the call, not the process."""


class FullLog(VersionLog):
    """A log that has no room, or in whose call the process dies, once."""

    def __init__(self, versions_max: int, bytes_max: int, history: History) -> None:
        super().__init__(versions_max=versions_max, bytes_max=bytes_max)
        self.next: str | None = None
        self.fresh: Bits = {}
        self._history = history

    def append(self, manifest: Manifest, chunks: Chunks) -> None:
        how, self.next = self.next, None
        if how == "refuse":
            raise OutOfMemory("planted: no room in the log")
        if how == "interrupt":
            raise Interrupted
        if how == "killed":
            raise Killed
        # Whoever sees it from now on sees it under this name.
        self._history.add(manifest.version, self.fresh)
        super().append(manifest, chunks)
        if how == "killed late":
            raise Killed


@dataclass(slots=True)
class Life:
    """What a trainer loses when its process ends."""

    log: FullLog
    publisher: Publisher
    shadows: Sequence[Bits]
    source: VersionLog
    merger: Merger


class Trainer:
    """One training run over all of its incarnations.

    Args:
        history: told of every version.
        rng: for the first weights and the sizes of the first log.
    """

    def __init__(self, history: History, rng: Random) -> None:
        self._history = history
        self._incarnation = self._reserved = 0
        self._encoding: Encoding = rng.choice(("gap", "gap", "strat"))
        self.opening = random_bits(rng)
        # On disk: weights, and every number that may have been used.
        self._checkpoints = [self.opening]
        self.weights: Bits = {}
        self.is_publishing = False
        self.life: Life | None = None
        self.start(rng)

    def start(self, rng: Random) -> None:
        """Begin another incarnation from some checkpoint."""
        self._incarnation += 1
        self._reserved += 1
        self.weights = rng.choice(self._checkpoints[-3:])
        opening = Version("run", self._incarnation, self._reserved)
        self._history.add(opening, self.weights)
        self.life = self._begun(opening, rng)

    def _begun(self, opening: Version, rng: Random) -> Life:
        shadows = [copied(self.weights, owned) for owned in OWNED]
        log = FullLog(rng.choice(VERSIONS_MAX), rng.choice(BYTES_MAX), self._history)
        contributors = [
            Contributor(views(shadow), TILES, owned, encoding=self._encoding)
            for shadow, owned in zip(shadows, OWNED, strict=True)
        ]
        merger = Merger(log, SIGNING)
        publisher = Publisher(
            contributors, TILES, opening, log, signing=SIGNING, on_published=merger.note
        )
        return Life(log, publisher, shadows, log, merger)

    @property
    def version(self) -> Version | None:
        return None if self.life is None else self.life.publisher.version

    def kill(self) -> None:
        self.life = None

    def merge(self, rng: Random) -> None:
        """Make some merger, beside the publisher."""
        if (life := self.life) is None:
            return
        for _ in range(rng.randint(1, 6)):
            life.merger.step()

    def publish(self, rng: Random, how: str | None = None) -> None:
        """Publish fresh weights, or fail to."""
        if (life := self.life) is None:
            return
        fresh = changed(self.weights, rng)
        before = life.publisher.version
        self._reserved += 1  # on disk before it is used
        life.log.next, life.log.fresh = how, fresh
        self.is_publishing = True
        try:
            life.publisher.publish(*(views(copied(fresh, owned)) for owned in OWNED))
        except Killed:
            self.kill()
        except (OutOfMemory, Interrupted):
            demand(how is not None, "a log that has room refused")
            demand(life.publisher.version == before, "a version that failed has a name")
            self._reserved = before.n
        else:
            self.weights = fresh
            if rng.random() < 0.4:
                self._checkpoints = [*self._checkpoints, fresh][-CHECKPOINTS_MAX:]
        finally:
            self.is_publishing = False
            life.log.next = None
        self.check()

    def check(self) -> None:
        """See that the shadows are what the newest version is, all together."""
        if (life := self.life) is None:
            return
        shadow = {tile: bits for part in life.shadows for tile, bits in part.items()}
        self._history.check_bits("the shadow", life.publisher.version, shadow)
