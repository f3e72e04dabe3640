"""How a rank joins a sharded trainer or engine: it waits for all others, and for a plan."""

from typing import Final

from rose.clock import BootClock
from rose.errors import Unavailable
from rose.transfer.sharded.patience import Patience
from rose.transfer.sharded.words import ANSWER_S, Join, Joined, answer_of, packed
from rose.transfer.wire.remote import RemoteSource

# Pause before a rank asks again after a failure, in seconds.
PAUSE_S: Final = 0.2


def join(source: RemoteSource, call: Join, who: str, within_s: float) -> Joined:
    """Take part as a rank; wait for all other ranks, and for a plan.

    Raises:
        InvalidArgument: the publisher refuses the rank.
        DeadlineExceeded: another rank or the publisher did not start in time.
    """
    clock = BootClock()
    patience = Patience(who, within_s, clock=clock)
    others = call.replica or "the trainer"
    while True:
        try:
            answer = answer_of(source.gather(packed(call), 2 * ANSWER_S), Joined)
        except Unavailable as error:  # it is not up yet, or is being restarted
            patience.wait_for(f"the publisher: {error}")
            clock.sleep(PAUSE_S)
            continue
        if answer.layout:
            return answer
        patience.wait_for(
            f"rank {listed(answer.missing)} of {others}" if answer.missing else "the trainer"
        )


def listed(ranks: tuple[int, ...]) -> str:
    """Return ranks for a message."""
    return ", ".join(map(str, ranks))
