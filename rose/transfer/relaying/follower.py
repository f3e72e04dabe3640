"""A relay with a thread, so that it follows its upstream from the first line of a `with` on."""

import threading
from typing import Final

from rose.transfer.relaying.relay import Relay
from rose.transfer.rounds import BACKOFF_MAX_S, BACKOFF_S, Rounds

WAIT_S: Final = 0.5


class Follower(Rounds):
    """Calls the rounds of a relay until it is closed; the relay serves on then.

    Args:
        relay: nobody else calls its rounds.
        backoff_s: before another round after one that failed; doubles each time.
        backoff_max_s: the longest such pause.
        wait_s: how long to wait for a version before looking around; bounds `close`.
    """

    def __init__(
        self,
        relay: Relay,
        *,
        backoff_s: float = BACKOFF_S,
        backoff_max_s: float = BACKOFF_MAX_S,
        wait_s: float = WAIT_S,
    ) -> None:
        super().__init__(
            lambda: relay.round(wait_s),
            who="relay",
            name="rose-relay",
            stop=threading.Event(),
            backoff_s=backoff_s,
            backoff_max_s=backoff_max_s,
        )
        self.start()
