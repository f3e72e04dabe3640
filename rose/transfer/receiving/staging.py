"""Staging: records a receiver's version, chooses the next version, and fetches its chunks.

`Staging` has no thread, so that tests can try every order of events. `Receiver` adds a thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeAlias

from rose.errors import (
    CorruptData,
    InternalError,
    InvalidArgument,
    RoseError,
    Unavailable,
    check,
)
from rose.transfer.codec.strat import strat_unpack
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import Manifest, StagedVersion, Subscription, UpdateKey, Version
from rose.transfer.receiving.chain import Choice, Held, as_held, is_same_chain, next_version
from rose.transfer.receiving.commit import CommitOutcome, CommitState, Target
from rose.transfer.receiving.puller import Puller
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.source import NOTHING_KNOWN, Source
from rose.units import ceil_div


class ReceiverState(Enum):
    """State of a receiver's next version."""

    SYNCED = "no version is staged; the receiver looks for the next"
    STAGING = "the chunks of a version are being fetched"
    STAGED = "a version is ready to be committed"
    APPLYING = "the engine commits the version"
    ROLLED_BACK = "the commit was rolled back; the next action is not chosen yet"
    QUARANTINED = "the weights match no known version; final"


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

# Most reports that wait for an unreachable publisher; beyond this number the oldest are dropped.
REPORTS_MAX: Final = 64
# Tiles read to learn whether weights are worth reading: some hundredths of a second at 2 MiB each.
SAMPLED_TILES: Final = 64
# An offered version that lacks a chunk in this many pulls counts as no longer kept.
MISSES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class ReceiverStatistics:
    """Counters of a receiver.

    Args:
        received_bytes: bytes of chunks, damaged chunks included.
        versions: versions committed.
        chunks_retried: retries after damaged chunks.
        snapshots: snapshots staged, of all tiles or only of differing tiles.
        repaired: whole tiles received.
        given_up: versions given up because chunks stayed damaged.
    """

    received_bytes: int
    versions: int
    chunks_retried: int
    snapshots: int
    repaired: int
    given_up: int


