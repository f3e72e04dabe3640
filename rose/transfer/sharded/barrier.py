"""The barrier of a replica: its ranks commit a version together, or none of them keeps it.

A *round* is one attempt. It begins when the first rank is ready. When all ranks that need the
version are ready, each of them commits. When all have committed, the version is kept. If a rank
misses a deadline, fails, or is restarted, the round is over, and every rank undoes the version.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rose.clock import Clock
from rose.errors import InvalidArgument
from rose.transfer.manifest import Manifest, Version
from rose.units import NS_PER_S

# Decisions that are kept for ranks which did not get the answer.
DECISIONS_MAX: Final = 64


class Verdict(Enum):
    """Answer to a rank at the barrier."""

    WAIT = "wait"  # there is no decision yet: ask again
    MOVED = "moved"  # the replica's next version is another one
    COMMIT = "commit"  # all ranks are ready
    KEEP = "keep"  # all ranks have committed
    UNDO = "undo"  # the round is over, and no rank keeps the version


@dataclass(frozen=True, slots=True)
class Ruling:
    """Answer to a rank, the number of its round, and the reason of an `UNDO`."""

    verdict: Verdict
    number: int = 0
    reason: str = ""


@dataclass(slots=True)
class _Round:
    number: int
    version: Version
    deadline_ns: int
    needed: frozenset[int] = frozenset()  # once all are ready
    ready: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)


class Barrier:
    """Chooses a replica's next version, and decides whether its ranks keep it.

    Any thread may call. The condition guards all fields; a call waits for at most its `wait_s`.

    Args:
        name: name of the replica, for messages.
        ranks: number of its ranks.
        clock: clock of the deadlines.
    """

    def __init__(self, name: str, ranks: int, *, clock: Clock) -> None:
        self._name, self._ranks, self._clock = name, ranks, clock
        self._changed = threading.Condition()
        self._sessions: dict[int, str] = {}
        self._held: dict[int, Version] = {}  # as of the last decisions
        self._target: Version | None = None
        self._gone: set[Version] = set()  # versions that the publisher can no longer make
        self._round: _Round | None = None
        self._next_number = secrets.randbits(32)
        self._decided: dict[int, Ruling] = {}

    def join(self, rank: int, session: str) -> None:
        """Accept a process as a rank; a new process ends the round of the one before."""
        with self._changed:
            if self._sessions.get(rank) == session:
                return
            self._sessions[rank] = session
            self._held.pop(rank, None)
            self._end_round(Verdict.UNDO, f"rank {rank} of {self._name} was restarted")

    def target(
        self, rank: int, session: str, offers: Sequence[Manifest], *, gone: Version | None = None
    ) -> Version | None:
        """Return the version that all ranks should stage next; None if there is nothing new.

        Args:
            rank: rank that asks.
            session: its process.
            offers: what the log has of the present layout.
            gone: version that the rank could not get, since the publisher no longer has it.
        """
        with self._changed:
            self._check(rank, session)
            if gone is not None and gone == self._target:
                self._gone.add(gone)
                self._end_round(Verdict.UNDO, f"version {gone.n} is no longer kept")
            return self._aim(offers)

    def ready(
        self,
        rank: int,
        session: str,
        version: Version,
        offers: Sequence[Manifest],
        *,
        within_s: float,
        wait_s: float,
    ) -> Ruling:
        """State that a rank has staged a version; wait for the other ranks.

        Args:
            rank: rank that asks.
            session: its process.
            version: version that it has staged.
            offers: what the log has of the present layout.
            within_s: time for the other ranks to be ready, and then to commit, in seconds.
            wait_s: longest wait for this call, in seconds.
        """
        with self._changed:
            self._check(rank, session)
            if self._aim(offers) != version:
                return Ruling(Verdict.MOVED)
            now = self._round
            if now is None:
                now = self._round = _Round(self._next_number, version, self._after(within_s))
                self._next_number += 1
            now.ready.add(rank)
            needed = self._needed(version)
            if not now.needed and needed <= now.ready:
                now.needed, now.deadline_ns = needed, self._after(within_s)
                self._changed.notify_all()
            self._wait(now, lambda: bool(now.needed), wait_s)
            if now.number in self._decided:
                return self._decided[now.number]
            return Ruling(Verdict.COMMIT if now.needed else Verdict.WAIT, now.number)

    def refuse(self, rank: int, session: str, reason: str) -> Ruling:
        """State that a rank cannot come; if others wait for it, the round is over."""
        with self._changed:
            self._check(rank, session)
            self._end_round(Verdict.UNDO, self._failed(rank, reason))
            return Ruling(Verdict.UNDO)

    def done(self, rank: int, session: str, number: int, *, failure: str, wait_s: float) -> Ruling:
        """State that a rank has committed the round's version; wait for the other ranks.

        Args:
            rank: rank that asks.
            session: its process.
            number: number of the round.
            failure: why the rank could not commit; "" if it has.
            wait_s: longest wait for this call, in seconds.

        Raises:
            InvalidArgument: the round is unknown, so the rank must join again.
        """
        with self._changed:
            now = self._round
            if now is not None and now.number == number:
                self._check(rank, session)
                now.done.add(rank)
                if failure:
                    self._end_round(Verdict.UNDO, self._failed(rank, failure))
                elif now.needed <= now.done:
                    self._held.update(dict.fromkeys(now.needed, now.version))
                    self._gone.clear()
                    self._end_round(Verdict.KEEP)
                self._wait(now, lambda: False, wait_s)
            elif number not in self._decided:
                raise InvalidArgument(f"the publisher does not know round {number} of {self._name}")
            return self._decided.get(number, Ruling(Verdict.WAIT, number))

    def _failed(self, rank: int, reason: str) -> str:
        return f"rank {rank} of {self._name} could not commit: {reason}"

    # ---- under the lock

    def _check(self, rank: int, session: str) -> None:
        if self._sessions.get(rank) != session:
            raise InvalidArgument(
                f"another process is rank {rank} of {self._name}: every engine needs a name of "
                "its own"
            )

    def _aim(self, offers: Sequence[Manifest]) -> Version | None:
        newest = max((one.version for one in offers), key=lambda one: one.n, default=None)
        target = self._target
        if target is not None and (newest is None or not _is_same_chain(target, newest)):
            self._end_round(Verdict.UNDO, "the publisher has begun another incarnation")
        if self._target is None and newest is not None:
            self._target = self._chosen(newest, offers)
        return self._target

    def _chosen(self, newest: Version, offers: Sequence[Manifest]) -> Version | None:
        """Return the next version of all ranks.

        Ranks that hold one version go on from there. A rank that does not hold it gets it first,
        unless the publisher can no longer make it.
        """
        held = [self._held.get(rank) for rank in range(self._ranks)]
        known = {one for one in held if one is not None and _is_same_chain(one, newest)}
        if len(known) != 1:
            return newest
        (common,) = known
        if any(one != common for one in held):
            return newest if common in self._gone else common
        newer = [one.version for one in offers if one.base == common and one.version.n > common.n]
        if newer:
            return max(newer, key=lambda one: one.n)
        return newest if newest.n > common.n else None

    def _needed(self, version: Version) -> frozenset[int]:
        return frozenset(one for one in range(self._ranks) if self._held.get(one) != version)

    def _wait(self, now: _Round, is_over: Callable[[], bool], wait_s: float) -> None:
        """Wait for a round's decision, or for another condition; end the round at its deadline."""
        until_ns = self._after(wait_s)
        while now.number not in self._decided and not is_over():
            at_ns = self._clock.now_ns()
            if at_ns >= now.deadline_ns:
                self._end_late(now)
            elif at_ns >= until_ns:
                return
            else:
                left_ns = min(now.deadline_ns, until_ns) - at_ns
                self._changed.wait(left_ns / NS_PER_S)

    def _end_late(self, now: _Round) -> None:
        is_begun = bool(now.needed)
        missing = (now.needed - now.done) if is_begun else self._needed(now.version) - now.ready
        what = "has not committed" if is_begun else "was not ready for"
        ranks = ", ".join(map(str, sorted(missing)))
        self._end_round(
            Verdict.UNDO, f"rank {ranks} of {self._name} {what} version {now.version.n} in time"
        )

    def _end_round(self, verdict: Verdict, reason: str = "") -> None:
        """Decide the round, if there is one; the next version is chosen anew."""
        now, self._round, self._target = self._round, None, None
        if now is not None:
            self._decided[now.number] = Ruling(verdict, now.number, reason)
            if len(self._decided) > DECISIONS_MAX:
                del self._decided[next(iter(self._decided))]
            self._changed.notify_all()

    def _after(self, seconds: float) -> int:
        return self._clock.now_ns() + int(seconds * NS_PER_S)


def _is_same_chain(one: Version, other: Version) -> bool:
    return (one.run, one.incarnation) == (other.run, other.incarnation)
