"""What watches know of leases: workers may say the same again, and what is old may come late."""

from rose.scheduler.worker import LeaseChanged


class SeenLeases:
    """Tells news of a lease from what says nothing any more.

    Epochs of a worker only go up, also when it is lost and comes back.
    """

    def __init__(self) -> None:
        self._seen: dict[int, LeaseChanged] = {}  # the last that was news, by worker

    def is_news(self, event: LeaseChanged) -> bool:
        """Note what a worker says; whether its lease is of a later epoch, or of one that lives."""
        before = self._seen.get(event.worker)
        if before is not None:
            is_over = before.kv_tokens <= 0
            if event.lease_epoch < before.lease_epoch + is_over:
                return False
        self._seen[event.worker] = event
        return True
