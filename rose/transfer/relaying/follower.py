"""A relay with a thread that follows its upstream, for use in a `with` block."""

import threading
from typing import Final

from rose.transfer.relaying.relay import Relay
from rose.transfer.rounds import BACKOFF_MAX_S, BACKOFF_S, Rounds

WAIT_S: Final = 0.5


class Follower(Rounds):
    """Calls the rounds of a relay until it is closed; the relay can still serve afterwards.

    Args:
        relay: relay whose rounds nobody else calls.
        backoff_s: pause after a failed round, in seconds; doubles each time.
        backoff_max_s: longest such pause.
        wait_s: longest wait for a version, in seconds; bounds `close`.
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
