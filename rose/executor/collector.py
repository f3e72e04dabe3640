"""Takes lent slabs back, each revocation with a deadline."""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rose._core import Arbiter, CertificateLog, Clock, HostGate, PartitionSnapshot
from rose.executor.aborts import AbortRation
from rose.executor.borrower import Borrower
from rose.executor.revocation import Cause, Revocation
from rose.slo import Policy
from rose.units import NS_PER_MS

# Settled revocations are kept for reports.
_HISTORY: Final = 4096
# Revocations by serving's need that a reading tells of; more between two readings are a storm.
_EBBS: Final = 64


class Collector:
    """Begins revocations, aborts the step that holds their slabs, and waits for them.

    Any thread. The lock guards what is on its way back and what is remembered of it; it is never
    held while slabs are waited for or the borrower is called.
    """

    def __init__(
        self,
        *,
        arbiter: Arbiter,
        serving: int,
        gate: HostGate,
        log: CertificateLog,
        policy: Policy,
        clock: Clock,
    ) -> None:
        """Made by `Lender`; `serving` is the partition that gets slabs it asked for."""
        self._arbiter = arbiter
        self._serving = serving
        self._gate = gate
        self._log = log
        self._clock = clock
        self.revoke_ns = int(policy.revoke_ms * NS_PER_MS)
        self._regrow_ns = int(policy.regrow_after_ms * NS_PER_MS)
        self._ration = AbortRation(per_s=policy.aborts_per_s, clock=clock)
        self._lock = threading.Lock()
        self._open: list[Revocation] = []
        # Slabs that come and go abort step after step: until then nothing new is lent.
        self.no_growth_before_ns = 0
        self._pressures = 0
        self._ebbs: deque[tuple[int, int]] = deque(maxlen=_EBBS)
        self.history: deque[Revocation] = deque(maxlen=_HISTORY)

    def revoke(
        self, borrower: Borrower, slabs: int, *, cause: Cause, lent: PartitionSnapshot
    ) -> None:
        """Begin to take `slabs` slabs back; `lent` is what the borrower has."""
        revocation = self._revocation(borrower, slabs=slabs, cause=cause)
        with self._lock:
            if cause is Cause.PRESSURE:
                before = lent.held - lent.in_revocation
                self._pressures += 1
                self._ebbs.append((before, max(0, before - slabs)))
            self._hold_growth_off(revocation.asked_ns + self._regrow_ns)
        self._log.append_revoke_begun(deadline_ns=revocation.deadline_ns, slabs=slabs)
        try:
            borrower.revoke(revocation)
        finally:
            # Whatever the borrower does or raises, the slabs are taken back.
            if not revocation.is_begun:
                revocation.begin(())
            with self._lock:
                self._open.append(revocation)
            if revocation.slabs_pending() > 0:
                self._abort_step(revocation)
            self.settle()

    def revoke_overdue(self, borrower: "Borrower | None") -> None:
        """Fence slabs past their deadline, and take leases past their TTL back."""
        for revocation_id in self._arbiter.expire(grace_ns=self.revoke_ns):
            if borrower is None:
                break  # Forgotten meanwhile: all it had is home or quarantined.
            # The borrower has not come by for a whole TTL, so it is not asked: only told.
            revocation = self._revocation(borrower, slabs=0, cause=Cause.EXPIRED)
            with self._lock:
                self._open.append(revocation.adopt(revocation_id))
        self.settle()

    def _revocation(self, borrower: Borrower, *, slabs: int, cause: Cause) -> Revocation:
        now_ns = self._clock.now_ns()
        return Revocation(
            slabs=slabs,
            deadline_ns=now_ns + self.revoke_ns,
            asked_ns=now_ns,
            arbiter=self._arbiter,
            borrower=borrower.partition,
            # Serving did not ask for what is over a cap, and takes what is nobody's when it does.
            taker=None if cause is Cause.CAPPED else self._serving,
            clock=self._clock,
            cause=cause,
        )

    def _abort_step(self, revocation: Revocation) -> None:
        """Ask the step in flight, if there is one, to end at its next gate."""
        with self._lock:  # Two that come at once ask one step once.
            is_asked = self._gate.is_abort_asked()
            if self._gate.abort_step():
                revocation.aborted_steps = 1
                if not is_asked:
                    self._ration.aborted()
                    wait_ns = math.ceil(self._ration.wait_ms() * NS_PER_MS)
                    self._hold_growth_off(self._clock.now_ns() + wait_ns)

    def _hold_growth_off(self, until_ns: int) -> None:
        self.no_growth_before_ns = max(self.no_growth_before_ns, until_ns)

    def under_way(self) -> Sequence[Revocation]:
        """Return the revocations that are not settled."""
        with self._lock:
            return tuple(self._open)

    def wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait for the revocations under way, each until its deadline, or until it is enough."""
        for revocation in self.under_way():
            if is_enough():
                break
            revocation.wait(max(0, revocation.deadline_ns - self._clock.now_ns()))
        else:
            is_enough()  # What came home for nobody is there to be taken.
        self.settle()

    def settle(self) -> None:
        """Move settled revocations into the history; past their deadline they settle by fencing."""
        if not self._open:
            return
        with self._lock:
            settled = [one for one in self._open if one.slabs_pending() == 0]
            self._open = [one for one in self._open if one not in settled]
            self.history.extend(settled)

    @property
    def pressures(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Revocations so far that serving's need began; slabs before and after the last 64."""
        with self._lock:
            return self._pressures, tuple(self._ebbs)

    @property
    def aborts(self) -> int:
        """Steps that were asked to abort so far, because serving took slabs that they pinned."""
        return self._ration.count
