"""A borrower of another process, as serving's process sees it."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from rose._core import Arbiter, Clock, HostGate, Process, Tenant
from rose.events import Refusal
from rose.executor.lender import Borrower, Lender
from rose.executor.messages import Granted, Hello, Refused, Welcome
from rose.executor.revocation import Revocation
from rose.memory import KVGeometry
from rose.slo import Policy
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
        descriptors: what comes with that, in order; `owners` own them.
        owners: closed with the tenancy.
        arbiter: of the device.
        gate: where it stops.
        lender: who lends.
        is_fresh: whether a stamp of this age, in nanoseconds, shows that it lives.
        clock: of the device.
    """

    tenant: Tenant
    welcome: Welcome
    descriptors: tuple[int, ...]
    owners: ExitStack
    arbiter: Arbiter
    gate: HostGate
    lender: Lender
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
            device: "cpu" or "cuda:<n>".

        Raises:
            Unavailable: slabs of the tenant before it are not back yet.
        """
        limit_slabs = min(hello.limit_bytes // arbiter.slab_bytes, arbiter.slab_count)
        partition = _partition(arbiter, limit_slabs)
        with ExitStack() as owners:
            owners.callback(arbiter.drop_partition, partition)  # A second drop changes nothing.
            # A borrower in serving's own process, as in a test, is never to be killed.
            is_foreign = process.pid != os.getpid()
            tenant = arbiter.add_tenant(partition, process, kill_late=is_foreign)
            owners.callback(tenant.close)
            pool = arbiter.share_pool()
            owners.callback(lambda: pool)  # Its end closes the descriptors.
            ledger = arbiter.share_ledger()
            owners.callback(os.close, ledger)
            named = [
                *(("pool", fd) for fd in pool.fds),
                ("ledger", ledger),
                ("mailbox", tenant.mailbox_fd),
                ("to_arbiter", tenant.to_arbiter_fd),
                ("to_tenant", tenant.to_tenant_fd),
                ("gate", gate.fileno()),
            ]
            ttl_ns = policy.lease_ttl_ms * NS_PER_MS
            return cls(
                tenant=tenant,
                welcome=Welcome(
                    device=device,
                    partition=partition,
                    header_index=header_index,
                    slab_bytes=pool.slab_bytes,
                    slab_count=pool.slab_count,
                    header_slabs=pool.header_slabs,
                    object_bytes=tuple(pool.sizes),
                    slabs_max=min(limit_slabs, lender.lendable_slabs()),
                    gate_window=policy.gate_window,
                    has_gates=policy.has_gates,
                    lease_ttl_ms=policy.lease_ttl_ms,
                    descriptors=tuple(name for name, _ in named),
                ),
                descriptors=tuple(descriptor for _, descriptor in named),
                owners=owners.pop_all(),
                arbiter=arbiter,
                gate=gate,
                lender=lender,
                is_fresh=lambda age_ns: age_ns <= _FRESH_SHARE * ttl_ns,
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
        )

    def grow(self, blocks: int) -> Granted | Refused:
        """Lend it slabs, under a certificate."""
        match self.lender.grow(blocks):
            case Refusal(reason=reason, retry_after_ms=retry_ms):
                return Refused(reason.name, retry_ms)
            case lease:
                return Granted(lease.lease_id, lease.lease_epoch)

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
        # It has nothing any more, in a step or not.
        self.gate.bury_borrower()
        self.owners.close()
        return True


def _partition(arbiter: Arbiter, limit_slabs: int) -> int:
    """Return the partition of borrowers: a new one, or that of the one before, which is over."""
    for one in arbiter.snapshot().partitions:
        if one.name == _NAME and not one.is_live:
            arbiter.reopen_partition(one.id, limit_slabs=limit_slabs)
            return int(one.id)
    return arbiter.add_partition(_NAME, reserve_slabs=0, limit_slabs=limit_slabs)
