"""Sends finished trajectories to the trainer, and keeps copies in case the trainer dies."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from rose.errors import DeadlineExceeded, Unavailable
from rose.scheduler.events import Consumed, VersionPublished
from rose_lab.demo.rl.background import Background
from rose_lab.demo.rl.messages import SUBMIT_MAX, Reply, TrainerStatus
from rose_lab.demo.rl.trajectory import Trajectory

_EVERY_S: Final = 0.5

Submit = Callable[[Sequence[Trajectory]], Reply]


class Handoff(Background):
    """A thread that sends trajectories in the order of `put`, and retries until they are accepted.

    A trainer that dies forgets all trajectories since its last checkpoint. So this thread keeps the
    last accepted trajectories, and sends them again to the next incarnation. That incarnation
    recognises by number the trajectories that were already learned. Refused trajectories are
    discarded. After `stop` the thread sends the rest, until an attempt fails.

    Every reply carries the trainer's status, and the thread also polls for it. Counts continue
    across incarnations.

    Args:
        kept: number of accepted trajectories to keep; must be at least the number that a trainer
            may accept between two checkpoints.
        report: gets VersionPublished and Consumed in this thread.
        on_refused: gets the reason of each refusal in this thread.

    Attributes:
        refused: number of refused trajectories.
        version: newest published version.
        staleness: number of trajectories by age in versions when the trainer took them.
        published: number of published versions, over all incarnations.
        passed_over: number of trajectories that the trainer took but did not learn from, because a
            step had enough others or the rewards of their group were equal.
        sent_bytes: weight bytes sent to all receivers.
        dense_bytes: bytes that whole weights would have taken instead.
        status: last reported status of any incarnation.
    """

    def __init__(
        self,
        *,
        kept: int,
        report: Callable[[VersionPublished | Consumed], None],
        on_refused: Callable[[str], None],
    ) -> None:
        super().__init__("rose-handoff")
        self._report = report
        self._on_refused = on_refused
        self.refused = 0
        self.staleness: Counter[int] = Counter()
        self.version = self.published = self.passed_over = self.sent_bytes = self.dense_bytes = 0
        self.status = TrainerStatus()
        self._used = 0
        # `_changed` guards all below.
        self._submit: Submit | None = None
        self._before = TrainerStatus()  # last status of this incarnation
        self._waiting: deque[Trajectory] = deque()
        self._taken: deque[Trajectory] = deque(maxlen=kept)

    @property
    def waiting(self) -> int:
        """Number of trajectories that are still to be sent."""
        with self._changed:
            return len(self._waiting)

    def follow(self, submit: Submit | None) -> None:
        """Switch to another trainer, and first resend the kept trajectories; None pauses."""
        with self._changed:
            self._submit, self._before = submit, TrainerStatus()
            self._waiting.extendleft(reversed(self._taken))
            self._taken.clear()
            self._changed.notify_all()

    def put(self, trajectory: Trajectory) -> None:
        """Queue a trajectory; never blocks."""
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
        """Return whether the thread must act before the next status poll."""
        return self._is_stopping or bool(is_taken and self._waiting and self._submit is not None)

    def _send(self, submit: Submit, batch: Sequence[Trajectory]) -> bool:
        """Send a batch; return False if none of it was accepted, known or refused."""
        try:
            reply = submit(batch)
        except (Unavailable, DeadlineExceeded):
            return False
        answer = reply.submitted
        taken = {*answer.accepted, *answer.known}
        settled = taken | answer.refused.keys()
        with self._changed:
            if submit is not self._submit:
                return True  # That trainer is gone; the batch is still queued for the next trainer.
            for _ in batch:
                self._waiting.popleft()
            self._taken.extend(one for one in batch if one.number in taken)
            self.refused += len(answer.refused)
            # Trajectories to send later return to the front, to keep the order of `put`.
            self._waiting.extendleft(one for one in reversed(batch) if one.number not in settled)
            before, self._before = self._before, reply.status
        for why in answer.refused.values():
            self._on_refused(why)
        self._note(reply.status, before)
        return bool(settled)

    def _note(self, status: TrainerStatus, before: TrainerStatus) -> None:
        if status.version > self.version:
            self.version = status.version
            self._report(VersionPublished(status.version))
        # The count covers all incarnations, but a new trainer restarts from its checkpoint's count.
        used = status.consumed - status.waiting
        if used > self._used:
            self._report(Consumed(used - self._used))
            self._used = used
        self.status = status
        # The counts below cover this incarnation alone.
        self.staleness.update(Counter(status.staleness) - Counter(before.staleness))
        self.passed_over += status.passed_over - before.passed_over
        self.published += status.versions - before.versions
        self.sent_bytes += status.bytes_sent - before.bytes_sent
        self.dense_bytes += status.dense_bytes - before.dense_bytes
