"""What workers say before they are registered: a stream may speak before its owner can."""

from typing import Final

from rose.scheduler.worker import LeaseChanged, VersionCommitted, WorkerEvent, WorkerLost

# Whoever invents numbers of workers must not fill our memory.
_WORKERS_MAX: Final = 4096


class EarlyNews:
    """Keeps the newest lease and the newest version of each, until it is registered."""

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
            self._kept.setdefault(event.worker, {})[type(event)] = event
        return True

    def take(self, worker: int) -> list[WorkerEvent]:
        """Return what was kept of a worker, and keep it no longer."""
        return list(self._kept.pop(worker, {}).values())
