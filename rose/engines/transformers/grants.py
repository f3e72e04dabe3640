"""The capacity grants that a worker reports: how many tokens of KV its turns may use, if any."""

from dataclasses import dataclass, field
from typing import Final

from rose.scheduler.worker import GrantChanged

# Renewals per TTL, so that one late or lost report does no harm.
_RENEWALS: Final = 3


@dataclass(slots=True)
class CapacityGrants:
    """One worker's capacity grants, one after the other. For the loop thread.

    Life: `open` → (`resize` | `renew`)* → `close`; the next grant has a higher epoch.

    Args:
        worker: number of the worker.
        ttl_ms: life of a grant without renewal; 0 for unlimited.
    """

    worker: int
    ttl_ms: float
    grant_epoch: int = field(default=0, init=False)
    kv_tokens: int = field(default=0, init=False)
    _reported_ms: float = field(default=0.0, init=False)

    @property
    def is_live(self) -> bool:
        """True if turns may run under the current grant."""
        return self.kv_tokens > 0

    def open(self, kv_tokens: int, *, now_ms: float) -> GrantChanged:
        """Begin a new grant."""
        self.grant_epoch += 1
        return self.resize(kv_tokens, now_ms=now_ms)

    def resize(self, kv_tokens: int, *, now_ms: float) -> GrantChanged:
        """Change the grant's capacity to `kv_tokens` tokens; 0 ends the grant."""
        self.kv_tokens = kv_tokens
        self._reported_ms = now_ms
        return GrantChanged(
            worker=self.worker,
            grant_epoch=self.grant_epoch,
            kv_tokens=kv_tokens,
            ttl_ms=self.ttl_ms,
        )

    def has_run_out(self, *, now_ms: float) -> bool:
        """Return True if the TTL passed without a report: the scheduler has ended the grant."""
        return self.is_live and 0 < self.ttl_ms <= now_ms - self._reported_ms

    def renew(self, *, now_ms: float) -> GrantChanged | None:
        """Return the grant's next report if a third of its TTL has passed; None otherwise."""
        is_due = now_ms - self._reported_ms >= self.ttl_ms / _RENEWALS
        if not self.is_live or self.ttl_ms == 0 or not is_due:
            return None
        return self.resize(self.kv_tokens, now_ms=now_ms)

    def close(self, *, now_ms: float) -> GrantChanged:
        """End the grant."""
        return self.resize(0, now_ms=now_ms)
