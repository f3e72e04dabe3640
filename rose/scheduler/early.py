"""What workers say before they are registered: a stream may speak before its owner can."""

from typing import Final

from rose.scheduler.worker import LeaseChanged, VersionCommitted, WorkerEvent, WorkerLost

# Whoever invents numbers of workers must not fill our memory.
_WORKERS_MAX: Final = 4096


class EarlyNews:
    """Keeps of each its newest lease and what it said last of its version, until it is registered.

    The lease with the highest epoch is the newest, and of those of one epoch the last.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[type, WorkerEvent]] = {}

    def keep(self, event: WorkerEvent) -> bool:
        """Keep an event of a worker that is not registered; False for one that cannot wait."""
        if isinstance(event, WorkerLost):
            self._kept.pop(event.worker, None)
            return False
        if not isinstance(event, LeaseChanged | VersionCommitted):
            return False
        if event.worker in self._kept or len(self._kept) < _WORKERS_MAX:
            kept = self._kept.setdefault(event.worker, {})
            before = kept.get(type(event))
            # A stream that breaks may say an old lease again, behind the new one.
            if not (isinstance(event, LeaseChanged) and _is_stale(event, before)):
                kept[type(event)] = event
        return True

    def take(self, worker: int) -> list[WorkerEvent]:
        """Return what was kept of a worker, and keep it no longer."""
        return list(self._kept.pop(worker, {}).values())


def _is_stale(lease: LeaseChanged, before: WorkerEvent | None) -> bool:
    return isinstance(before, LeaseChanged) and lease.lease_epoch < before.lease_epoch
