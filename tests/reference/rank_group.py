"""The slow truth of a rank group: what each rank is told, from rules in plain numbers."""

from dataclasses import dataclass, field

LAST_INDEX = 65535


@dataclass
class Rank:
    """One rank and its serving."""

    step: int
    index: int = 0
    in_step: bool = False
    runs: bool = False
    borne: tuple[int, int] | None = None  # the last segment that its serving bears
    close_epoch: int = 0


@dataclass
class Group:
    """All ranks, and the last segment that each of them may start."""

    quantum: int
    ranks: list[Rank]
    credit: tuple[int, int] = (0, 0)
    aborted_through: int = 0
    is_shut_down: bool = False
    started: dict[tuple[int, int], set[int]] = field(default_factory=dict)

    def begin_step(self, rank: int) -> None:
        """Begin the next step, whatever became of the one before."""
        one = self.ranks[rank]
        one.step, one.index, one.in_step, one.runs = one.step + 1, 0, True, False

    def end_step(self, rank: int) -> None:
        """End the step and its segment."""
        self.ranks[rank].in_step = self.ranks[rank].runs = False

    def try_pass(self, rank: int) -> str | None:
        """Say what the rank is told; None when it has to wait."""
        one = self.ranks[rank]
        one.runs = False
        if not one.in_step:
            return "ABORTED"
        wanted = (one.step, one.index + 1)
        if wanted <= self.credit and one.step == self.credit[0]:
            one.index, one.runs = one.index + 1, True
            self.started.setdefault(wanted, set()).add(rank)
            return "PASSED"
        if self.is_shut_down:
            return "SHUT_DOWN"
        return "ABORTED" if one.step <= self.aborted_through else None

    def agree(self, rank: int, segments: int, epoch: int) -> bool:
        """Bear `segments` more on this rank's device."""
        one = self.ranks[rank]
        if self.is_shut_down or epoch != one.close_epoch:
            return False
        one.borne = (one.step, min(one.index + segments, LAST_INDEX))
        return True

    def close(self, rank: int) -> None:
        """Bear nothing from now on."""
        self.ranks[rank].borne = None
        self.ranks[rank].close_epoch += 1

    def grant(self, segments: int) -> str:
        """Extend the credit, if everybody bears it."""
        if self.is_shut_down:
            return "SHUT_DOWN"
        if not all(one.in_step for one in self.ranks):
            return "NO_STEP"
        borne = [one.borne for one in self.ranks if one.borne and one.borne[0] == one.step]
        if len(borne) < len(self.ranks):
            return "NO_VOTE"
        step, index = slowest = min((one.step, one.index) for one in self.ranks)
        last = min((step, min(index + min(segments, self.quantum), LAST_INDEX)), *borne)
        if last[0] <= self.aborted_through:
            return "ABORTED"
        if last <= slowest or last <= self.credit:
            return "ENOUGH"
        self.credit = last
        return "GRANTED"

    def abort_step(self) -> bool:
        """End the newest step, and all before it, at its credit."""
        steps = [one.step for one in self.ranks if one.in_step]
        self.aborted_through = max([self.aborted_through, *steps])
        return bool(steps)

    def is_parked(self, rank: int) -> bool:
        """Whether nothing runs on this rank, and nothing can without another grant."""
        one = self.ranks[rank]
        may_start = one.in_step and one.step == self.credit[0] and one.index < self.credit[1]
        return not one.runs and not may_start
