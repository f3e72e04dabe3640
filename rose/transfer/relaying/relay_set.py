"""Several relays of a cluster as one source. Each relay fetches some tiles in advance."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from rose.clock import Clock
from rose.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidArgument,
    OutOfMemory,
    RoseError,
    Unavailable,
)
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.signing import Signing
from rose.transfer.source import Frame, Frames, Source
from rose.units import NS_PER_S

# First pause of a failed relay, and the longest, in seconds; the pause doubles with each failure.
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0

ReportLiar: TypeAlias = Callable[[int, str], None]


@dataclass(slots=True)
class _One:
    out_until_ns: int = 0
    pause_s: float = 0.0
    is_liar: bool = False


class Standing:
    """Skips failed relays, for longer each time, and retries them later.

    A relay that sent forged data is skipped for the longest pause each time, and reported once.

    Args:
        count: number of relays.
        clock: clock of the pauses.
        on_liar: called with a relay's index and its offence when it first sends forged data.
    """

    def __init__(self, count: int, clock: Clock, on_liar: ReportLiar) -> None:
        self._clock = clock
        self._on_liar = on_liar
        self._relays = [_One() for _ in range(count)]

    def present(self) -> list[int]:
        """Return the usable relays, ascending."""
        now_ns = self._clock.now_ns()
        return [at for at, one in enumerate(self._relays) if one.out_until_ns <= now_ns]

    def is_liar(self, relay: int) -> bool:
        """Return True if a relay ever sent forged data."""
        return self._relays[relay].is_liar

    def answered(self, relay: int) -> None:
        """Record a good answer."""
        self._relays[relay].pause_s = 0.0

    def failed(self, relay: int) -> None:
        """Skip a relay, for twice as long as last time."""
        one = self._relays[relay]
        one.pause_s = min(max(2 * one.pause_s, BACKOFF_S), BACKOFF_MAX_S)
        self._leave_out(one)

    def lied(self, relay: int, what: str) -> None:
        """Skip a relay that sent forged data, for the longest pause."""
        one = self._relays[relay]
        one.pause_s = BACKOFF_MAX_S
        self._leave_out(one)
        if not one.is_liar:
            one.is_liar = True
            self._on_liar(relay, what)

    def _leave_out(self, one: _One) -> None:
        one.out_until_ns = self._clock.now_ns() + int(one.pause_s * NS_PER_S)


T = TypeVar("T")

# Errors of a relay that is gone, slow or broken; another relay is asked.
_AWAY: Final = (Unavailable, DeadlineExceeded)
# Errors of a relay that has no room, or runs another version of rose; another relay is asked.
_REFUSED: Final = (InvalidArgument, OutOfMemory)


class RelaySet:
    """A source that works as long as one honest relay answers.

    Manifests come from any relay. A chunk is requested from the landing relay of its tile, the
    relay that fetches this tile in advance. All relays send at the same time. After a failure the
    chunk is requested from another relay, which then fetches the chunk from upstream. A failed
    relay is skipped for a while.
    A relay is also skipped, and its answers are dropped, if a frame differs from the signed
    manifest or its manifests are not signed.

    One thread uses it; any thread may call `break_off`.

    Args:
        relays: relays of the cluster.
        landing: index of the landing relay, by tile; other tiles are requested from any relay.
        signing: key shared with the publisher.
        clock: clock of the pauses of failed relays.
        on_liar: called with a relay's index and its offence when it first sends forged data.
    """

    def __init__(
        self,
        relays: Sequence[Source],
        landing: Mapping[int, int],
        *,
        signing: Signing,
        clock: Clock,
        on_liar: ReportLiar,
    ) -> None:
        if not relays or not all(0 <= relay < len(relays) for relay in landing.values()):
            raise InvalidArgument(
                f"a relay set needs at least one relay, and landings that are indices of its "
                f"{len(relays)} relays"
            )
        self._relays = relays
        self._landing = landing
        self._signing = signing
        self._standing = Standing(len(relays), clock, on_liar)
        self._first = 0  # index of the relay to ask first
        # The latest snapshot, with the relay that sent it.
        self._snapshots: dict[UpdateKey, tuple[int, Manifest]] = {}

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for versions from one relay; after an empty answer, the next call asks another one.

        So a relay that is stuck, or offers only old versions, does not block the receiver. With
        timeout 0, return the offers of all relays, which may keep different updates to one version.
        """

        def ask(relay: int) -> list[Manifest]:
            signed = self._signed(relay, self._relays[relay].wait_manifests(after_n, timeout_s))
            return [one for one in signed if one.version.n > after_n]

        if timeout_s == 0:
            offered = [
                one for some in self._answers(ask, is_enough=lambda _: False) for one in some
            ]
            known = {(one.key, one.version): one for one in offered}
            return sorted(known.values(), key=lambda one: one.key)
        manifests = self._first_of(ask)
        if not manifests:
            self._first = (self._first + 1) % len(self._relays)
        return manifests

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask one relay after the other; a snapshot must be signed and match the request."""
        gave: dict[int, Manifest] = {}

        def ask(relay: int) -> Manifest | None:
            snapshot = self._relays[relay].snapshot(n, tiles)
            if snapshot is not None:
                self._check_snapshot(relay, snapshot, n, tiles)
                gave[relay] = snapshot
            return snapshot

        snapshot = self._first_of(ask, is_enough=lambda one: one is not None)
        if snapshot is not None:
            self._snapshots = {
                snapshot.key: (next(at for at, one in gave.items() if one is snapshot), snapshot)
            }
        return snapshot

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield frames that match the manifest, from several relays in turns."""
        left = {chunk.tile: chunk for chunk in wanted}
        tried: dict[int, set[int]] = {tile: set() for tile in left}
        forgotten: dict[int, int] = dict.fromkeys(left, 0)
        while left:
            groups = self._groups(key, left, tried)
            if not groups:
                break
            yield from self._of_groups(key, groups, left, forgotten)
        for tile, relays in tried.items():
            if tile in left and forgotten[tile] == len(relays) > 0:
                yield tile, None  # no relay keeps it any more
                del left[tile]
        if left:
            raise Unavailable(f"no relay has tile {min(left)} of version {key.n} now")

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Send the report to one relay, which forwards it."""
        self._first_of(lambda relay: self._relays[relay].report(receiver, n, is_match, digest))

    def break_off(self) -> None:
        """End all running pulls; any thread may call."""
        for relay in self._relays:
            relay.break_off()

    # ---- choice of the relay

    def _first_of(
        self, ask: Callable[[int], T], *, is_enough: Callable[[T], bool] = lambda _: True
    ) -> T:
        """Return the first sufficient answer, else the last answer.

        Raises:
            As `_answers`.
        """
        return self._answers(ask, is_enough=is_enough)[-1]

    def _answers(self, ask: Callable[[int], T], *, is_enough: Callable[[T], bool]) -> list[T]:
        """Ask one relay after the other until an answer is enough; return all answers.

        Raises:
            Unavailable: all relays failed, or are skipped now.
            InvalidArgument, OutOfMemory: the last relay raised it, and no other answered.
        """
        there = self._standing.present()
        order = sorted(
            there,
            key=lambda at: (self._standing.is_liar(at), (at - self._first) % len(self._relays)),
        )
        answers: list[T] = []
        refused: RoseError | None = None
        for relay in order:
            try:
                answers.append(ask(relay))
            except (*_AWAY, *_REFUSED) as error:
                self._standing.failed(relay)
                refused = error if isinstance(error, _REFUSED) else refused
                continue
            except CorruptData as error:
                self._standing.lied(relay, str(error))
                continue
            self._standing.answered(relay)
            if is_enough(answers[-1]):
                break
        if not answers:
            if refused is not None:
                raise refused
            raise Unavailable(f"none of the {len(self._relays)} relays answers now")
        return answers

    def _signed(self, relay: int, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Return the manifests signed by the publisher.

        Raises:
            CorruptData: no manifest is signed.
        """
        signed = [one for one in manifests if self._signing.is_signed(one)]
        if len(signed) < len(manifests):
            forged = next(one for one in manifests if one not in signed)
            what = (
                f"relay {relay} offers version {forged.version}, which the publisher did not sign"
            )
            if not signed:
                raise CorruptData(what)
            self._standing.lied(relay, what)
        return signed

    def _check_snapshot(
        self, relay: int, snapshot: Manifest, n: int | None, tiles: Sequence[int]
    ) -> None:
        self._signed(relay, [snapshot])
        is_asked = snapshot.is_snapshot and n in (None, snapshot.version.n)
        if not is_asked or [chunk.tile for chunk in snapshot.chunks] != list(tiles):
            raise CorruptData(f"relay {relay} sent another snapshot than the requested one")

    # ---- chunks

    def _groups(
        self, key: UpdateKey, left: Mapping[int, Chunk], tried: Mapping[int, set[int]]
    ) -> dict[int, list[Chunk]]:
        """Choose a relay for each chunk: the landing relay, else a relay not yet asked for it."""
        there = self._standing.present()
        groups: dict[int, list[Chunk]] = {}
        for tile, chunk in left.items():
            left_over = [at for at in there if at not in tried[tile]]
            if not left_over:
                continue
            preferred = (
                self._snapshots[key][0] if key in self._snapshots else self._landing.get(tile)
            )
            honest = [at for at in left_over if not self._standing.is_liar(at)] or left_over
            relay = preferred if preferred in left_over else honest[tile % len(honest)]
            groups.setdefault(relay, []).append(chunk)
            tried[tile].add(relay)
        return groups

    def _of_groups(
        self,
        key: UpdateKey,
        groups: Mapping[int, list[Chunk]],
        left: dict[int, Chunk],
        forgotten: dict[int, int],
    ) -> Frames:
        """Yield frames from several relays in turns, so that all of them work at once."""
        running: dict[int, Frames] = {}
        try:
            for relay, chunks in groups.items():
                if self._is_introduced(relay, key):
                    running[relay] = self._relays[relay].chunks(key, chunks)
            while running:
                for relay in list(running):
                    came = self._next_of(relay, running)
                    if came is None:
                        continue
                    tile, frame = came
                    chunk = left.get(tile)
                    if chunk is None:
                        continue
                    if frame is None:
                        forgotten[tile] += 1
                    elif self._is_sound(relay, chunk, frame):
                        del left[tile]
                        yield tile, frame
                    else:
                        running.pop(relay).close()
        finally:
            for frames in running.values():
                frames.close()

    def _next_of(self, relay: int, running: dict[int, Frames]) -> tuple[int, Frame | None] | None:
        """Return the next frame of a relay; remove it from `running` when it ends or fails."""
        try:
            return next(running[relay])
        except StopIteration:
            self._standing.answered(relay)
        except (*_AWAY, *_REFUSED):
            self._standing.failed(relay)
        except CorruptData as error:
            self._standing.lied(relay, str(error))
        del running[relay]
        return None

    def _is_sound(self, relay: int, chunk: Chunk, frame: Frame) -> bool:
        if chunk.is_of(frame) and (not chunk.is_whole or self._signing.is_tile(frame)):
            return True
        self._standing.lied(
            relay, f"relay {relay} sent a frame of tile {chunk.tile} that is not the published one"
        )
        return False

    def _is_introduced(self, relay: int, key: UpdateKey) -> bool:
        """Return True if a relay knows the chunks of a snapshot.

        A relay that did not send the snapshot is asked for it first.
        """
        if key not in self._snapshots or self._snapshots[key][0] == relay:
            return True
        snapshot = self._snapshots[key][1]
        with suppress(*_AWAY, *_REFUSED, CorruptData):
            return (
                self._relays[relay].snapshot(key.n, [one.tile for one in snapshot.chunks])
                == snapshot
            )
        return False
