"""One rank of a replica: what it may do with its weights, from what its coordinator said.

It is threadless: orders go in, and `todo` says what the thread of the engine does next. A rank that
holds a version goes back by itself when its deadline passes or its coordinator is gone, unless it
was told to keep it; so none is left holding.
"""

from enum import Enum
from typing import Final

from rose.errors import InvalidArgument, check
from rose.transfer.replicas.messages import Order, OrderKind, RankPhase, Word
from rose.transfer.version import Version
from rose.units import NS_PER_S

HOLD_S: Final = 5.0
# In place of the number of a round.
_ALONE: Final = 0
_OF_NO_ROUND: Final = -1


class Todo(Enum):
    """What the thread of the engine does next."""

    RUN = "steps; no commit is wanted"
    WAIT = "nothing, and no step either"
    TAKE = "begin to commit what is staged, and hold it"
    TAKE_ALONE = "begin to commit what is staged"
    KEEP = "keep what matched"
    ABANDON = "go back"


class ReplicaRank:
    """What one rank knows and is to do. One thread uses it, or a lock guards it.

    Args:
        rank: its place in the replica.
        incarnation: a number that no process of this rank had before.
        held: what its weights are.
        hold_s: how long it holds a version without a word to keep it.
    """

    def __init__(
        self, rank: int, incarnation: int, held: Version, *, hold_s: float = HOLD_S
    ) -> None:
        if rank < 0 or hold_s <= 0:
            raise InvalidArgument(f"rank {rank} that holds for {hold_s} s")
        self._rank, self._incarnation = rank, incarnation
        self._hold_ns = int(hold_s * NS_PER_S)
        self._held = held
        self._staged: Version | None = None
        self._unreachable: Version | None = None
        self._phase = RankPhase.STOPPED
        self._coordinator: int | None = None
        self._round = self._sequence = 0  # rounds count from 1
        self._aim: Version | None = None
        self._may_go_alone = self._is_aim_direct = False
        # Of the commit that is wanted or under way.
        self._target: Version | None = None
        self._target_round = _OF_NO_ROUND
        self._is_taken = False
        self._verdict: Todo | None = None
        self._deadline_ns = 0
        self._is_fault = False

    @property
    def phase(self) -> RankPhase:
        """Return where it is."""
        return self._phase

    @property
    def held(self) -> Version:
        """Return what its weights are, or were before what is not over yet."""
        return self._held

    @property
    def aim(self) -> tuple[Version | None, bool]:
        """Return what to stage, if just one version is wanted, and whether in one commit."""
        return self._aim, self._is_aim_direct

    @property
    def is_in_use(self) -> bool:
        """Whether steps may run."""
        return self._phase is RankPhase.IN_USE

    def word(self) -> Word | None:
        """Return what to tell the coordinator now; None before one was met."""
        if self._coordinator is None:
            return None
        self._sequence += 1
        return Word(
            rank=self._rank,
            incarnation=self._incarnation,
            coordinator=self._coordinator,
            round=self._round,
            sequence=self._sequence,
            phase=self._phase,
            held=self._held,
            staged=self._staged,
            unreachable=self._unreachable if self._unreachable == self._aim else None,
            is_fault=self._is_fault,
        )

    # ---- the coordinator ------------------------------------------------------------------------

    def met(self, coordinator: int) -> None:
        """Follow a coordinator, and hear no other any more."""
        if coordinator != self._coordinator:
            self.lost()
            self._coordinator, self._round = coordinator, 0
            if not self._is_alone:
                self._target_round = _OF_NO_ROUND

    def lost(self) -> None:
        """Go back if the coordinator, who could have said to keep it, is gone."""
        self._go_back()

    def ordered(self, order: Order, now_ns: int) -> None:
        """Take an order; what is late, or from a coordinator before, says nothing."""
        if order.coordinator != self._coordinator or order.round < self._round:
            return
        if order.round > self._round:
            self._begin_round(order.round)
        match order.kind:
            case OrderKind.STOP:
                if self._phase is not RankPhase.IN_USE:
                    self._aim, self._is_aim_direct = order.version, False
                    self._may_go_alone = order.version is not None
            case OrderKind.USE:
                self._use(order.version)
            case OrderKind.AIM:
                if self._phase is RankPhase.IN_USE:
                    self._aim, self._is_aim_direct = order.version, True
            case OrderKind.BEGIN:
                self._begin(order.version, now_ns)
            case OrderKind.KEEP:
                if self._phase is RankPhase.MATCHED:
                    self._verdict = self._verdict or Todo.KEEP

    def tick(self, now_ns: int) -> None:
        """Go back if a version was held for too long."""
        if self._target is not None and not self._is_alone and now_ns >= self._deadline_ns:
            self._go_back()

    def _begin_round(self, number: int) -> None:
        self._round = number
        self._aim, self._may_go_alone, self._is_fault = None, False, False
        self._go_back()
        if self._phase in {RankPhase.IN_USE, RankPhase.KEPT, RankPhase.BACK}:
            self._phase = RankPhase.STOPPED

    def _use(self, version: Version | None) -> None:
        is_at_rest = self._phase in {RankPhase.STOPPED, RankPhase.KEPT}
        if is_at_rest and not self._is_taken and version == self._held:
            self._phase = RankPhase.IN_USE
        if self._phase is RankPhase.IN_USE:
            self._aim, self._may_go_alone = None, False

    def _begin(self, version: Version | None, now_ns: int) -> None:
        if self._phase is not RankPhase.STOPPED:
            return  # It has begun, and may be through with it.
        self._target_round = self._round
        if version is None or version != self._staged or self._is_taken:
            self._phase = RankPhase.BACK
            return
        self._target = version
        self._phase = RankPhase.APPLYING
        self._deadline_ns = now_ns + self._hold_ns

    def _go_back(self) -> None:
        """Turn back unless the word to keep it has come; what was not taken is not begun."""
        if self._target is None or self._is_alone:
            return  # What it does alone is held for nobody.
        if self._is_taken:
            self._verdict = self._verdict or Todo.ABANDON
        else:
            self._target = None
            self._phase = RankPhase.BACK

    # ---- the receiver ---------------------------------------------------------------------------

    def staged(self, version: Version | None, unreachable: Version | None = None) -> None:
        """Note what lies ready, and what the aim was when it could not be made any more."""
        self._staged, self._unreachable = version, unreachable
        if self._phase is RankPhase.APPLYING and not self._is_taken and version != self._target:
            self._go_back()  # A repair may have taken its place: that is for the next round.

    # ---- the engine -----------------------------------------------------------------------------

    @property
    def _is_alone(self) -> bool:
        return self._target_round == _ALONE

    def todo(self) -> Todo:
        """Say what to do; it is asked again when that is done, or something was heard."""
        if self._is_taken:
            return self._verdict or Todo.WAIT
        if self._phase is RankPhase.APPLYING:
            return Todo.TAKE
        if self._phase is RankPhase.STOPPED and self._can_go_alone:
            return Todo.TAKE_ALONE
        return Todo.RUN if self._phase is RankPhase.IN_USE else Todo.WAIT

    @property
    def _can_go_alone(self) -> bool:
        aim, staged = self._aim, self._staged
        if not self._may_go_alone or aim is None or staged is None:
            return False
        return staged.n <= aim.n

    def took(self, version: Version | None) -> None:
        """Note that the commit of what was staged has begun; None: nothing lay ready after all."""
        check(not self._is_taken, "a rank takes a version while it commits another")
        self._staged = None
        if self._phase is RankPhase.APPLYING and version == self._target:
            self._is_taken = True
        elif self._phase is RankPhase.APPLYING:
            # Another may have come between the look at it and this.
            self._is_taken = version is not None
            self._go_back()
        elif version is not None:
            self._target, self._target_round = version, _ALONE
            self._phase, self._is_taken = RankPhase.APPLYING, True

    def matched(self) -> None:
        """Note that the weights are the version, and held."""
        check(self._is_taken, "a rank has matched what it did not take")
        if not self._is_alone and self._phase is RankPhase.APPLYING:
            self._phase = RankPhase.MATCHED

    def ended(self, held: Version, *, is_kept: bool, is_fault: bool, is_lost: bool = False) -> None:
        """Note that the commit is over.

        Args:
            held: what the weights are now.
            is_kept: they are the version.
            is_fault: they are not, though nobody told it to go back.
            is_lost: they are no version.
        """
        self._held = held
        is_current = self._target_round == self._round
        if is_lost:
            self._phase = RankPhase.QUARANTINED
        elif not is_current:
            self._phase = RankPhase.STOPPED
        else:
            self._phase = RankPhase.KEPT if is_kept else RankPhase.BACK
        self._is_fault = is_fault and is_current
        self._target = self._verdict = None
        self._is_taken = False