class Staging:
    """Follows the chain of versions.

    One thread calls `round`; another takes staged versions and reports results. The lock guards the
    state, the current version and the staged version. It is not held during calls to the source.

    Args:
        source: the publisher.
        name: name of the receiver, for reports.
        held: version and digest of the weights.
        subscription: tiles of the weights.
        puller: puller for the same source.
        on_staged: called by `round`, without a lock, when a version is staged.
        base: function that reads a tile of the weights; called by `round`, only between commits.
            With this function, STRAT deltas are decoded while the engine generates; without it, in
            the commit.
        signing: key with which manifests must be signed.
        digests: current digests of the tiles, if known.
        lands: weights that nobody uses before the first commit. Until then, `round` writes whole
            tiles straight into them, and reads what they hold itself. A first sync that was
            interrupted leaves them torn, without a version; the next one fetches only what differs.
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
        lands: Target | None = None,
    ) -> None:
        # Version of the last commit.
        self._followed: Version | None = None
        # Why the source has nothing for this receiver, although it has versions.
        self.obstacle: str | None = None
        # False while the source may be another publisher than the one of the last commit.
        self._is_same_source = False
        self._source = source
        self._name = name
        self._subscription = subscription
        self._signing = signing
        self._digests = digests
        self._puller = puller
        self._on_staged = on_staged
        self._base = base
        self._lands = lands
        # Digests of tiles of `lands`, as read; None until the first look at them.
        self._found: dict[int, Digest] | None = None
        self._lock = threading.Lock()
        self._held = held
        self._state = ReceiverState.SYNCED
        self._staged: StagedVersion | None = None
        self._reports: deque[tuple[int, bool, Digest]] = deque(maxlen=REPORTS_MAX)
        self._versions = self._snapshots = self._repaired = self._given_up = 0
        # Last update with a missing chunk, and the number of its pulls.
        self._missing: tuple[UpdateKey | None, int] = (None, 0)
        # Lowest version whose snapshot would help; None while deltas suffice. Set by the thread of
        # `round`, by `repair`, and by `report` while that thread is idle.
        self._snapshot_from: int | None = None
        # Version to which `round` tries to repair weights that are corrupted or do not fit a delta.
        self._repair_at: Version | None = None

    # ---- the engine's side

    @property
    def held(self) -> Version:
        """Return the version of the weights."""
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
        """Return the current state."""
        with self._lock:
            return self._state

    @property
    def is_idle(self) -> bool:
        """True if `round` has nothing to do until the engine calls."""
        with self._lock:
            is_at_rest = self._state is not ReceiverState.SYNCED
            return is_at_rest and self._repair_at is None and not self._reports

    @property
    def staged_version(self) -> Version | None:
        """Return the staged version, if any."""
        with self._lock:
            is_ready = self._state is ReceiverState.STAGED and self._staged is not None
            return self._staged.manifest.version if is_ready and self._staged else None

    def _drop_staged(self) -> None:
        if self._state is ReceiverState.STAGED:
            self._staged = None
            self._move(ReceiverState.SYNCED)

    def repair(self, digests: TileDigests) -> None:
        """Repair weights that were found corrupted, tile by tile.

        A staged version is dropped, since it was made for other weights. During a commit this does
        nothing: a commit that knows these digests rolls back by itself.

        Args:
            digests: actual digests of the tiles.
        """
        with self._lock:
            if self._state in {ReceiverState.APPLYING, ReceiverState.QUARANTINED}:
                return
            held = self._held.version
            self._drop_staged()
            self._digests = digests.copy()
            self._held = Held(Version("", 0, held.n), digests.total)
            self._repair_at = held if self._versions > 0 and held.run != "" else self._repair_at
            self._snapshot_from = held.n

    @property
    def stats(self) -> ReceiverStatistics:
        """Return the counters."""
        with self._lock:
            return ReceiverStatistics(
                received_bytes=self._puller.received_bytes,
                versions=self._versions,
                chunks_retried=self._puller.retried,
                snapshots=self._snapshots,
                repaired=self._repaired,
                given_up=self._given_up,
            )

    def take_staged(self) -> StagedVersion | None:
        """Return the staged version, if any; `report` must follow before the next call."""
        with self._lock:
            if self._state is not ReceiverState.STAGED:
                return None
            self._move(ReceiverState.APPLYING)
            return self._staged

    def report(self, outcome: CommitOutcome) -> None:
        """Accept the result of committing the version from `take_staged`.

        The publisher is informed later.
        """
        with self._lock:
            check(
                self._staged is not None and self._staged.manifest.version == outcome.version,
                f"version {outcome.version} is reported but was not taken",
            )
            is_whole = self._staged is not None and self._staged.manifest.is_snapshot
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

    def _committed(self, outcome: CommitOutcome) -> None:
        self._move(ReceiverState.SYNCED)
        self._held = Held(outcome.version, outcome.digest)
        self._versions += 1
        self._followed = outcome.version
        self._snapshot_from = self._repair_at = None

    def _went_back(self, outcome: CommitOutcome, *, is_whole: bool) -> None:
        held = self._held
        self._move(ReceiverState.ROLLED_BACK)
        was_as_held = outcome.digest == held.digest
        if not was_as_held:
            # The weights were not the version that they should be, so they have no name.
            self._held = Held(Version("", 0, self._held.version.n), outcome.digest)
        if not outcome.is_abandoned:
            was_in_chain = self._versions > 0 and held.version.run != "" and not is_whole
            self._repair_at = held.version if was_in_chain else None
            # A snapshot that could not be committed is not tried again, only a newer one. But a
            # snapshot is tried again if it lacked tiles because the weights had an unexpected
            # digest.
            self._snapshot_from = outcome.version.n + (is_whole and was_as_held)
        self._move(ReceiverState.SYNCED)

    def choose_anew(self) -> None:
        """Forget which snapshot is needed; only for the thread of `round`, as from its source.

        For a source that offers an older version than the one that was given up.
        """
        self._snapshot_from = None

    # ---- the network's side

    def round(self, timeout_s: float) -> None:
        """Send pending reports, and stage the next version if one appears in time.

        Weights that did not fit a delta are repaired tile by tile if the publisher can still make
        their version. Otherwise all tiles that differ from the newest version are fetched whole.

        Raises:
            Unavailable: the publisher cannot be reached, or lacks a version that it offers; call
                again later.
            CorruptData: an answer is invalid, or a snapshot arrived damaged.
            InvalidArgument: the publisher has other weights, or another run.
        """
        try:
            self._advance(timeout_s)
        except RoseError:
            self._is_same_source = False
            raise

    def _advance(self, timeout_s: float) -> None:
        self._send_reports()
        if self.state is not ReceiverState.SYNCED:
            return
        if not self._is_same_source and self._followed is not None:
            self._find_chain(self._followed)
        if self._lands is not None and self._found is None and not self._look(timeout_s):
            return
        if (at := self._repair_at) is not None:
            self._repair_at = None  # one attempt
            if self._stage_snapshot(at.n, named=at, is_repair=True):
                return
        if self._snapshot_from is not None:
            self._join(self._snapshot_from, timeout_s)
            return
        held = self._holding()
        chosen = self._choose(held, timeout_s)
        if isinstance(chosen, Manifest):
            self._stage(chosen, held)
        elif chosen is Choice.SNAPSHOT:
            self._snapshot_from = self.held.n if self._is_same_source else NOTHING_KNOWN

    def _send_reports(self) -> None:
        while True:
            with self._lock:
                if not self._reports:
                    return
                n, is_match, digest = self._reports[0]
            with suppress(InvalidArgument):  # a refused report does not block the others
                self._source.report(self._name, n, is_match, digest)
            with self._lock:
                self._reports.popleft()

    def _look(self, timeout_s: float) -> bool:
        """Read what `lands` holds, unless a sample shows that it is nothing published.

        Return False if nothing was published yet.
        """
        target = self._lands
        offered = self._offered(self._source.wait_manifests(NOTHING_KNOWN, timeout_s))
        survey = self._snapshot(None, ()) if offered else None
        if target is None or survey is None:
            return False
        wanted = self._subscription.wanted
        sample = set(wanted[:: ceil_div(len(wanted), SAMPLED_TILES) or 1])
        published = {(c.tile, c.digest) for one in offered for c in one.chunks if c.tile in sample}
        for one in (*offered, survey):
            published |= {(tile, one.tile_digests[tile]) for tile in sample if one.tile_digests}
        if any((tile, target.digest(tile)) in published for tile in sample):
            self._found = {tile: target.digest(tile) for tile in wanted}
            self._digests = TileDigests(self._found)
            with self._lock:
                self._held = replace(self._held, digest=self._digests.total)
        else:
            self._found = {}
            self._snapshot_from = NOTHING_KNOWN
        return True

    @property
    def _is_landing(self) -> bool:
        return self._lands is not None and self._versions == 0

    def _land(self, tile: int, elements: Any) -> Digest:
        """Write a whole tile into weights that nobody uses yet; return its digest as read."""
        if self._lands is None or self._found is None:
            raise InternalError("whole tiles landed before the weights were read")
        self._found.pop(tile, None)
        self._lands.write(tile, elements)
        self._found[tile] = found = self._lands.digest(tile)
        return found

    def _choose(self, held: Held, timeout_s: float) -> Manifest | Choice:
        offered = self._offered(self._source.wait_manifests(self._after_n(held), timeout_s))
        if offered and not any(is_same_chain(one.version, held.version) for one in offered):
            self._is_same_source = False  # their numbers may be lower
        chosen = next_version(held, offered, self._subscription)
        if isinstance(chosen, Manifest) and not self._is_base_of(chosen, held):
            return Choice.SNAPSHOT
        is_dead = bool(offered) and all(self._is_dead(one.version) for one in offered)
        self.obstacle = (
            f"version {offered[-1].version} is older than {held.version}, which is held here: "
            f"the trainer of that run was started with an earlier state or clock; give it another "
            f"run name"
            if is_dead
            else None
        )
        if chosen is Choice.WAIT and offered:
            # These versions came at once and do not apply to this receiver: wait for newer ones.
            self._source.wait_manifests(max(one.version.n for one in offered), timeout_s)
        return chosen

    def _is_base_of(self, update: Manifest, held: Held) -> bool:
        """Return True if the weights really are the base of an update, not only by name.

        An update states only the digest of all tiles of its base. So a receiver with some tiles
        trusts the name of its version, except before its first commit: then it asks for the tile
        digests of that version, and compares them.
        """
        subscription = self._subscription
        if self._versions > 0 or subscription.is_all or update.base_digest == held.digest:
            return True
        survey = self._snapshot(held.version.n, ())
        if survey is None or survey.version != held.version:
            return False
        return subscription.digest_of(survey) == held.digest

    def _after_n(self, held: Held) -> int:
        """Return the number above which to ask for versions; -1 if the chain is unknown."""
        is_known = self._is_same_source and held.version.run != ""
        return held.version.n if is_known else NOTHING_KNOWN

    def _find_chain(self, followed: Version) -> None:
        """Find out whether the source still has the chain of the last commit.

        A publisher that was started again may have other versions with lower or equal numbers.
        """
        known = self._source.wait_manifests(followed.n - 1, 0)
        known = known or self._source.wait_manifests(NOTHING_KNOWN, 0)
        self._is_same_source = any(is_same_chain(one.version, followed) for one in known)
        if known and not self._is_same_source and self._snapshot_from is not None:
            self._snapshot_from = NOTHING_KNOWN

    def _join(self, at_least_n: int, timeout_s: float) -> None:
        """Stage the tiles that differ from the newest version; wait for version `at_least_n` first.

        Raises:
            Unavailable: such a version is offered, but cannot be fetched completely.
        """
        if not self._source.wait_manifests(at_least_n - 1, timeout_s):
            return
        if not self._stage_snapshot(None, at_least_n=at_least_n):
            raise Unavailable(
                f"version {at_least_n} or a newer one is offered, but none arrives completely"
            )

    def _stage_snapshot(
        self,
        n: int | None,
        *,
        named: Version | None = None,
        at_least_n: int = NOTHING_KNOWN,
        is_repair: bool = False,
    ) -> bool:
        """Ask for a version's digests and stage the differing tiles; return whether both worked."""
        survey = self._snapshot(n, ())
        if survey is None or (named is not None and survey.version != named):
            return False
        if survey.version.n < at_least_n or self._is_dead(survey.version):
            return False
        held = self._holding()
        if self._subscription.digest_of(survey) == held.digest:
            if not is_repair:
                self._stage(as_held(survey, held), held)
            return not is_repair
        snapshot = self._snapshot(survey.version.n, self._differing(survey))
        if snapshot is None or snapshot.version != survey.version:
            return False  # a newer version appeared meanwhile
        self._stage(snapshot, held)
        return True

    def _is_dead(self, version: Version) -> bool:
        held = self.held
        return version.run == held.run and version.incarnation < held.incarnation

    def _differing(self, survey: Manifest) -> list[int]:
        """Return the tiles that differ from a version; if unknown, all subscribed tiles."""
        known, wanted = self._digests, self._subscription.wanted
        if self._is_landing and self._found is not None:
            found = self._found
            return [one for one in wanted if found.get(one) != survey.tile_digests[one]]
        if known is None or any(one not in known for one in wanted):
            return list(wanted)
        differing = [one for one in wanted if known[one] != survey.tile_digests[one]]
        return differing or list(wanted)  # the known digests were wrong: trust none

    def _snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        manifest = self._source.snapshot(n, tiles)
        if manifest is None:
            return None
        self._offered([manifest])
        is_asked = manifest.is_snapshot and len(manifest.tile_digests) == manifest.tile_count
        if not is_asked or [one.tile for one in manifest.chunks] != list(tiles):
            raise CorruptData(
                f"version {manifest.version} must arrive as a snapshot of the requested tiles only"
            )
        return manifest

    def _offered(self, manifests: list[Manifest]) -> list[Manifest]:
        """Return the manifests of the receiver's run that the publisher signed; ignore others.

        Raises:
            CorruptData: no manifest is signed, or a manifest contradicts its layout.
            InvalidArgument: all manifests are of another run, or of other weights.
        """
        signed = [one for one in manifests if self._signing.is_signed(one)]
        if manifests and not signed:
            raise CorruptData(f"version {manifests[-1].version} is not signed by the publisher")
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
                raise CorruptData(
                    f"version {one.version} states {one.count} elements in {one.tile_count} tiles, "
                    f"but its layout has {tiles.count} in {len(tiles)}"
                )
        return manifests

    def _of_run(self, manifests: list[Manifest]) -> list[Manifest]:
        """Return manifests of the run that is followed, or of a run that began later.

        Without signatures the source is trusted, and nothing needs to be compared.
        """
        followed = self._followed
        if followed is None or not self._signing.key:
            return manifests
        alive = [
            one
            for one in manifests
            if one.version.run == followed.run or one.version.incarnation > followed.incarnation
        ]
        if manifests and not alive:
            raise InvalidArgument(
                f"version {manifests[-1].version} belongs to a run that began before {followed}, "
                f"which this receiver follows: start a new receiver"
            )
        return alive

    def _stage(self, manifest: Manifest, held: Held) -> None:
        """Fetch a version that was chosen for `held`; do nothing if the weights changed meanwhile.

        Without this check a receiver with only some tiles would not notice that the base differs.
        """
        with self._lock:
            if self._held is not held:
                return
            self._move(ReceiverState.STAGING)
        staged: StagedVersion | None = None
        try:
            land = self._land if self._is_landing else None
            pulled = self._puller.pull(manifest, self._subscription, land)
            if pulled is None:
                self._missed(manifest)
            else:
                staged = self._decoded(pulled)
                if manifest.is_snapshot:
                    staged = replace(staged, digests=self._digests_of(manifest))
                self._puller.forget()
        except CorruptData:
            self._given_up += 1
            if manifest.is_snapshot:
                raise
            self._snapshot_from = manifest.version.n
        finally:
            with self._lock:
                if self._held is not held:
                    staged = None  # the weights changed, so this version does not fit them
                self._staged = staged
                self._move(ReceiverState.SYNCED if staged is None else ReceiverState.STAGED)
        if staged is not None:
            if manifest.is_snapshot:
                self._snapshots += 1
                self._repaired += len(manifest.chunks)
            self._on_staged()

    def _digests_of(self, snapshot: Manifest) -> TileDigests:
        wanted = self._subscription.wanted
        return TileDigests({tile: snapshot.tile_digests[tile] for tile in wanted})

    def _missed(self, manifest: Manifest) -> None:
        """Switch to a snapshot if a version is no longer kept.

        A relay cannot always get a chunk of a version that it offers, so an offered version is
        tried a few more times: whole tiles cost more than waiting.

        Raises:
            Unavailable: the version is still offered.
        """
        key, times = self._missing
        self._missing = (manifest.key, times + 1 if key == manifest.key else 1)
        if not manifest.is_snapshot and self._missing[1] < MISSES_MAX:
            offered = self._source.wait_manifests(manifest.version.n - 1, 0)
            if any(one.key == manifest.key for one in offered):
                raise Unavailable(
                    f"version {manifest.version} is offered, but a chunk of it does not arrive"
                )
        self._snapshot_from = manifest.version.n

    def _decoded(self, staged: StagedVersion) -> StagedVersion:
        """Decode STRAT deltas, so that they can be applied.

        Raises:
            CorruptData: the weights are not the base of a delta.
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
