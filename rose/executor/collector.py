"""Take lent slabs back by revocations, each of which has a deadline."""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rose._core import Arbiter, CertificateLog, Clock, HostGate, PartitionSnapshot
from rose.executor.aborts import AbortRation
from rose.executor.revocation import Cause, Revocation
from rose.executor.tenancy import Tenancy
from rose.slo import Policy
from rose.units import NS_PER_MS

# Number of settled revocations that are kept for reports.
_HISTORY: Final = 4096
# A `DeviceReading` lists the newest revocations for serving's needs, at most this many. Normally
# fewer begin between two readings.
_EBBS: Final = 64


class Collector:
    """Begins revocations, aborts the step that pins the slabs, and waits until the slabs are back.

    Any thread may call the methods. The lock guards open and past revocations; it is never held
    while rose waits for slabs or calls the borrower.
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
        """Made by `Lender`; `serving` is serving's partition, which receives the slabs."""
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
        # The loan does not grow before this time. Otherwise slabs that come and go would abort step
        # after step.
        self.no_growth_before_ns = 0
        self._begun: Counter[Cause] = Counter()
        self._ebbs: deque[tuple[int, int]] = deque(maxlen=_EBBS)
        self.history: deque[Revocation] = deque(maxlen=_HISTORY)

    def revoke(
        self, borrower: Tenancy, slabs: int, *, cause: Cause, lent: PartitionSnapshot
    ) -> None:
        """Begin to take back `slabs` slabs.

        Args:
            borrower: borrower that holds the slabs.
            slabs: number of slabs.
            cause: reason for the revocation.
            lent: present state of the borrower's partition.
        """
        revocation = self._revocation(borrower, slabs=slabs, cause=cause)
        with self._lock:
            self._begun[cause] += 1
            if cause is Cause.PRESSURE:
                before = lent.held - lent.in_revocation
                self._ebbs.append((before, max(0, before - slabs)))
            self._hold_growth_off(revocation.asked_ns + self._regrow_ns)
        self._log.append_revoke_begun(deadline_ns=revocation.deadline_ns, slabs=slabs)
        try:
            borrower.revoke(revocation)
        finally:
            # Take the slabs back even if the borrower's engine raises.
            with self._lock:
                self._open.append(revocation)
            if revocation.slabs_pending() > 0:
                self._abort_step(revocation)
            self.settle()

    def revoke_overdue(self, borrower: Tenancy | None) -> None:
        """Fence slabs past their deadline, and revoke leases past their TTL."""
        for revocation_id in self._arbiter.expire(grace_ns=self.revoke_ns):
            if borrower is None:
                break  # The borrower is gone: all its slabs are back or quarantined.
            # The borrower sent no heartbeat for a TTL, so it is not asked which slabs to give.
            revocation = self._revocation(borrower, slabs=0, cause=Cause.EXPIRED)
            with self._lock:
                self._begun[Cause.EXPIRED] += 1
                self._open.append(revocation.adopt(revocation_id))
        self.settle()

    def _revocation(self, borrower: Tenancy, *, slabs: int, cause: Cause) -> Revocation:
        now_ns = self._clock.now_ns()
        return Revocation(
            slabs=slabs,
            deadline_ns=now_ns + self.revoke_ns,
            asked_ns=now_ns,
            arbiter=self._arbiter,
            borrower=borrower.partition,
            # Slabs over a cap become unowned: serving did not request them, but can take them.
            taker=None if cause is Cause.CAPPED else self._serving,
            clock=self._clock,
            cause=cause,
        )

    def _abort_step(self, revocation: Revocation) -> None:
        """Ask the running step, if any, to end at its next gate."""
        with self._lock:  # Two simultaneous revocations count the abort of one step once.
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
        """Return the unsettled revocations."""
        with self._lock:
            return tuple(self._open)

    def wait(self, is_enough: Callable[[], bool]) -> None:
        """Wait for each open revocation until its deadline, or until `is_enough` returns True."""
        for revocation in self.under_way():
            if is_enough():
                break
            revocation.wait(max(0, revocation.deadline_ns - self._clock.now_ns()))
        else:
            is_enough()  # This call takes slabs that became unowned in the meantime.
        self.settle()

    def settle(self) -> None:
        """Move settled revocations to the history, and fence slabs past their deadline."""
        if not self._open:
            return
        with self._lock:
            settled = [one for one in self._open if one.slabs_pending() == 0]
            self._open = [one for one in self._open if one not in settled]
            self.history.extend(settled)

    def newest_fenced(self) -> Revocation | None:
        """Return the newest revocation with slabs that missed its deadline, if any."""
        with self._lock:
            known = (*self._open, *reversed(self.history))
            return next((one for one in known if one.slabs_fenced > 0), None)

    @property
    def pressures(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Number of revocations for serving's needs, and data of the last 64 of them.

        The data of a revocation are (slabs on loan before it, slabs on loan after it).
        """
        with self._lock:
            return self._begun[Cause.PRESSURE], tuple(self._ebbs)

    @property
    def begun(self) -> Mapping[str, int]:
        """Number of revocations so far, by the name of their cause in lower case."""
        with self._lock:
            return {cause.name.lower(): self._begun[cause] for cause in Cause}

    @property
    def aborts(self) -> int:
        """Number of steps that were asked to abort, because they pinned revoked slabs."""
        return self._ration.count
