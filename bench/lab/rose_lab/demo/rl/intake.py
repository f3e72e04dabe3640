"""Queue of trajectories that wait for their group to be complete."""

import threading
from collections import deque
from collections.abc import Iterable, Sequence

from rose_lab.demo.rl.messages import Submitted
from rose_lab.demo.rl.trajectory import TRAJECTORY_TOKENS_MAX, Trajectory


class Intake:
    """Accepts each trajectory number once, and returns whole groups in the order of completion.

    Thread-safe: one condition guards all state and wakes waiting callers of `take`.

    Args:
        group_size: trajectories per group, > 0.
        vocabulary: upper bound of token ids, exclusive.
        waiting_max: maximum waiting trajectories, >= group_size; others must be sent again later.
        learned: numbers of the trajectories that were learned before this process started.
    """

    def __init__(
        self,
        *,
        group_size: int,
        vocabulary: int,
        waiting_max: int,
        learned: Iterable[int] = (),
    ) -> None:
        self._group_size = group_size
        self._vocabulary = vocabulary
        self._waiting_max = waiting_max
        self._changed = threading.Condition()
        self._known = set(learned)
        self._groups: dict[int, list[Trajectory]] = {}  # not complete yet
        self._complete: deque[list[Trajectory]] = deque()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Number of trajectories that wait for `take`."""
        with self._changed:
            return self._waiting

    @property
    def known(self) -> int:
        """Number of trajectories that need not be sent again."""
        with self._changed:
            return len(self._known)

    def submit(self, trajectories: Sequence[Trajectory], *, newest: int) -> Submitted:
        """Accept new trajectories that fit this model.

        Args:
            trajectories: submitted trajectories, in any order.
            newest: newest published version; trajectories with tokens of a newer version are
                refused.
        """
        accepted, known, later = [], [], []
        refused: dict[int, str] = {}
        with self._changed:
            for one in trajectories:
                if one.number in self._known:
                    known.append(one.number)
                elif fault := self._fault(one, newest):
                    refused[one.number] = fault
                elif self._waiting >= self._waiting_max:
                    later.append(one.number)
                else:
                    self._add(one)
                    accepted.append(one.number)
            self._changed.notify_all()
        return Submitted(tuple(accepted), tuple(known), tuple(later), refused)

    def take(self, count: int, *, timeout_s: float) -> list[Trajectory]:
        """Return all whole groups once they hold `count` trajectories or more; [] at timeout."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self._complete) * self._group_size >= count, timeout_s
            ):
                return []
            taken: list[Trajectory] = []
            while self._complete:
                taken += self._complete.popleft()
            self._waiting -= len(taken)
            return taken

    def drop_stale(self, oldest: int) -> list[Trajectory]:
        """Remove and return incomplete groups whose trajectories are all older than `oldest`.

        Otherwise a group whose last member never arrives would stay in the queue for ever.
        """
        with self._changed:
            dropped: list[Trajectory] = []
            for group, members in list(self._groups.items()):
                if all(one.version_min < oldest for one in members):
                    dropped += self._groups.pop(group)
            self._waiting -= len(dropped)
            return dropped

    def _add(self, one: Trajectory) -> None:
        members = self._groups.setdefault(one.group, [])
        members.append(one)
        self._known.add(one.number)
        self._waiting += 1
        if len(members) == self._group_size:
            self._complete.append(self._groups.pop(one.group))

    def _fault(self, one: Trajectory, newest: int) -> str | None:
        name = f"trajectory {one.number}"
        if len(one.tokens) > TRAJECTORY_TOKENS_MAX:
            return f"{name} has {len(one.tokens)} tokens, the limit is {TRAJECTORY_TOKENS_MAX}"
        if (token := max(one.tokens)) >= self._vocabulary:
            return f"{name} has token {token}, the model knows ids below {self._vocabulary}"
        if (version := max(one.versions)) > newest:
            return f"{name} has tokens of version {version}, the newest version is {newest}"
        return None
