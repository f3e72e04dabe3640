"""What crossed from the trainer to the relay and from there to the workers, over all its lives."""

import json
import threading


class RelayedBytes:
    """Adds up what each incarnation of the relay says it moved; any thread.

    What one moved after it last said so is missing: at most half a second of it, if it is killed.
    """

    def __init__(self) -> None:
        """Start with nothing moved."""
        self._lock = threading.Lock()  # Guards all below.
        self._before = (0, 0)
        self._now = (0, 0)

    def begin(self) -> None:
        """Count a new incarnation from nothing."""
        with self._lock:
            self._before, self._now = self._sum(), (0, 0)

    def hear(self, line: str) -> None:
        """Take a line of the relay's; what is none of its figures says nothing."""
        try:
            said = json.loads(line)
        except ValueError:
            return
        match said:
            case {"crossing_bytes": int(crossing), "sent_bytes": int(sent)}:
                with self._lock:
                    self._now = crossing, sent

    @property
    def crossing_bytes(self) -> int:
        """Return what went from the trainer to the relay."""
        with self._lock:
            return self._sum()[0]

    @property
    def sent_bytes(self) -> int:
        """Return what went from the relay to the workers."""
        with self._lock:
            return self._sum()[1]

    def _sum(self) -> tuple[int, int]:
        return self._before[0] + self._now[0], self._before[1] + self._now[1]
