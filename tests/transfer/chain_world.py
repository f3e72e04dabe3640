"""A publisher that merges, and receivers behind it, all in one thread."""

import threading

from bench.row_publisher import RowPublisher
from rose.transfer.manifest import Subscription, UpdateKey
from rose.transfer.publishing.contributor import Encoding
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.merger import Merger
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import Commit, CommitState
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import Staging
from rose.transfer.signing import Signing
from rose.transfer.source import Source, SourceAround
from rose.transfer.tiles import Row
from tests.transfer.worker import NAMELESS, TILE, TILES, Bits, changed, row_digest, weights

KEY = Signing(b"k" * 32)


class Chain:
    """A publisher that merges in this thread, and the bits of every version."""

    def __init__(
        self, *, encoding: Encoding = "gap", signing: Signing = KEY, **limits: int
    ) -> None:
        self.log = VersionLog(**limits)
        self.merger = Merger(self.log, signing)
        self.bits = weights(1)
        self.publisher = RowPublisher(
            self.bits, "run", 1, 1, self.log,
            tile_elements=TILE, encoding=encoding, signing=signing, on_published=self.merger.note,
        )  # fmt: skip
        self.by_n = {1: self.bits}

    def publish(self, versions: int = 1, *, is_merged: bool = True, share: float = 0.05) -> None:
        for _ in range(versions):
            n = self.publisher.version.n + 1
            self.bits = changed(self.bits, n, share)
            self.publisher.publish(self.bits)
            self.by_n[n] = self.bits
            while is_merged and self.merger.step():
                pass

    def merged_there(self) -> list[tuple[int, int]]:
        keys = [one.key for one in self.log.wait_manifests(-1, 0)]
        return sorted((key.base_n, key.n) for key in keys if key.n - key.base_n > 1)


class Behind:
    """A receiver that holds some version and follows, in this thread."""

    def __init__(self, source: Source, bits: Bits, signing: Signing = KEY) -> None:
        self.bits = bits.copy()
        self.row = Row(self.bits, TILES)
        self.source = SourceAround(source)
        self.staging = Staging(
            self.source, "behind", Held(NAMELESS, row_digest(bits)), Subscription(TILES),
            puller=Puller(self.source, threading.Event()),
            on_staged=lambda: None, signing=signing,
        )  # fmt: skip
        self.taken: list[UpdateKey] = []

    def follow(self, n: int) -> None:
        for _ in range(100):
            if self.staging.held.n == n:
                return
            self.round()
        raise AssertionError(f"100 rounds, and at {self.staging.held}")

    def round(self, timeout_s: float = 0) -> None:
        """Stage the next version and commit it, if there is one."""
        self.staging.round(timeout_s)
        if (staged := self.staging.take_staged()) is not None:
            self.taken.append(staged.manifest.key)
            commit = Commit(staged, self.row, self.staging.digest)
            while commit.step():
                pass
            assert commit.state is CommitState.COMMITTED
            self.staging.report(commit.outcome)
