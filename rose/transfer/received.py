"""The receiver: weights in use that follow the versions of a publisher."""

import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final, Protocol

from rose.clock import BootClock
from rose.closing import Closing, Once, weakly
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument
from rose.transfer.digests import TileDigests, hexadecimal
from rose.transfer.manifest import NAMELESS, Subscription, Version
from rose.transfer.receiving.commit import Commit, CommitState, Target
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.receiving.staging import ReceiverStatistics
from rose.transfer.rounds import Rounds
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.source import Source
from rose.units import KIB, MIB, NS_PER_S

# Time in which the background reads all tensors once.
SCRUB_S: Final = 60.0
# Bytes that a commit reads beside the tiles that it changes: all of a small model.
_COMMIT_SCRUB_BYTES: Final = 16 * MIB
_TILE_COST_BYTES: Final = 64 * KIB  # what it costs to read a small tile


class Weights(Target, Protocol):
    """Weights in use, by tile."""

    def digests(self) -> TileDigests:
        """Return the digests of all subscribed tiles, computed from memory."""
        ...


class WeightReceiver(Closing):
    """Weights that follow a publisher; `rose.receive` makes one for tensors.

    A background thread fetches and checks versions, until this object is closed or dropped. Only
    `commit` changes the weights, in the caller's thread; a first sync that `lands` changes them
    before. An engine that commits in slices uses `take` and `settle` in place of `commit`.

    Args:
        weights: weights in use.
        subscription: their tiles.
        source: publisher or relay.
        name: unique name of the receiver.
        signing: signing key of manifests.
        held: name of the present weights; any will do, since their digest identifies them.
        place: function that returns the name of a tile's tensor, for errors.
        check: called before each commit; raises if the weights can no longer be changed.
        on_staged: called by the background thread when a version is ready; must not block.
        scrub_s: see `rose.receive`; 0 for no background scrub.
        lands: whether nobody uses the weights before the first commit, so that a first sync may
            write into them; see `Receiver`.
    """

    def __init__(
        self,
        weights: Weights,
        subscription: Subscription,
        source: Source,
        *,
        name: str,
        signing: Signing = UNSIGNED,
        held: Version = NAMELESS,
        place: Callable[[int], str] = "tile {}".format,
        check: Callable[[], None] = lambda: None,
        on_staged: Callable[[], None] = lambda: None,
        scrub_s: float = 0.0,
        lands: bool = False,
    ) -> None:
        self._once = Once()
        self._weights, self._subscription = weights, subscription
        self._source, self._name, self._signing = source, name, signing
        self._place, self._check, self._lands = place, check, lands
        self._staged = threading.Event()
        self._on_staged = on_staged
        self._clock = BootClock()
        # Held while the weights are changed or scrubbed; guards the digests and the scrub.
        self.lock = threading.Lock()
        self._scrub: Scrub | None = None
        self._next_check = 0  # number of tiles that commits have compared
        self._digests: TileDigests | None = None
        # Neither the stacks nor any thread refer to this object, so that it can be dropped.
        self._following, self._undo = ExitStack(), ExitStack()
        self._undo.push(self._following)
        self._receiver = self._begun(held)
        if scrub_s > 0:
            stop = threading.Event()
            pause_s = scrub_s / max(1, len(subscription.wanted))
            rounds = Rounds(
                weakly(self._scrub_one),
                who="scrub",
                name=f"rose-scrub-{name}",
                stop=stop,
                rest=partial(stop.wait, pause_s),
            )
            rounds.start()
            self._undo.callback(rounds.close)
        self._once.when_dropped(self, self._undo.close)

    def _begun(self, held: Version) -> Receiver:
        """Start a receiver whose base is the present weights, in place of the earlier one."""
        self._following.close()
        self._digests = digests = None if self._lands else self._weights.digests()
        receiver = Receiver(
            self._source,
            self._name,
            held,
            None if digests is None else digests.total,
            self._subscription,
            weakly(self._has_staged),
            base=self._weights.bits,
            signing=self._signing,
            digests=None if digests is None else digests.copy(),
            lands=self._weights if self._lands else None,
        )
        self._following.callback(receiver.close)
        return receiver

    def _has_staged(self) -> None:
        self._staged.set()
        self._on_staged()

    def closes(self, undo: ExitStack) -> None:
        """Close `undo` together with this receiver."""
        self._undo.push(undo)

    @property
    def version(self) -> int | None:
        """Number of the version in the weights; None before the first commit and after damage."""
        held = self.held
        return held.n if held.run else None

    @property
    def held(self) -> Version:
        """The version in the weights: run, incarnation and number; the run is "" if unknown."""
        return self._receiver.held

    @property
    def digest(self) -> str:
        """Digest of the weights after the last commit, as 32 hexadecimal digits."""
        return hexadecimal(self._receiver.digest)

    @property
    def failure(self) -> str | None:
        """The current problem of the background thread, one sentence; None if there is none."""
        return self._receiver.failure

    @property
    def ready(self) -> Version | None:
        """The version that is ready to commit."""
        return self._receiver.staged_version

    @property
    def statistics(self) -> ReceiverStatistics:
        """Counters of the receiver."""
        return self._receiver.stats

    def wait(self, timeout_s: float) -> None:
        """Wait until a newer version is ready to commit.

        Raises:
            DeadlineExceeded: no version was ready in time; the message has the cause, if known.
            InvalidArgument: the time is no finite number.
            Unavailable: the receiver is closed.
        """
        if not math.isfinite(timeout_s):
            raise InvalidArgument(f"timeout_s {timeout_s}: choose a finite number of seconds")
        end_ns = self._clock.now_ns() + round(timeout_s * NS_PER_S)
        while True:
            self._once.check_open("this receiver")
            if self.ready is not None:
                return
            left_ns = end_ns - self._clock.now_ns()
            if left_ns <= 0:
                reason = self._receiver.failure
                raise DeadlineExceeded(
                    f"no new version was ready within {timeout_s:g} s"
                    + (f": {reason}" if reason else "")
                )
            self._staged.wait(left_ns / NS_PER_S)
            self._staged.clear()

    def commit(self) -> int | None:
        """Write the ready version into the weights; call it between two steps of the engine.

        It also compares some of the tiles that the version does not change, up to 16 MiB, with
        their digests.

        Returns:
            The version's number; None if no version is ready.

        Raises:
            CorruptData: someone else changed the weights, or a digest differs. The old values are
                restored; if that fails too, the weights hold no known version. A later `commit`
                repairs them.
            InvalidArgument: tensors were moved to other memory.
            Unavailable: the receiver is closed.
        """
        self._once.check_open("this receiver")
        with self.lock:
            commit = None if self.check_ready() is None else self.take()
            if commit is None:
                return None
            try:
                outcome = commit.run()
            finally:
                self.settle(commit)
        if outcome.state is not CommitState.COMMITTED:
            raise CorruptData(f"version {outcome.version.n} was not committed: {outcome.reason}")
        return outcome.version.n

    def check_ready(self) -> Version | None:
        """Return the ready version, if any, after the checks of `commit`; the lock must be held."""
        ready = self._receiver.staged_version
        if ready is not None:
            self._check()
            self._check_others(ready)
        return ready

    def take(self) -> Commit | None:
        """Return the commit of the ready version; None if there is none. `settle` must follow."""
        staged = self._receiver.take_staged()
        if staged is None:
            return None
        return Commit(
            staged,
            self._weights,
            self._receiver.digest,
            digests=self._digests,
            subscribed=self._subscription.wanted,
        )

    def settle(self, commit: Commit) -> None:
        """Continue from the present weights after a commit, also after an interrupted one."""
        if commit.state is CommitState.QUARANTINED:
            self._receiver = self._begun(NAMELESS)
        else:
            self._digests = commit.digests
            self._receiver.report(commit.outcome)

    def choose_anew(self) -> None:
        """See `Staging.choose_anew`."""
        self._receiver.choose_anew()

    def repair(self, digests: TileDigests) -> None:
        """Fetch the tiles that somebody else has changed; `digests` are the actual ones."""
        self._receiver.repair(digests)

    def close(self) -> None:
        """Stop receiving; the weights keep their version."""
        self._once(self._close)

    def _close(self) -> None:
        self._staged.set()  # ends a `wait` in another thread
        self._following.close()
        self._undo.close()

    def _check_others(self, ready: Version) -> None:
        """Compare the next tiles with their digests; all of them, if they are small.

        Raises:
            CorruptData: somebody else has changed a tile.
        """
        digests, tiles = self._digests, self._subscription.wanted
        if digests is None or not self._receiver.held.run:
            return  # the values before the first commit are the caller's
        left, changed = _COMMIT_SCRUB_BYTES, {}
        for _ in tiles:
            tile = tiles[self._next_check % len(tiles)]
            found = self._weights.digest(tile)
            if found != digests[tile]:
                changed[tile] = found
            self._next_check += 1
            left -= max(self._subscription.tiles[tile].nbytes, _TILE_COST_BYTES)
            if left <= 0:
                break
        if changed:
            digests.update(changed)
            self._scrub = None
            self._receiver.repair(digests)
            names = sorted({self._place(tile) for tile in changed})
            raise CorruptData(
                f"version {ready.n} was not committed: somebody else wrote to {', '.join(names)}; "
                f"the next commit repairs that"
            )

    def _scrub_one(self) -> None:
        """Read the next tile, and have damage repaired."""
        with self.lock:
            scrub = self._scrubbing()
            if scrub is not None:
                scrub.step(0)
                if scrub.corrupted:
                    self._scrub = None
                    self._receiver.repair(scrub.digests)

    def _scrubbing(self) -> Scrub | None:
        """Return the scrub in progress, or the next one; None before the first commit."""
        if self._digests is None or not self._receiver.held.run:
            return None  # the values before the first commit are the caller's
        if self._scrub is None or self._scrub.is_over or self._scrub.digests is not self._digests:
            self._scrub = Scrub(self._weights, self._digests, clock=self._clock)
        return self._scrub
