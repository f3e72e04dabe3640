"""A revocation as the borrower sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rose._core import Arbiter, Attachment, Clock
from rose.units import NS_PER_MS, NS_PER_S


class Cause(Enum):
    """Why slabs are taken back."""

    PRESSURE = "serving needs them, or soon could"
    EXPIRED = "the lease was not renewed"
    CAPPED = "the device lends less, or the time that it was to lend for is over"
    CLOSING = "the device stops lending"


@dataclass(slots=True)
class Notice:
    """What a borrower's engine sees of a revocation, wherever the arbiter is.

    Args:
        slabs: slabs that are wanted.
        deadline_ns: on the device's clock.
        clock: of the device.
    """

    slabs: int
    deadline_ns: int
    clock: Clock | Attachment

    def begin(self, preferred: Sequence[int]) -> None:
        """Let it take effect, with the slabs the engine would rather part with first.

        The arbiter of another process has begun it, by the ranks in the mailbox.
        """

    def remaining_s(self) -> float:
        """Seconds to the deadline, at least 0."""
        return max(0.0, (self.deadline_ns - self.clock.now_ns()) / NS_PER_S)


OnRevoke = Callable[[Notice], None]


@dataclass(slots=True)
class Revocation(Notice):
    """Slabs are wanted back by a deadline, for serving or for nobody.

    Its life: made → `begin` (the slabs are chosen, idle ones change hands) → the borrower frees
    blocks and drops pins, and each slab leaves in the call that empties it → settled, or fenced
    at the deadline.

    Args:
        asked_ns: when serving asked.
        arbiter: of the device.
        borrower: its partition.
        taker: who gets them; None for nobody.
        cause: why.

    `slabs_returned` came back, `slabs_fenced` missed the deadline and are quarantined: both as of
    the last look, and final once settled (the arbiter forgets old revocations).
    """

    asked_ns: int
    arbiter: Arbiter
    borrower: int
    taker: int | None
    cause: Cause = Cause.PRESSURE
    aborted_steps: int = 0
    settled_ns: int = field(default=0, init=False)
    slabs_returned: int = field(default=0, init=False)
    slabs_fenced: int = field(default=0, init=False)
    _id: int | None = field(default=None, init=False)

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was called."""
        return self._id is not None

    def begin(self, preferred: Sequence[int]) -> None:
        """Start it: idle slabs leave at once, then `preferred` in its order, then the emptiest.

        A borrower calls this under the lock that guards its own books; if it does not, the executor
        does. Only the first call counts: a borrower may be told twice.
        """
        if self.is_begun:
            return
        self._id = self.arbiter.revoke(
            self.borrower,
            self.slabs,
            deadline_ns=self.deadline_ns,
            taker=self.taker,
            preferred=list(preferred),
        )
        self.slabs_pending()

    def adopt(self, revocation_id: int) -> "Revocation":
        """Follow a revocation that the arbiter began by itself, for a lease past its TTL."""
        self._id = revocation_id
        return self

    def slabs_pending(self) -> int:
        """Return how many slabs are still to come; past the deadline this fences them."""
        if self._id is None:
            return self.slabs
        if self.settled_ns != 0:
            return 0
        progress = self.arbiter.poll(self._id)
        self.slabs_returned, self.slabs_fenced = progress.returned, progress.fenced
        if progress.pending == 0:
            self.settled_ns = self.clock.now_ns()
        return int(progress.pending)

    def wait(self, timeout_ns: int) -> None:
        """Sleep until nothing is pending, for at most `timeout_ns`."""
        if self._id is not None and self.settled_ns == 0:
            self.arbiter.wait(self._id, timeout_ns=timeout_ns)
            self.slabs_pending()

    @property
    def latency_ms(self) -> float:
        """From the demand to the last slab; only meaningful when settled."""
        return (self.settled_ns - self.asked_ns) / NS_PER_MS
