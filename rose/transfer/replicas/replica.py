"""The coordinator of a replica: its ranks are in use at one version, or none of them is.

The ranks of a tensor-parallel replica compute one step together, so they change weights together:

- All have staged the same version: BEGIN. Each makes its weights the version, and holds that.
- All have matched: KEEP, which is said once and never taken back. All have kept it: USE.
- Whatever else happens, a rank that went back, is late or is gone: STOP. Who holds goes back, by
  itself if it hears nothing. Ranks that are at different versions then, as after a restart, go each
  alone to one that is named, and only when all say that they are there: USE.

It is threadless and has no clock, so that every order of messages, losses and deaths can be tried;
`ReplicaHost` gives it both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument, check
from rose.transfer.replicas.messages import SETTLED, Order, OrderKind, RankPhase, Word
from rose.transfer.version import Version
from rose.units import NS_PER_S

APPLY_S: Final = 10.0
NO_VERSION: Final = -1


class ReplicaState(Enum):
    """Where a replica is."""

    LEVELLING = "no rank is in use: ranks are missing, or go to one version"
    IN_USE = "all ranks are at the version"
    APPLYING = "all ranks make their weights the next version"
    KEEPING = "all have it, and are told that it stays"


@dataclass(slots=True)
class _Rank:
    """What is known of a rank: who it is now, and the newest that it said."""

    incarnation: int
    word: Word | None = None


class ReplicaCommit:
    """Decides for all ranks of one replica.

    One thread uses it, or a lock guards it. After each call, `order` is what every rank is to be
    told, until it is another.

    Args:
        ranks: how many there are.
        coordinator: a number that no coordinator of this replica had before.
        apply_s: how long all ranks may take to match, and again to keep; a rank holds no longer
            than its own deadline.
    """

    def __init__(self, ranks: int, coordinator: int, *, apply_s: float = APPLY_S) -> None:
        if ranks < 1 or apply_s <= 0:
            raise InvalidArgument(f"a replica of {ranks} ranks that may take {apply_s} s")
        self._count = ranks
        self._coordinator = coordinator
        self._apply_ns = int(apply_s * NS_PER_S)
        self._ranks: dict[int, _Rank] = {}
        self._round = 1
        self._state = ReplicaState.LEVELLING
        self._order = self._of(OrderKind.STOP, None)
        self._used: Version | None = None
        self._deadline_ns: int | None = None
        # Versions up to this n are not aimed at: a rank did not get there.
        self._floor_n = NO_VERSION

    @property
    def state(self) -> ReplicaState:
        """Return where the replica is."""
        return self._state

    @property
    def order(self) -> Order:
        """Return what every rank is to be told."""
        return self._order

    @property
    def version(self) -> Version | None:
        """Return what is in use; None while nothing is."""
        return self._used

    # ---- what happens ---------------------------------------------------------------------------

    def joined(self, rank: int, incarnation: int, now_ns: int) -> None:
        """Take a rank in; one of that number that was there before is gone.

        Raises:
            InvalidArgument: the replica has no such rank.
        """
        if not 0 <= rank < self._count:
            raise InvalidArgument(f"rank {rank} of a replica of {self._count}")
        self._ranks[rank] = _Rank(incarnation)
        self._stop(None)
        self._advance(now_ns)

    def lost(self, rank: int, incarnation: int, now_ns: int) -> None:
        """Note that a rank is gone; of one that was replaced this says nothing."""
        known = self._ranks.get(rank)
        if known is None or known.incarnation != incarnation:
            return
        del self._ranks[rank]
        self._stop(None)
        self._advance(now_ns)

    def heard(self, word: Word, now_ns: int) -> None:
        """Take what a rank says; what comes late or from the dead says nothing."""
        known = self._ranks.get(word.rank)
        if known is None or known.incarnation != word.incarnation:
            return
        if word.coordinator != self._coordinator:
            return
        if known.word is None or known.word.sequence < word.sequence:
            known.word = word
            self._advance(now_ns)

    def tick(self, now_ns: int) -> None:
        """See whether a deadline has passed."""
        self._advance(now_ns)

    # ---- what follows ---------------------------------------------------------------------------

    def _advance(self, now_ns: int) -> None:
        words = self._words()
        if words is not None:
            match self._state:
                case ReplicaState.LEVELLING:
                    self._level(words)
                case ReplicaState.IN_USE:
                    self._look_for_next(words, now_ns)
                case ReplicaState.APPLYING:
                    self._gather(words, now_ns)
                case ReplicaState.KEEPING:
                    self._finish(words)
        if self._deadline_ns is not None and now_ns >= self._deadline_ns:
            self._stop(None)

    def _words(self) -> list[Word] | None:
        """Return what all ranks said in this round, or None while one has said nothing."""
        words = [one.word for one in self._ranks.values() if one.word is not None]
        current = [word for word in words if word.round == self._round]
        return current if len(current) == self._count else None

    def _level(self, words: Sequence[Word]) -> None:
        if not all(word.phase in SETTLED for word in words):
            return
        held = {word.held for word in words}
        is_repaired = all(word.staged != word.held for word in words)
        if len(held) == 1 and _is_named(words[0].held) and is_repaired:
            self._use(words[0].held)
            return
        self._note_unreachable(words)
        aim, before = self._chosen(words), self._order.version
        is_open = aim is None and before is not None and before.n > self._floor_n
        if aim != before and not is_open:
            self._stop(aim)

    def _chosen(self, words: Sequence[Word]) -> Version | None:
        """Choose the version to bring all ranks to: the newest that one holds, or has staged."""
        held = [word.held for word in words if _is_named(word.held)]
        staged = [word.staged for word in words if word.staged is not None]
        for known in (held, staged):
            reachable = [one for one in known if one.n > self._floor_n]
            if reachable:
                return max(reachable, key=_number)
            if len({*held}) == 1 and len(held) == self._count:
                return held[0]  # They are there: what is staged repairs it.
        if all(word.staged is not None for word in words):
            self._floor_n = NO_VERSION  # There will be no other while these lie ready.
            return max(staged, key=_number)
        return None

    def _look_for_next(self, words: Sequence[Word], now_ns: int) -> None:
        if any(word.phase in SETTLED and word.held != self._used for word in words):
            # It had begun to go to another version alone when all said that they were at this one.
            self._stop(None)
            return
        if any(word.phase is not RankPhase.IN_USE for word in words):
            return
        held, staged = words[0].held, [word.staged for word in words]
        if any(word.staged == held for word in words):
            self._stop(held)  # A repair changes the weights of one rank: no step may run.
            return
        if self._order.kind is OrderKind.AIM and self._note_unreachable(words):
            self._order = self._of(OrderKind.USE, held)
        known = [one for one in staged if one is not None]
        if len(known) < self._count:
            return
        if len(set(known)) == 1:
            self._round += 1
            self._move(ReplicaState.APPLYING)
            self._order = self._of(OrderKind.BEGIN, known[0])
            self._deadline_ns = now_ns + self._apply_ns
            return
        if all(one.n <= self._floor_n for one in known):
            self._floor_n = NO_VERSION  # There will be no other while these lie ready.
        reachable = [one for one in known if one.n > self._floor_n]
        self._order = self._of(OrderKind.AIM, min(reachable, key=_number))

    def _gather(self, words: Sequence[Word], now_ns: int) -> None:
        phases = {word.phase for word in words}
        if phases == {RankPhase.MATCHED}:
            self._move(ReplicaState.KEEPING)
            self._order = self._of(OrderKind.KEEP, self._order.version)
            self._deadline_ns = now_ns + self._apply_ns
        elif phases & {RankPhase.BACK, RankPhase.QUARANTINED}:
            if any(word.is_fault for word in words) and self._order.version is not None:
                self._floor_n = max(self._floor_n, self._order.version.n)
            self._stop(None)

    def _finish(self, words: Sequence[Word]) -> None:
        target = self._order.version
        check(target is not None, "a replica keeps a version that has no name")
        phases = {word.phase for word in words}
        if phases == {RankPhase.KEPT} and target is not None:
            self._use(target)
        elif RankPhase.BACK in phases:  # Its own deadline came first: it is behind now.
            self._stop(None)

    def _note_unreachable(self, words: Sequence[Word]) -> bool:
        aim = self._order.version
        if aim is None or all(word.unreachable != aim for word in words):
            return False
        self._floor_n = max(self._floor_n, aim.n)
        return True

    # ---- orders ---------------------------------------------------------------------------------

    def _stop(self, aim: Version | None) -> None:
        self._round += 1
        self._move(ReplicaState.LEVELLING)
        self._order = self._of(OrderKind.STOP, aim)

    def _use(self, version: Version) -> None:
        self._move(ReplicaState.IN_USE)
        self._used = version
        self._order = self._of(OrderKind.USE, version)

    def _of(self, kind: OrderKind, version: Version | None) -> Order:
        return Order(self._coordinator, self._round, kind, version)

    def _move(self, to: ReplicaState) -> None:
        self._state = to
        self._used = self._deadline_ns = None


def _is_named(version: Version) -> bool:
    return version.run != ""


def _number(version: Version) -> int:
    return version.n
