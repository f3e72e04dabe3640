"""Hands finished trajectories to the trainer, and keeps each while it could still be lost there."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rose.demo.rl.background import Background
from rose.demo.rl.messages import SUBMIT_MAX, Submitted
from rose.demo.rl.trajectory import Trajectory
from rose.errors import DeadlineExceeded, Unavailable

_AGAIN_S: Final = 0.5

Submit = Callable[[Sequence[Trajectory]], Submitted]


class Handoff(Background):
    """A thread that sends what `put` was given, in order, again and again until it is taken.

    The trainer forgets what it took since its last checkpoint when it dies. So the last
    trajectories that it took are kept here, and sent once more to the next incarnation, which knows
    by number what it has learned. One that it refuses is let go. `stop` tries once more to send
    what is left.

    Args:
        kept: trajectories to keep: as many as a trainer may take between two checkpoints.
        on_refused: hears why the trainer will never learn from a trajectory; in this thread.
    """

    def __init__(self, *, kept: int, on_refused: Callable[[str], None]) -> None:
        super().__init__("rose-handoff")
        self._on_refused = on_refused
        # `_changed` guards all below.
        self._submit: Submit | None = None
        self._waiting: deque[Trajectory] = deque()
        self._taken: deque[Trajectory] = deque(maxlen=kept)
        self._refused = 0

    @property
    def waiting(self) -> int:
        """How many trajectories no trainer has."""
        with self._changed:
            return len(self._waiting)

    @property
    def refused(self) -> int:
        """How many trajectories a trainer will never learn from."""
        with self._changed:
            return self._refused

    def follow(self, submit: Submit | None) -> None:
        """Send to another trainer from now on, all that is kept first; None while there is none.

        Args:
            submit: `TrainerClient.submit` of the new incarnation.
        """
        with self._changed:
            self._submit = submit
            self._waiting.extendleft(reversed(self._taken))
            self._taken.clear()
            self._changed.notify_all()

    def put(self, trajectory: Trajectory) -> None:
        """Take over a trajectory; never waits."""
        with self._changed:
            self._waiting.append(trajectory)
            self._changed.notify_all()

    def _work(self) -> None:
        while self._wait():
            is_taken = self._send_some()
            with self._changed:
                if not is_taken and not self._is_stopping:
                    self._changed.wait(_AGAIN_S)
                elif not is_taken:
                    return

    def _wait(self) -> bool:
        """Wait until there is something to send and somebody to send it to; False at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopping or (self._waiting and self._submit is not None)
            )
            return bool(self._waiting and self._submit is not None)

    def _send_some(self) -> bool:
        """Send the oldest; whether any of them need not be sent again."""
        with self._changed:
            submit = self._submit
            batch = [self._waiting[place] for place in range(min(SUBMIT_MAX, len(self._waiting)))]
        if submit is None:
            return False
        try:
            answer = submit(batch)
        except (Unavailable, DeadlineExceeded):
            return False
        taken = {*answer.accepted, *answer.known}
        with self._changed:
            if submit is not self._submit:
                return True  # They went to a trainer that is gone; they are still in the queue.
            for _ in batch:
                self._waiting.popleft()
            self._taken.extend(one for one in batch if one.number in taken)
            self._refused += len(answer.refused)
            settled = taken | answer.refused.keys()
            # Those that there was no room for come first again: the order is that of `put`.
            self._waiting.extendleft(one for one in reversed(batch) if one.number not in settled)
        for why in answer.refused.values():
            self._on_refused(why)
        return bool(settled)
