"""Notices that inform a borrower's engine of changes in its mailbox."""

from rose._core import Attachment, Clock, TenantNews
from rose.executor.revocation import Notice
from rose.executor.rollout import RolloutLane


class Notices:
    """Calls the engine when serving revokes slabs, and when slabs may be free.

    In serving's own process `ring` calls the engine in serving's thread, so a revocation waits for
    no other thread. In another process a `Watcher` waits for the mailbox's bell, and then calls the
    engine.
    """

    def __init__(
        self, attachment: Attachment, lane: RolloutLane, *, clock: Clock | Attachment
    ) -> None:
        """`clock` is the device's clock."""
        self._attachment = attachment
        self._lane = lane
        self._clock = clock
        self._has_room = False  # The bell rang, but the engine was not notified yet.

    def ring(self) -> None:
        """Look at the mailbox, and notify the engine."""
        self._has_room = True
        news = self._attachment.look()
        try:
            self.report(news)
        finally:
            # The attachment's thread returns slabs that the engine has not emptied. While a step
            # pins them, the thread sleeps: it would compete with the step for a core.
            self._attachment.wake()

    def report(self, news: TenantNews) -> None:
        """Notify the engine of `news`: of revoked slabs, or else that slabs may be free."""
        self._has_room |= news.was_rung
        if news.closed:
            note = self._attachment.revocation()
            deadline_ns = note.due_ns if note and note.due_ns else self._clock.now_ns()
            self._lane.on_revoke(Notice(len(news.closed), deadline_ns, self._clock))
        elif self._has_room:
            self._has_room = False
            self._lane.on_room()
