"""How many calls a server answers at a time: of those that move chunks, of its few threads."""

import threading
from typing import Any, Final

from rose.clock import Clock
from rose.units import NS_PER_S

# After that a call makes room for others: a client that reads waits no longer for one.
CALL_MAX_S: Final = 60.0


class Calls:
    """Calls that run: one whose answers nobody reads keeps its thread until it is cancelled.

    Any thread may call; the lock guards the table, and is held over no call.

    Args:
        clock: says what takes too long.
        most: how many run at a time.
    """

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        self._began_ns: dict[Any, int] = {}  # by context

    def begin(self, context: Any) -> bool:
        """Return whether there is room for a call; where not, those that took too long go."""
        now_ns = self._clock.now_ns()
        with self._lock:
            has_room = len(self._began_ns) < self._most
            if has_room:
                self._began_ns[context] = now_ns
            oldest_ns = now_ns - int(CALL_MAX_S * NS_PER_S)
            late = [one for one, at_ns in self._began_ns.items() if at_ns < oldest_ns]
        if not has_room:
            for one in late:
                one.cancel()
        elif not context.add_callback(lambda: self._end(context)):
            self._end(context)  # it is over already
        return has_room

    def _end(self, context: Any) -> None:
        with self._lock:
            self._began_ns.pop(context, None)
