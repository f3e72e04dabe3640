"""A tensor-parallel borrower: the gate of each rank, and the thread that votes for its serving."""

import threading
from collections.abc import Callable

from rose._core import CudaStream, RankGate, RankVote
from rose.compute.gate import BorrowerGate, SynchronousGate
from rose.errors import InvalidArgument
from rose.thread import Thread


def rank_gate(fd: int, rank: int, *, stream: CudaStream | None = None) -> BorrowerGate:
    """Take a place in a group and return the gate of that rank.

    A pass that timed out says nothing about the others: ask again, in the same step.

    Args:
        fd: `RankGroup.fileno()`, or a copy of it that another process was given.
        rank: of the borrower, from 0.
        stream: of the borrower on this rank's GPU, whose segments the gate waits for; None on a
            CPU, where a segment has ended when the gate is called.

    Raises:
        InvalidArgument: the group has no such rank, or it is taken.
        Unavailable: the group or its leader has ended.
    """
    gate = RankGate.attach(fd, rank)
    return gate if stream is None else SynchronousGate(gate, stream)


class Voter:
    """Says again and again what one rank's serving bears, for as long as its step lasts.

    Where the rank's serving lives. Its thread may stop or die: what it voted for runs out, and
    with it the credit of the whole group.
    """

    def __init__(
        self,
        vote: RankVote,
        bears: Callable[[int], int],
        *,
        quantum: int,
        poll_ms: float,
    ) -> None:
        """Nothing is voted before `start`.

        Args:
            vote: of the rank; whoever serves closes it.
            bears: given how many segments may start already, how many may in all; 0 refuses. It
                must look at serving after it is called: a close from then on beats its answer.
            quantum: segments, the most that is borne at once; asked again at half of it.
            poll_ms: the longest sleep between two looks.
        """
        if quantum < 1 or not poll_ms > 0:
            raise InvalidArgument("a voter needs a quantum of at least 1 and poll_ms > 0")
        self._vote = vote
        self._bears = bears
        self._quantum = quantum
        self._poll_ms = poll_ms
        self._stopping = threading.Event()
        self._thread: Thread | None = None

    def look(self) -> bool:
        """Vote if the rank needs it and its serving bears it; True when it was done."""
        epoch = self._vote.close_epoch  # Before everything that `bears` looks at.
        left = self._vote.vote_left
        if not self._vote.is_in_step() or left > self._quantum // 2:
            return False
        segments = min(self._bears(left), self._quantum)
        return segments > 0 and self._vote.agree(segments, expected_epoch=epoch)

    def start(self) -> None:
        """Start the thread; once."""
        # Without its vote no rank starts a segment.
        self._thread = Thread(
            self._run, name="rose-voter", on_failure=lambda _: self._vote.close(), daemon=False
        )
        self._thread.start()

    def stop(self) -> None:
        """Join the thread, which sees it within `poll_ms`, and withdraw the vote."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._vote.close()

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._vote.is_shut_down():
            # Read before the look: a ring during the look makes the wait return at once.
            seen = self._vote.demand
            self.look()
            if not self._stopping.is_set():
                self._vote.wait_demand(seen, timeout_ms=self._poll_ms)
