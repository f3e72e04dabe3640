"""A borrower of another process, as serving's process sees it."""

import os
import threading
from contextlib import ExitStack
from typing import Final

from rose._core import Arbiter, Process
from rose.events import Refusal
from rose.executor.lender import Lender
from rose.executor.messages import DESCRIPTORS_MAX, Granted, Hello, Refused, Welcome
from rose.executor.revocation import Revocation
from rose.memory import Isolation, LentSlabs, MappedLoans
from rose.slo.policy import GATE_WINDOW
from rose.units import NS_PER_MS, NS_PER_S

_NAME: Final = "rollout"
# Part of a lease's TTL within which a living tenant stamps its mailbox several times.
_FRESH_SHARE: Final = 0.5
# So often serving waits in vain for a segment of one borrower; then it is ended.
_PARK_TIMEOUTS_MAX: Final = 2
# A time-out that is older counts no more: a slow segment now and then is no broken borrower, and
# costs serving one `park_wait_ms` in so long at most.
_PARK_MEMORY_NS: Final = 600 * NS_PER_S


class Patience:
    """How often serving waits in vain for segments of one borrower. Any thread.

    The gate is written by the borrower too, so nothing that stands there ends such waits.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()  # Guards both.
        self._timeouts = 0
        self._timed_out_ns = 0

    @property
    def is_over(self) -> bool:
        """Whether it is not waited for any more."""
        return self._timeouts >= _PARK_TIMEOUTS_MAX

    def timed_out(self, now_ns: int) -> None:
        """Note that serving waited in vain until `now_ns`."""
        with self._lock:
            is_old = now_ns - self._timed_out_ns > _PARK_MEMORY_NS and not self.is_over
            self._timeouts = 1 if is_old else self._timeouts + 1
            self._timed_out_ns = now_ns


class Tenancy:
    """One tenant from its admission to its end.

    Its life: made → `grow`, `revoke`, … → `end`, when it hung up or its process is gone →
    `is_over`, when its slabs are back. They come by shared words and by its death.
    """

    def __init__(
        self,
        hello: Hello,
        process: Process,
        *,
        lender: Lender,
        header_index: int,
        isolation: Isolation,
        device: str,
    ) -> None:
        """Make `process`, which said `hello`, a tenant; `header_index` is its own header slab.

        Raises:
            Unavailable: slabs of the tenant before it are not back yet.
        """
        self._lender = lender
        self._arbiter = arbiter = lender.arbiter
        limit_slabs = min(hello.limit_bytes // arbiter.slab_bytes, arbiter.slab_count)
        partition = _partition(arbiter, limit_slabs)
        is_mapped = isolation == "mapped"
        with ExitStack() as owners, ExitStack() as sent:
            owners.callback(arbiter.drop_partition, partition)  # A second drop changes nothing.
            self.tenant = arbiter.add_tenant(
                partition,
                process,
                # A borrower in serving's own process, as in a test, is never to be killed.
                kill_late=process.pid != os.getpid(),
                is_mapped=is_mapped,
            )
            owners.callback(self.tenant.close)
            memory, object_bytes = (
                _header(arbiter, header_index, sent) if is_mapped else _pool(arbiter, sent)
            )
            ledger = arbiter.share_ledger()
            sent.callback(os.close, ledger)
            named = [
                *memory,
                ("ledger", ledger),
                ("mailbox", self.tenant.mailbox_fd),
                ("to_arbiter", self.tenant.to_arbiter_fd),
                ("to_tenant", self.tenant.to_tenant_fd),
                ("gate", lender.gate.fileno()),
            ]
            # Makes what is lent zeros.
            self._loans = MappedLoans(arbiter, partition) if is_mapped else None
            # Those of them that are its own now are closed once they are sent.
            self.descriptors = tuple(descriptor for _, descriptor in named)
            self.welcome = Welcome(
                device=device,
                partition=partition,
                header_index=header_index,
                slab_bytes=arbiter.slab_bytes,
                slab_count=arbiter.slab_count,
                header_slabs=arbiter.header_slabs,
                isolation=isolation,
                object_bytes=object_bytes,
                slabs_max=min(limit_slabs, lender.lendable_slabs),
                gate_window=GATE_WINDOW,
                has_gates=lender.policy.has_gates,
                lease_ttl_ms=lender.policy.lease_ttl_ms,
                descriptors=tuple(name for name, _ in named),
            )
            self.sent, self._owners = sent.pop_all(), owners.pop_all()
        self.partition = partition
        self.blocks_per_slab = hello.geometry.blocks_per_slab(arbiter.slab_bytes)
        self._patience = Patience()

    def grow(self, blocks: int) -> tuple[Granted | Refused, LentSlabs]:
        """Lend it slabs, under a certificate.

        Returns:
            The answer, and the descriptors that go with it: the caller closes them.

        Raises:
            RoseError: the slabs could not be made zeros, or there are no descriptors left.
        """
        if self._loans is not None:
            blocks = min(blocks, DESCRIPTORS_MAX * self.blocks_per_slab)
        match self._lender.grow(blocks):
            case Refusal(reason=reason, retry_after_ms=retry_ms):
                return Refused(reason.name, retry_ms), LentSlabs({})
            case grant:
                lent = LentSlabs({}) if self._loans is None else self._loans.lend(grant.slabs)
                return Granted(grant.lease_id, grant.lease_epoch, tuple(lent.fds)), lent

    def revoke(self, revocation: Revocation) -> None:
        """Begin at once: idle slabs change hands in this call, the others when it has read this."""
        revocation.begin(())
        self.tenant.ring()

    def note_room(self) -> None:
        """Let it look: slabs came free."""
        self.tenant.ring()

    @property
    def is_evicted(self) -> bool:
        """Whether its process was ended because its segments did not stop."""
        return self._patience.is_over

    def park_timed_out(self) -> None:
        """Note that a segment of it still ran at the end of serving's wait for it."""
        self._patience.timed_out(self._lender.clock.now_ns())
        if self._patience.is_over:
            self.tenant.evict()

    def mind_late(self, late_slabs: int) -> None:
        """Do nothing: who watches its process ends it when it is late."""

    def is_alive(self) -> bool:
        """Whether it has stamped its mailbox lately; a frozen process does not."""
        age_ns = self._lender.clock.now_ns() - self.tenant.heartbeat_ns
        ttl_ns = self._lender.policy.lease_ttl_ms * NS_PER_MS
        return self.tenant.is_alive and 0 <= age_ns <= _FRESH_SHARE * ttl_ns

    def _slabs(self) -> int:
        now = self._arbiter.snapshot().partitions[self.partition]
        return int(now.held + now.quarantined)

    def end(self) -> None:
        """Take everything back: it hung up, or its process is gone.

        What it still uses is late at once, and a process that is late is killed.
        """
        self._arbiter.drop_partition(self.partition)
        self._lender.forget_borrower()

    def is_over(self, *, wait_ms: float) -> bool:
        """Whether all is back, so that another tenant can come; then let go of everything.

        To be asked again until it is: whoever watches the process must not go before it.

        Args:
            wait_ms: how long a process that is being killed may take.
        """
        if self._slabs() > 0 and not self.tenant.wait_lost(timeout_ms=wait_ms):
            return False
        # It has nothing any more, in a step or not. It may have written anything into the gate, and
        # a process that only hung up still can: the next one gets another page.
        self._lender.gate.renew()
        self.let_go()
        return True

    def let_go(self) -> None:
        """Close all that is here, whether or not its process is gone yet; nobody watches it now."""
        self.sent.close()
        self._owners.close()


def _pool(arbiter: Arbiter, sent: ExitStack) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
    """Return descriptors of all memory, and the bytes behind each."""
    pool = arbiter.share_pool()
    sent.callback(lambda: pool)  # Its end closes the descriptors.
    return [("pool", fd) for fd in pool.fds], tuple(pool.sizes)


def _header(
    arbiter: Arbiter, index: int, sent: ExitStack
) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
    """Return the same for a borrower that maps what it is lent: of its own header slab alone."""
    header = arbiter.share_header(index)
    sent.callback(os.close, header)
    return [("header", header)], (arbiter.slab_bytes,)


def _partition(arbiter: Arbiter, limit_slabs: int) -> int:
    """Return the partition of borrowers: a new one, or that of the one before, which is over."""
    for one in arbiter.snapshot().partitions:
        if one.name == _NAME and not one.is_live:
            arbiter.reopen_partition(one.id, limit_slabs=limit_slabs)
            return int(one.id)
    return arbiter.add_partition(_NAME, reserve_slabs=0, limit_slabs=limit_slabs)
