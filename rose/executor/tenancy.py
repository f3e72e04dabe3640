"""A borrower of another process, as serving's process sees it."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from rose._core import Arbiter, Clock, HostGate, Process, Tenant
from rose.events import Refusal
from rose.executor.lender import Borrower, Lender
from rose.executor.messages import DESCRIPTORS_MAX, Granted, Hello, Refused, Welcome
from rose.executor.revocation import Revocation
from rose.memory import Isolation, KVGeometry, LentSlabs, MappedLoans
from rose.slo import Policy
from rose.slo.policy import GATE_WINDOW
from rose.units import NS_PER_MS

_NAME: Final = "rollout"
# Part of a lease's TTL within which a living tenant stamps its mailbox several times.
_FRESH_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One tenant from its admission to its end.

    Its life: `begin` → `grow`, `revoke`, … → `end`, when it hung up or its process is gone →
    `is_over`, when its slabs are back. They come by shared words and by its death.

    Args:
        tenant: its process, mailbox and bells.
        welcome: what it is told.
        descriptors: what comes with that, in order.
        sent: those of them that are its own now; closed once they are sent.
        owners: closed with the tenancy.
        arbiter: of the device.
        gate: where it stops.
        lender: who lends.
        loans: makes what is lent zeros; None where all of the pool is mapped.
        grant_blocks_max: that one grant can hold.
        is_fresh: whether a stamp of this age, in nanoseconds, shows that it lives.
        clock: of the device.
    """

    tenant: Tenant
    welcome: Welcome
    descriptors: tuple[int, ...]
    sent: ExitStack
    owners: ExitStack
    arbiter: Arbiter
    gate: HostGate
    lender: Lender
    loans: MappedLoans | None
    grant_blocks_max: int
    is_fresh: Callable[[int], bool]
    clock: Clock

    @classmethod
    def begin(
        cls,
        hello: Hello,
        process: Process,
        *,
        arbiter: Arbiter,
        gate: HostGate,
        lender: Lender,
        policy: Policy,
        clock: Clock,
        header_index: int,
        isolation: Isolation,
        device: str,
    ) -> "Tenancy":
        """Make whoever said `hello` a tenant.

        Args:
            hello: what it wants.
            process: who it is.
            arbiter: of the device.
            gate: where it is to stop.
            lender: who lends.
            policy: the knobs.
            clock: of the device.
            header_index: the header slab that is a borrower's own.
            isolation: of the device.
            device: "cpu" or "cuda:<n>".

        Raises:
            Unavailable: slabs of the tenant before it are not back yet.
        """
        limit_slabs = min(hello.limit_bytes // arbiter.slab_bytes, arbiter.slab_count)
        partition = _partition(arbiter, limit_slabs)
        with ExitStack() as owners, ExitStack() as sent:
            owners.callback(arbiter.drop_partition, partition)  # A second drop changes nothing.
            # A borrower in serving's own process, as in a test, is never to be killed.
            is_foreign = process.pid != os.getpid()
            is_mapped = isolation == "mapped"
            tenant = arbiter.add_tenant(
                partition, process, kill_late=is_foreign, is_mapped=is_mapped
            )
            owners.callback(tenant.close)
            memory, object_bytes = (
                _header(arbiter, header_index, sent) if is_mapped else _pool(arbiter, sent)
            )
            ledger = arbiter.share_ledger()
            sent.callback(os.close, ledger)
            named = [
                *memory,
                ("ledger", ledger),
                ("mailbox", tenant.mailbox_fd),
                ("to_arbiter", tenant.to_arbiter_fd),
                ("to_tenant", tenant.to_tenant_fd),
                ("gate", gate.fileno()),
            ]
            ttl_ns = policy.lease_ttl_ms * NS_PER_MS
            loans = MappedLoans(arbiter, partition) if is_mapped else None
            return cls(
                tenant=tenant,
                welcome=Welcome(
                    device=device,
                    partition=partition,
                    header_index=header_index,
                    slab_bytes=arbiter.slab_bytes,
                    slab_count=arbiter.slab_count,
                    header_slabs=arbiter.header_slabs,
                    isolation=isolation,
                    object_bytes=object_bytes,
                    slabs_max=min(limit_slabs, lender.lendable_slabs()),
                    gate_window=GATE_WINDOW,
                    has_gates=policy.has_gates,
                    lease_ttl_ms=policy.lease_ttl_ms,
                    descriptors=tuple(name for name, _ in named),
                ),
                descriptors=tuple(descriptor for _, descriptor in named),
                sent=sent.pop_all(),
                owners=owners.pop_all(),
                arbiter=arbiter,
                gate=gate,
                lender=lender,
                loans=loans,
                grant_blocks_max=DESCRIPTORS_MAX
                * hello.geometry.blocks_per_slab(arbiter.slab_bytes),
                is_fresh=lambda age_ns: 0 <= age_ns <= _FRESH_SHARE * ttl_ns,
                clock=clock,
            )

    def borrower(self, geometry: KVGeometry) -> Borrower:
        """Return what the lender is to know of it."""
        return Borrower(
            partition=self.welcome.partition,
            geometry=geometry,
            gate=self.gate,
            on_revoke=self.revoke,
            on_room=self.tenant.ring,
            is_alive=self.is_alive,
            evict=self.tenant.evict,
        )

    def grow(self, blocks: int) -> tuple[Granted | Refused, LentSlabs]:
        """Lend it slabs, under a certificate.

        Returns:
            The answer, and the descriptors that go with it: the caller closes them.

        Raises:
            RoseError: the slabs could not be made zeros, or there are no descriptors left.
        """
        if self.loans is not None:
            blocks = min(blocks, self.grant_blocks_max)
        match self.lender.grow(blocks):
            case Refusal(reason=reason, retry_after_ms=retry_ms):
                return Refused(reason.name, retry_ms), LentSlabs({})
            case lease:
                lent = LentSlabs({}) if self.loans is None else self.loans.lend(lease.slabs)
                return Granted(lease.lease_id, lease.lease_epoch, tuple(lent.fds)), lent

    def revoke(self, revocation: Revocation) -> None:
        """Begin at once: idle slabs change hands in this call, the others when it has read this."""
        revocation.begin(())
        self.tenant.ring()

    def is_alive(self) -> bool:
        """Whether it has stamped its mailbox lately; a frozen process does not."""
        return self.tenant.is_alive and self.is_fresh(
            self.clock.now_ns() - self.tenant.heartbeat_ns
        )

    def _slabs(self) -> int:
        now = self.arbiter.snapshot().partitions[self.welcome.partition]
        return int(now.held + now.quarantined)

    def end(self) -> None:
        """Take everything back: it hung up, or its process is gone.

        What it still uses is late at once, and a process that is late is killed.
        """
        self.arbiter.drop_partition(self.welcome.partition)
        self.lender.forget_borrower()

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
        self.gate.renew()
        self.let_go()
        return True

    def let_go(self) -> None:
        """Close all that is here, whether or not its process is gone yet; nobody watches it now."""
        self.sent.close()
        self.owners.close()


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
