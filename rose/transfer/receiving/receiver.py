"""The receiver: a thread that stages versions while an engine generates."""

import threading
from collections.abc import Callable
from typing import Final

from rose.closing import Closing, Once
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import Subscription, Version
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import CommitOutcome, Target
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import ReadTile, Staging
from rose.transfer.rounds import Rounds
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.source import Source

# Longest wait for a version, in seconds; it bounds `Receiver.close`.
WAIT_S: Final = 0.5
LANDING_THREADS: Final = 2
# Interval between attempts to end a pull of a closed receiver.
BREAK_OFF_S: Final = 0.1


class Receiver(Staging, Closing):
    """Fetches the versions of a publisher for one set of weights.

    The engine's thread calls `take_staged`, commits, and calls `report`. These calls do not wait
    for the network. The receiver's own thread, started at once, does everything else until `close`.

    Args:
        source: the publisher.
        name: name that identifies this receiver to the publisher.
        held: version of the weights; any name will do before the first commit.
        digest: digest of the weights; None with `lands`.
        subscription: tiles of the weights; `Subscription(tiles)` for all.
        on_staged: called by the receiver's thread when a version is staged; must not block.
        base: function that reads a tile of the weights; called by the receiver's thread while no
            commit runs. With this function, STRAT deltas are decoded while the engine generates;
            without it, in the commit.
        signing: key shared with the publisher; none by default, for use in one process.
        digests: current digests of the tiles, if known; the caller no longer changes them. With
            them, a new receiver fetches only tiles that differ.
        threads: threads that validate chunks, on the engine's cores.
        lands: weights that nobody uses before the first commit. Until then the receiver's thread
            writes whole tiles straight into them, so a first sync needs no second copy, and the
            commit only names the version. It also reads what they hold: the caller need not.
    """

    def __init__(  # noqa: PLR0917  (the positional ones are in natural order)
        self,
        source: Source,
        name: str,
        held: Version,
        digest: Digest | None,
        subscription: Subscription,
        on_staged: Callable[[], None] = lambda: None,
        *,
        base: ReadTile | None = None,
        signing: Signing = UNSIGNED,
        digests: TileDigests | None = None,
        threads: int = 1,
        lands: Target | None = None,
    ) -> None:
        self._once = Once()
        self._stop = threading.Event()
        super().__init__(
            source,
            name,
            Held(held, (0, 0) if digest is None else digest),
            subscription,
            puller=Puller(
                source,
                self._stop,
                threads=threads,
                # Nobody generates with weights that land, so two threads are in nobody's way.
                landing_threads=max(threads, LANDING_THREADS),
                signing=signing,
            ),
            on_staged=on_staged,
            base=base,
            signing=signing,
            digests=digests,
            lands=lands,
        )
        # Set when the engine reports a result or a corruption, and at `close`.
        self._bell = threading.Event()
        self._rounds = Rounds(
            self._round,
            who="receiver",
            name=f"rose-receiver-{name}",
            stop=self._stop,
            rest=self._wait_for_work,
        )
        self._rounds.start()

    @property
    def failure(self) -> str | None:
        """Return the current problem, one sentence; None if there is none."""
        return self._rounds.failure or self.obstacle

    def report(self, outcome: CommitOutcome) -> None:
        """Accept the result of committing the version from `take_staged`."""
        super().report(outcome)
        self._bell.set()

    def repair(self, digests: TileDigests) -> None:
        """Repair weights that were found corrupted; `digests` are the actual digests."""
        super().repair(digests)
        self._bell.set()

    def close(self) -> None:
        """Stop and join the thread; a staged version is dropped.

        A pull that waits for a slow frame is interrupted.
        """
        self._once(self._close)

    def _close(self) -> None:
        self._stop.set()
        self._bell.set()
        # Repeated, because the thread may start another pull after the first call.
        while not self._rounds.has_ended(BREAK_OFF_S):
            self._source.break_off()
        self._rounds.close()

    def _round(self) -> None:
        self._bell.clear()
        self.round(WAIT_S)

    def _wait_for_work(self) -> None:
        if self.is_idle and not self._stop.is_set():
            self._bell.wait(WAIT_S)
