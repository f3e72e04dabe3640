"""Serving's representation of the borrower of a device."""

from typing import TYPE_CHECKING, TypeAlias

from rose._core import Arbiter, HostGate
from rose.compute import Gpu
from rose.errors import DeadlineExceeded
from rose.executor.revocation import Revocation
from rose.executor.rollout import RolloutLane
from rose.slo import Policy
from rose.units import NS_PER_MS

if TYPE_CHECKING:  # This module needs an extra of the package.
    from rose.executor.tenancy import Tenancy


Borrower: TypeAlias = "LocalBorrower | Tenancy"
"""The borrower of a device. Its methods run in serving's threads and in the keeper's thread."""


def wait_sentence(waited_ms: float) -> str:
    """Say that serving waited too long."""
    return (
        f"serving waited {waited_ms:.0f} ms for segments beyond their certificates in ten minutes"
    )


class LocalBorrower:
    """A borrower in serving's own process: rose calls its engine and cannot kill it."""

    is_evicted = False

    def __init__(
        self, lane: RolloutLane, arbiter: Arbiter, gate: HostGate, gpu: Gpu | None, policy: Policy
    ) -> None:
        """Made by `CoServing.rollout`."""
        self.partition = lane.kv.partition
        self.blocks_per_slab = lane.kv.blocks_per_slab
        self._lane = lane
        self._arbiter = arbiter
        self._gate = gate
        self._gpu = gpu
        self._lease_ttl_ms = policy.lease_ttl_ms
        self._late_since_ns: int | None = None
        self._is_taken_out = False

    def revoke(self, revocation: Revocation) -> None:
        """Call the engine, which chooses slabs and frees their blocks before it returns."""
        self._lane.on_revoke(revocation)

    def note_room(self) -> None:
        """Notify the engine that slabs are free."""
        self._lane.on_room()

    def is_alive(self) -> bool:
        """Return True outside a step, where the borrower cannot be stuck.

        Within a step the borrower renews its leases at the gates.
        """
        return not self._gate.is_in_step()

    def wait_budget_spent(self, waited_ms: float) -> None:
        """End lending, because serving waited too long for segments and a thread cannot be killed.

        Raises:
            DeadlineExceeded: always.
        """
        raise DeadlineExceeded(f"{wait_sentence(waited_ms)}: the borrower was removed")

    def mind_late(self, late_slabs: int) -> None:
        """End lending if the borrower keeps slabs for a TTL past their deadline.

        A thread cannot be killed, so lending ends and no step starts any more. The late slabs are
        usable again once the borrower's work is complete.

        Raises:
            DeadlineExceeded: the borrower kept slabs for too long, and lending must end.
        """
        if late_slabs > 0 and self._is_taken_out and self._is_done():
            self._arbiter.prove_completion(self.partition)
        if late_slabs == 0 or self._is_taken_out:
            self._late_since_ns = None
            return
        now_ns = self._arbiter.now_ns()
        if self._late_since_ns is None:
            self._late_since_ns = now_ns
        if now_ns - self._late_since_ns > self._lease_ttl_ms * NS_PER_MS:
            self._is_taken_out = True
            raise DeadlineExceeded(
                f"the borrower has kept {late_slabs} slabs {self._lease_ttl_ms:g} ms past their "
                f"deadline and was removed: its on_revoke must free the blocks of leaving slabs"
            )

    def _is_done(self) -> bool:
        is_idle = self._gpu is None or self._gpu.rollout.is_idle()
        return is_idle and not self._gate.is_in_step()
