"""Staging: what a receiver holds, what it fetches next, and what came of it.

Threadless, so that every order of events can be tried; `Receiver` gives it a thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeAlias

from rose.errors import CorruptData, InvalidArgument, Unavailable, check
from rose.transfer.codec.strat import strat_unpack
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import UNSIGNED, Manifest, Signing, StagedVersion, UpdateKey
from rose.transfer.receiving.chain import Choice, Held, as_held, next_version
from rose.transfer.receiving.commit import CommitState, Outcome
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.source import NOTHING_KNOWN, Source
from rose.transfer.version import Version


class ReceiverState(Enum):
    """Where a receiver is with the next version."""

    SYNCED = "it holds a version, and looks for the next"
    STAGING = "chunks come in"
    STAGED = "a version lies ready"
    APPLYING = "the engine commits it"
    ROLLED_BACK = "the commit went back; what to do next is not yet said"
    QUARANTINED = "its weights are no known version; final"


MOVES: Final = frozenset(
    {
        (ReceiverState.SYNCED, ReceiverState.STAGING),
        (ReceiverState.STAGING, ReceiverState.SYNCED),
        (ReceiverState.STAGING, ReceiverState.STAGED),
        (ReceiverState.STAGED, ReceiverState.APPLYING),
        (ReceiverState.STAGED, ReceiverState.SYNCED),
        (ReceiverState.APPLYING, ReceiverState.SYNCED),
        (ReceiverState.APPLYING, ReceiverState.ROLLED_BACK),
        (ReceiverState.ROLLED_BACK, ReceiverState.SYNCED),
        (ReceiverState.APPLYING, ReceiverState.QUARANTINED),
    }
)


ReadTile: TypeAlias = Callable[[int], Any]

# Answers that wait for a publisher that cannot be reached; the oldest are dropped.
REPORTS_MAX: Final = 64
# Pulls of a version that is told of and lacks a chunk, before it counts as kept no more.
MISSES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class ReceiverStatistics:
    """What a receiver did so far.

    Args:
        received_bytes: of chunks, damaged ones included.
        versions: committed.
        rolled_back: commits that went back, abandoned ones too.
        chunks_retried: attempts after a damaged chunk.
        seeds: staged, of all tiles or of those that differed.
        repaired: tiles that came whole.
        given_up: versions whose chunks stayed damaged.
    """

    received_bytes: int
    versions: int
    rolled_back: int
    chunks_retried: int
    seeds: int
    repaired: int
    given_up: int


class Staging:
    """Follows the chain of versions.

    One thread calls `round`, one thread takes and reports; the lock guards the state, what is held
    and what is staged, and is held over no call to the source.

    Args:
        source: the publisher.
        name: of the receiver, for reports.
        held: what the weights are and their digest.
        subscription: the tiles that they have.
        puller: gets chunks from the same source.
        on_staged: called by `round`, without a lock, when a version lies ready.
        base: reads a tile of the weights. Called by `round`, and only between commits, when they
            are what is held; so deltas for a link become such that can be applied while the engine
            still generates. Without it, the commit does that.
        signing: what manifests must be signed with.
        digests: of the tiles as they are, where the caller knows them.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        held: Held,
        subscription: Subscription,
        *,
        puller: Puller,
        on_staged: Callable[[], None],
        base: ReadTile | None = None,
        signing: Signing = UNSIGNED,
        digests: TileDigests | None = None,
    ) -> None:
        # That was committed from: what another run of the same key once signed leads nowhere,
        # whoever says it again.
        self._run: str | None = None
        self._source = source
        self._name = name
        self._subscription = subscription
        self._signing = signing
        self._digests = digests
        self._puller = puller
        self._on_staged = on_staged
        self._base = base
        self._lock = threading.Lock()
        self._held = held
        self._state = ReceiverState.SYNCED
        self._staged: StagedVersion | None = None
        self._reports: deque[tuple[int, bool, Digest]] = deque(maxlen=REPORTS_MAX)
        self._versions = self._rolled_back = self._seeds = self._repaired = self._given_up = 0
        self._missing: tuple[UpdateKey | None, int] = (None, 0)  # what did not come, how often
        # The oldest seed that would help; None while deltas do. Set by the thread of `round`, and
        # by a report, while that thread has nothing to do.
        self._seed_from: int | None = None
        # What the weights were held to be when a link did not fit them: there they may be repaired.
        self._repair_at: Version | None = None

    # ---- the engine's side

    @property
    def held(self) -> Version:
        """Return the version that the weights are."""
        return self._holding().version

    @property
    def digest(self) -> Digest:
        """Return the digest of the weights."""
        return self._holding().digest

    def _holding(self) -> Held:
        with self._lock:
            return self._held

    @property
    def state(self) -> ReceiverState:
        """Return where it is."""
        with self._lock:
            return self._state

    @property
    def is_idle(self) -> bool:
        """Whether `round` has nothing to do until the engine comes by."""
        with self._lock:
            is_at_rest = self._state is not ReceiverState.SYNCED
            return is_at_rest and self._repair_at is None and not self._reports

    @property
    def staged_version(self) -> Version | None:
        """Return what lies ready; None when nothing does."""
        with self._lock:
            is_ready = self._state is ReceiverState.STAGED and self._staged is not None
            return self._staged.manifest.version if is_ready and self._staged else None

    def _drop_staged(self) -> None:
        if self._state is ReceiverState.STAGED:
            self._staged = None
            self._move(ReceiverState.SYNCED)

    def drifted(self, digests: TileDigests) -> None:
        """Repair weights that were found to be others than they are held to be, tile by tile.

        What lies ready is dropped: it was made for what they were held to be. During a commit this
        does nothing: one that was given these digests goes back by itself.

        Args:
            digests: of the tiles as they are.
        """
        with self._lock:
            if self._state in {ReceiverState.APPLYING, ReceiverState.QUARANTINED}:
                return
            held = self._held.version
            self._drop_staged()
            self._digests = digests.copy()
            self._held = Held(Version("", 0, held.n), digests.total)
            self._repair_at = held if self._versions > 0 and held.run != "" else self._repair_at
            self._seed_from = held.n

    @property
    def stats(self) -> ReceiverStatistics:
        """Return the figures so far."""
        with self._lock:
            return ReceiverStatistics(
                received_bytes=self._puller.received_bytes,
                versions=self._versions,
                rolled_back=self._rolled_back,
                chunks_retried=self._puller.retried,
                seeds=self._seeds,
                repaired=self._repaired,
                given_up=self._given_up,
            )

    def take_staged(self) -> StagedVersion | None:
        """Hand out the version that lies ready; `report` must follow before there is another."""
        with self._lock:
            if self._state is not ReceiverState.STAGED:
                return None
            self._move(ReceiverState.APPLYING)
            return self._staged

    def report(self, outcome: Outcome) -> None:
        """Take what came of the version that was handed out; the publisher hears of it later."""
        with self._lock:
            check(
                self._staged is not None and self._staged.manifest.version == outcome.version,
                f"{outcome.version} was not handed out",
            )
            is_whole = self._staged is not None and self._staged.manifest.is_seed
            self._staged = None
            self._digests = outcome.digests
            if outcome.state is CommitState.COMMITTED:
                self._committed(outcome)
            elif outcome.state is CommitState.ROLLED_BACK:
                self._went_back(outcome, is_whole=is_whole)
            else:
                self._move(ReceiverState.QUARANTINED)
            if not outcome.is_abandoned:
                is_match = outcome.state is CommitState.COMMITTED
                self._reports.append((outcome.version.n, is_match, outcome.digest))

    def _committed(self, outcome: Outcome) -> None:
        self._move(ReceiverState.SYNCED)
        self._held = Held(outcome.version, outcome.digest)
        self._versions += 1
        self._run = outcome.version.run
        self._seed_from = self._repair_at = None

    def _went_back(self, outcome: Outcome, *, is_whole: bool) -> None:
        held = self._held
        self._move(ReceiverState.ROLLED_BACK)
        self._rolled_back += 1
        was_as_held = outcome.digest == held.digest
        if not was_as_held:
            # The weights were not what they were held to be, so they have no name.
            self._held = Held(Version("", 0, self._held.version.n), outcome.digest)
        if not outcome.is_abandoned:
            was_in_chain = self._versions > 0 and held.version.run != "" and not is_whole
            self._repair_at = held.version if was_in_chain else None
            # A whole version that could not be committed is not tried again; a newer one is. But
            # one that lacked tiles, because the weights were not what they were held to be, is.
            self._seed_from = outcome.version.n + (is_whole and was_as_held)
        self._move(ReceiverState.SYNCED)

    # ---- the side of the network

    def round(self, timeout_s: float) -> None:
        """Send what is to be said, and stage the next version if there is one within the time.

        Weights that a link did not fit are repaired where they are, tile by tile, if the publisher
        can still make that version; otherwise the newest comes whole, as far as it differs.

        Raises:
            Unavailable: the publisher cannot be reached, or lacks what it tells of; call again
                later.
            OutOfMemory: it has no room for a seed.
            CorruptData: what it says makes no sense, or a seed came damaged.
            InvalidArgument: its weights are another row than the receiver's.
        """
        self._send_reports()
        if self.state is not ReceiverState.SYNCED:
            return
        if (at := self._repair_at) is not None:
            self._repair_at = None  # tried once
            if self._stage_seed(at.n, named=at, is_repair=True):
                return
        if self._seed_from is not None:
            self._join(self._seed_from, timeout_s)
            return
        held = self._holding()
        chosen = self._choose(held, timeout_s)
        if isinstance(chosen, Manifest):
            self._stage(chosen, held)
        elif chosen is Choice.SEED:
            self._seed_from = self.held.n if self._versions else NOTHING_KNOWN

    def _send_reports(self) -> None:
        while True:
            with self._lock:
                if not self._reports:
                    return
                n, is_match, digest = self._reports[0]
            with suppress(InvalidArgument):  # what the publisher does not take is only that one
                self._source.report(self._name, n, is_match, digest)
            with self._lock:
                self._reports.popleft()

    def _choose(self, held: Held, timeout_s: float) -> Manifest | Choice:
        offered = self._offered(self._source.wait_manifests(self._after_n(held), timeout_s))
        chosen = self._next(held, offered)
        if chosen is Choice.WAIT and offered:
            # They came at once and say nothing to this receiver: wait until there are others.
            self._source.wait_manifests(max(one.version.n for one in offered), timeout_s)
        return chosen

    def _next(self, held: Held, offered: Sequence[Manifest]) -> Manifest | Choice:
        chosen = next_version(held, offered, self._subscription)
        if isinstance(chosen, Manifest) and not self._is_base_of(chosen, held):
            return Choice.SEED
        return chosen

    def _is_base_of(self, link: Manifest, held: Held) -> bool:
        """Whether the weights are what a link starts at, and not only called so.

        A link says the digest of all tiles of its base. Who holds some of them goes by the name of
        what it holds; until a commit has shown that to be true, it asks what that version is.
        """
        subscription = self._subscription
        if self._versions > 0 or subscription.is_all or link.base_digest == held.digest:
            return True
        survey = self._seed(held.version.n, ())
        if survey is None or survey.version != held.version:
            return False
        return subscription.digest_of(survey) == held.digest

    def _after_n(self, held: Held) -> int:
        """Ask for all that is kept, unless what is held is known to be of a publisher's chain."""
        is_known = self._versions > 0 and held.version.run != ""
        return held.version.n if is_known else NOTHING_KNOWN

    def _join(self, at_least_n: int, timeout_s: float) -> None:
        """Stage the newest version whole, as far as it differs; wait until it is new enough.

        Raises:
            Unavailable: one that is new enough is told of, and does not come.
        """
        if not self._source.wait_manifests(at_least_n - 1, timeout_s):
            return
        if not self._stage_seed(None, at_least_n=at_least_n):
            raise Unavailable(
                f"version {at_least_n} or a newer one is told of, and none comes whole"
            )

    def _stage_seed(
        self,
        n: int | None,
        *,
        named: Version | None = None,
        at_least_n: int = NOTHING_KNOWN,
        is_repair: bool = False,
    ) -> bool:
        """Ask what a version is, and stage those tiles of it that differ; return whether it was."""
        survey = self._seed(n, ())
        if survey is None or (named is not None and survey.version != named):
            return False
        if survey.version.n < at_least_n or self._is_dead(survey.version):
            return False
        held = self._holding()
        if self._subscription.digest_of(survey) == held.digest:
            if not is_repair:
                self._stage(as_held(survey, held), held)
            return not is_repair
        seed = self._seed(survey.version.n, self._differing(survey))
        if seed is None or seed.version != survey.version:
            return False  # it moved on meanwhile
        self._stage(seed, held)
        return True

    def _is_dead(self, version: Version) -> bool:
        held = self.held
        return version.run == held.run and version.incarnation < held.incarnation

    def _differing(self, survey: Manifest) -> list[int]:
        """Return the tiles that are not what they are in a version; all that may be others."""
        known, wanted = self._digests, self._subscription.wanted
        if known is None or not survey.tile_digests or any(one not in known for one in wanted):
            return list(wanted)
        differing = [one for one in wanted if known[one] != survey.tile_digests[one]]
        return differing or list(wanted)  # not what they were held to be: take none on trust

    def _seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        manifest = self._source.seed(n, tiles)
        if manifest is None:
            return None
        self._offered([manifest])
        if not manifest.is_seed or [one.tile for one in manifest.chunks] != list(tiles):
            raise CorruptData(f"{manifest.version} came as a seed of tiles that were not asked for")
        return manifest

    def _offered(self, manifests: list[Manifest]) -> list[Manifest]:
        """Return those of the publisher; one that it did not sign is as if it had not come.

        Nor has one of another run come than the receiver's.

        Raises:
            CorruptData: it signed none of them, or one cannot be what it says.
            InvalidArgument: they are of another run, or of other weights.
        """
        signed = [one for one in manifests if self._signing.is_signed(one)]
        if manifests and not signed:
            raise CorruptData(f"{manifests[-1].version} is not signed by the publisher")
        manifests, tiles = self._of_run(signed), self._subscription.tiles
        if manifests and all(one.layout != tiles.layout for one in manifests):
            other = manifests[-1]
            raise InvalidArgument(
                f"the publisher has {other.count} elements in {other.tile_count} tiles, and the "
                f"receiver {tiles.count} in {len(tiles)}: their layouts differ"
            )
        size = (len(tiles), tiles.count)
        for one in manifests:
            if one.layout == tiles.layout and (one.tile_count, one.count) != size:
                raise CorruptData(f"{one.version} says other sizes than its layout has")
        return manifests

    def _of_run(self, manifests: list[Manifest]) -> list[Manifest]:
        run = self._run
        if run is None:
            return manifests
        same = [one for one in manifests if one.version.run == run]
        if manifests and not same:
            other = manifests[-1].version
            raise InvalidArgument(f"{other} is of another run than {run}: begin another receiver")
        return same

    def _stage(self, manifest: Manifest, held: Held) -> None:
        """Bring a version here that was chosen for `held`; nothing, if the weights are others now.

        Who holds some tiles only cannot tell by a link itself that it is for another base.
        """
        with self._lock:
            if self._held is not held:
                return
            self._move(ReceiverState.STAGING)
        staged: StagedVersion | None = None
        try:
            pulled = self._puller.pull(manifest, self._subscription)
            if pulled is None:
                self._missed(manifest)
            else:
                staged = self._unlinked(pulled)
                self._puller.forget()
        except CorruptData:
            self._given_up += 1
            if manifest.is_seed:
                raise
            self._seed_from = manifest.version.n
        finally:
            with self._lock:
                if self._held is not held:
                    staged = None  # it was made for what the weights are not
                self._staged = staged
                self._move(ReceiverState.SYNCED if staged is None else ReceiverState.STAGED)
        if staged is not None:
            if manifest.is_seed:
                self._seeds += 1
                self._repaired += len(staged.deltas)
            self._on_staged()

    def _missed(self, manifest: Manifest) -> None:
        """Go on by a seed where a version is kept no more.

        A relay cannot always get a chunk of what it tells of, so while a version is told of it is
        tried again, some times: whole tiles are more bytes than waiting.

        Raises:
            Unavailable: it is told of still.
        """
        key, times = self._missing
        self._missing = (manifest.key, times + 1 if key == manifest.key else 1)
        if not manifest.is_seed and self._missing[1] < MISSES_MAX:
            told = self._source.wait_manifests(manifest.version.n - 1, 0)
            if any(one.key == manifest.key for one in told):
                raise Unavailable(f"{manifest.version} is told of, and a chunk of it does not come")
        self._seed_from = manifest.version.n

    def _unlinked(self, staged: StagedVersion) -> StagedVersion:
        """Make of deltas for a link such that can be applied.

        Raises:
            CorruptData: the weights are not the base that a delta was made from.
        """
        base = self._base
        if base is None:
            return staged
        deltas = tuple(
            (tile, delta if delta.rule is None else strat_unpack(delta, base(tile)))
            for tile, delta in staged.deltas
        )
        return replace(staged, deltas=deltas)

    def _move(self, to: ReceiverState) -> None:
        check((self._state, to) in MOVES, f"receiver: {self._state.name} -> {to.name}")
        self._state = to
