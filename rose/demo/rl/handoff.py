"""Hands finished trajectories to the trainer, keeps what could be lost there, and sums it up."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from rose.demo.rl.background import Background
from rose.demo.rl.messages import SUBMIT_MAX, Reply, TrainerStatus
from rose.demo.rl.trajectory import Trajectory
from rose.errors import DeadlineExceeded, Unavailable
from rose.scheduler.events import Consumed, VersionPublished

_EVERY_S: Final = 0.5

Submit = Callable[[Sequence[Trajectory]], Reply]


class Handoff(Background):
    """A thread that sends what `put` was given, in order, again and again until it is taken.

    The trainer forgets what it took since its last checkpoint when it dies. So the last
    trajectories that it took are kept here, and sent once more to the next incarnation, which knows
    by number what it has learned. One that it refuses is let go. `stop` tries once more to send
    what is left.

    The trainer says where it is with each answer, and is asked every now and then. What is told and
    counted here goes on when another incarnation is followed.

    Args:
        kept: trajectories to keep: as many as a trainer may take between two checkpoints.
        tell: takes VersionPublished and Consumed; in this thread, as `on_refused`.
        on_refused: hears why the trainer will never learn from a trajectory.

    Attributes:
        refused: trajectories that a trainer will never learn from.
        version: the newest that was published.
        staleness: how many trajectories were so many versions old when they were learned from.
        published: versions, over all incarnations.
        passed_over: trajectories for which a step had no room.
        sent_bytes: of weights, to all receivers.
        dense_bytes: what whole weights would have been instead.
        status: the last that any incarnation said.
    """

    def __init__(
        self,
        *,
        kept: int,
        tell: Callable[[VersionPublished | Consumed], None],
        on_refused: Callable[[str], None],
    ) -> None:
        super().__init__("rose-handoff")
        self._tell = tell
        self._on_refused = on_refused
        self.refused = 0
        self.staleness: Counter[int] = Counter()
        self.version = self.published = self.passed_over = self.sent_bytes = self.dense_bytes = 0
        self.status = TrainerStatus()
        self._used = 0
        # `_changed` guards all below.
        self._submit: Submit | None = None
        self._before = TrainerStatus()  # of this incarnation
        self._waiting: deque[Trajectory] = deque()
        self._taken: deque[Trajectory] = deque(maxlen=kept)

    @property
    def waiting(self) -> int:
        """How many trajectories no trainer has."""
        with self._changed:
            return len(self._waiting)

    def follow(self, submit: Submit | None) -> None:
        """Send to another trainer from now on, all that is kept first; None while there is none."""
        with self._changed:
            self._submit, self._before = submit, TrainerStatus()
            self._waiting.extendleft(reversed(self._taken))
            self._taken.clear()
            self._changed.notify_all()

    def put(self, trajectory: Trajectory) -> None:
        """Take over a trajectory; never waits."""
        with self._changed:
            self._waiting.append(trajectory)
            self._changed.notify_all()

    def _work(self) -> None:
        is_taken = True
        while True:
            with self._changed:
                has_more = partial(self._has_more, is_taken=is_taken)
                self._changed.wait_for(has_more, timeout=_EVERY_S)
                is_over, submit = self._is_stopping, self._submit
                batch = list(islice(self._waiting, SUBMIT_MAX))
            is_taken = submit is None or self._send(submit, batch) or not batch
            if is_over and (submit is None or not is_taken or not batch):
                return

    def _has_more(self, *, is_taken: bool) -> bool:
        """Whether the thread has something to do before it is time to ask again."""
        return self._is_stopping or bool(is_taken and self._waiting and self._submit is not None)

    def _send(self, submit: Submit, batch: Sequence[Trajectory]) -> bool:
        """Send the oldest; whether any of them need not be sent again."""
        try:
            reply = submit(batch)
        except (Unavailable, DeadlineExceeded):
            return False
        answer = reply.submitted
        taken = {*answer.accepted, *answer.known}
        settled = taken | answer.refused.keys()
        with self._changed:
            if submit is not self._submit:
                return True  # They went to a trainer that is gone; they are still in the queue.
            for _ in batch:
                self._waiting.popleft()
            self._taken.extend(one for one in batch if one.number in taken)
            self.refused += len(answer.refused)
            # Those that there was no room for come first again: the order is that of `put`.
            self._waiting.extendleft(one for one in reversed(batch) if one.number not in settled)
            before, self._before = self._before, reply.status
        for why in answer.refused.values():
            self._on_refused(why)
        self._note(reply.status, before)
        return bool(settled)

    def _note(self, status: TrainerStatus, before: TrainerStatus) -> None:
        if status.version > self.version:
            self.version = status.version
            self._tell(VersionPublished(status.version))
        # Over all incarnations, but one that starts falls back to what its checkpoint had learned.
        used = status.consumed - status.waiting
        if used > self._used:
            self._tell(Consumed(used - self._used))
            self._used = used
        self.status = status
        # Of this incarnation alone.
        self.staleness.update(Counter(status.staleness) - Counter(before.staleness))
        self.passed_over += status.passed_over - before.passed_over
        self.published += status.versions - before.versions
        self.sent_bytes += status.bytes_sent - before.bytes_sent
        self.dense_bytes += status.dense_bytes - before.dense_bytes
