"""The receiver: a thread that stages versions while an engine generates."""

import threading
from collections.abc import Callable
from typing import Final

from rose.closing import Closing
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import UNSIGNED, Signing
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import Outcome
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import ReadTile, Staging
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.rounds import BACKOFF_MAX_S, BACKOFF_S, Rounds
from rose.transfer.source import Source
from rose.transfer.version import Version

WAIT_S: Final = 0.5
# Between two tries to end a pull of a receiver that is closed.
BREAK_OFF_S: Final = 0.1


class Receiver(Staging, Closing):
    """Brings the versions of a publisher to one set of weights.

    The engine's thread calls `take_staged`, commits, and calls `report`; neither waits for the
    network. The receiver's own thread, which starts at once, does everything else until `close`.

    Args:
        source: the publisher.
        name: tells its receivers apart.
        held: what the weights are called; any name will do for weights of no publisher yet.
        digest: of the weights.
        subscription: the tiles that they have; `Subscription(tiles)` for all.
        on_staged: called by the receiver's thread when a version lies ready; it must not wait.
        base: reads a tile of the weights, from the receiver's thread, while no commit runs. With it
            deltas for a link are unpacked while the engine generates, and not in its pause.
        signing: what the publisher signs with; unsigned by default, for one process.
        digests: of the tiles as they are, where the caller knows them; nobody else changes them.
            With them, a receiver that joins fetches only tiles that differ.
        threads: that look at what came; of an engine's cores.
        backoff_s: before the first further attempt; doubles each time.
        backoff_max_s: the longest pause while the publisher cannot be reached.
        wait_s: how long to wait for a version before looking around; bounds `close`.
    """

    def __init__(  # noqa: PLR0917  (what it is made of is plain in this order)
        self,
        source: Source,
        name: str,
        held: Version,
        digest: Digest,
        subscription: Subscription,
        on_staged: Callable[[], None] | None = None,
        *,
        base: ReadTile | None = None,
        signing: Signing = UNSIGNED,
        digests: TileDigests | None = None,
        threads: int = 1,
        backoff_s: float = BACKOFF_S,
        backoff_max_s: float = BACKOFF_MAX_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self._stop = threading.Event()
        super().__init__(
            source,
            name,
            Held(held, digest),
            subscription,
            puller=Puller(source, self._stop, backoff_s=backoff_s, threads=threads),
            on_staged=on_staged if on_staged is not None else _nothing,
            base=base,
            signing=signing,
            digests=digests,
        )
        self._wait_s = wait_s
        # Rung when the engine has taken or reported, or the receiver is closed.
        self._bell = threading.Event()
        self._rounds = Rounds(
            self._round,
            who="receiver",
            name=f"rose-receiver-{name}",
            stop=self._stop,
            rest=self._wait_for_work,
            backoff_s=backoff_s,
            backoff_max_s=backoff_max_s,
        )
        self._rounds.start()

    @property
    def failure(self) -> str | None:
        """Return what is in the way, one sentence; None while all is well."""
        return self._rounds.failure

    def report(self, outcome: Outcome) -> None:
        """Take what came of the version that was taken."""
        super().report(outcome)
        self._bell.set()

    def drifted(self, digests: TileDigests) -> None:
        """Repair weights that are not what they are held to be; their tiles have these digests."""
        super().drifted(digests)
        self._bell.set()

    def close(self) -> None:
        """Stop and join the thread; what is staged is dropped.

        A pull that waits for a slow frame is broken off.
        """
        self._stop.set()
        self._bell.set()
        # Again and again: it may have been about to ask for chunks when it was told.
        while not self._rounds.has_ended(BREAK_OFF_S):
            self._source.break_off()
        self._rounds.close()

    def _round(self) -> None:
        self._bell.clear()
        self.round(self._wait_s)

    def _wait_for_work(self) -> None:
        if self.is_idle and not self._stop.is_set():
            self._bell.wait(self._wait_s)


def _nothing() -> None:
    pass
