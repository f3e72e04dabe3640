"""The first answer to a borrower in another process: what it needs to attach."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rose._core import Arbiter
from rose.executor.lender import Lender
from rose.executor.messages import Welcome
from rose.executor.tenancy import Tenancy
from rose.slo.policy import GATE_WINDOW


@contextmanager
def welcome(
    tenancy: Tenancy, *, lender: Lender, device: str
) -> Iterator[tuple[Welcome, list[int]]]:
    """Yield the message to a new tenant, and descriptors that stay open during the `with` block.

    Args:
        tenancy: the tenant.
        lender: lender of the tenant's slabs.
        device: "cpu", or the UUID of serving's GPU.

    Raises:
        Unavailable: no descriptors are left.
    """
    arbiter, policy = lender.arbiter, lender.policy
    with ExitStack() as sent:
        memory, object_bytes = (
            _header(arbiter, tenancy.header_index, sent)
            if tenancy.isolation == "mapped"
            else _pool(arbiter, sent)
        )
        ledger = arbiter.share_ledger()
        sent.callback(os.close, ledger)
        named = [
            *memory,
            ("ledger", ledger),
            ("mailbox", tenancy.tenant.mailbox_fd),
            ("to_arbiter", tenancy.tenant.to_arbiter_fd),
            ("to_tenant", tenancy.tenant.to_tenant_fd),
            ("gate", lender.gate.fileno()),
        ]
        message = Welcome(
            device=device,
            partition=tenancy.partition,
            header_index=tenancy.header_index,
            slab_bytes=arbiter.slab_bytes,
            slab_count=arbiter.slab_count,
            header_slabs=arbiter.header_slabs,
            isolation=tenancy.isolation,
            object_bytes=object_bytes,
            slabs_max=tenancy.slabs_max,
            gate_window=GATE_WINDOW,
            has_gates=policy.has_gates,
            lease_ttl_ms=policy.lease_ttl_ms,
            descriptors=tuple(name for name, _ in named),
        )
        yield message, [descriptor for _, descriptor in named]


def _pool(arbiter: Arbiter, sent: ExitStack) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
    """Return descriptors of all memory objects, and the size of each in bytes."""
    pool = arbiter.share_pool()
    sent.callback(lambda: pool)  # Keeps `pool` alive; its destructor closes the descriptors.
    return [("pool", fd) for fd in pool.fds], tuple(pool.sizes)


def _header(
    arbiter: Arbiter, index: int, sent: ExitStack
) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
    """Return the descriptor and the size of a "mapped" borrower's own header slab."""
    header = arbiter.share_header(index)
    sent.callback(os.close, header)
    return [("header", header)], (arbiter.slab_bytes,)
