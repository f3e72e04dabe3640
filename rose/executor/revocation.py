"""Revocations, and the notices that inform the borrower's engine of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from rose._core import Arbiter, Attachment, Clock
from rose.units import NS_PER_MS, NS_PER_S


class Cause(Enum):
    """Reason for a revocation."""

    PRESSURE = "serving needs the slabs, or could need them soon"
    EXPIRED = "the lease was not renewed"
    CAPPED = "the cap was lowered, or has expired"
    CLOSING = "the device stops lending"


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of a revocation for the borrower's engine, in serving's process or in another.

    The arbiter has already chosen the slabs, by their ranks: `RolloutLane.leaving` lists them. The
    engine must free their blocks.

    Args:
        slabs: number of slabs to give back.
        deadline_ns: deadline on the device's clock, in nanoseconds.
        clock: the device's clock.
    """

    slabs: int
    deadline_ns: int
    clock: Clock | Attachment

    def remaining_s(self) -> float:
        """Seconds to the deadline, at least 0."""
        return max(0.0, (self.deadline_ns - self.clock.now_ns()) / NS_PER_S)


OnRevoke = Callable[[Notice], None]


@dataclass(slots=True)
class Revocation:
    """Takes slabs back by a deadline, for serving or to make them unowned.

    Lifecycle: made → `begin` chooses slabs, and idle slabs change owner at once → the borrower
    frees blocks and drops pins, and the call that empties a slab also changes its owner → settled,
    or fenced at the deadline.

    Args:
        slabs: number of slabs to take back.
        deadline_ns: deadline on the device's clock, in nanoseconds.
        clock: the device's clock.
        asked_ns: time of the request.
        arbiter: the device's arbiter.
        borrower: the borrower's partition.
        taker: partition that receives the slabs; None: they become unowned.
        cause: reason for the revocation.

    `slabs_returned` is the number of slabs that came back, `slabs_fenced` the number of slabs that
    missed the deadline and are quarantined. `slabs_pending` and `wait` update both until the
    revocation is settled.
    """

    slabs: int
    deadline_ns: int
    clock: Clock
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

    def begin(self) -> None:
        """Choose the slabs: idle slabs first, then by their ranks, then the emptiest slabs.

        Only the first call has an effect, because a borrower may be notified twice.
        """
        if self._id is not None:
            return
        self._id = self.arbiter.revoke(
            self.borrower, self.slabs, deadline_ns=self.deadline_ns, taker=self.taker
        )
        self.slabs_pending()

    def adopt(self, revocation_id: int) -> "Revocation":
        """Track a revocation that the arbiter began itself, for a lease past its TTL."""
        self._id = revocation_id
        return self

    def slabs_pending(self) -> int:
        """Return the number of outstanding slabs. After the deadline these slabs are fenced."""
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
        """Milliseconds from the request to the last slab; valid once settled."""
        return (self.settled_ns - self.asked_ns) / NS_PER_MS
