"""The states of a receiver, and the moves between them."""

from enum import Enum
from typing import Final


class ReceiverState(Enum):
    """Where a receiver is with the next version."""

    SYNCED = "it holds a version, and looks for the next"
    STAGING = "chunks come in"
    STAGED = "a version lies ready"
    APPLYING = "the engine commits it"
    ROLLED_BACK = "the commit went back; what to do next is not yet said"
    QUARANTINED = "its weights are no known version; final"


MOVES: Final = frozenset(
    {
        (ReceiverState.SYNCED, ReceiverState.STAGING),
        (ReceiverState.STAGING, ReceiverState.SYNCED),
        (ReceiverState.STAGING, ReceiverState.STAGED),
        (ReceiverState.STAGED, ReceiverState.APPLYING),
        (ReceiverState.STAGED, ReceiverState.SYNCED),
        (ReceiverState.APPLYING, ReceiverState.SYNCED),
        (ReceiverState.APPLYING, ReceiverState.ROLLED_BACK),
        (ReceiverState.ROLLED_BACK, ReceiverState.SYNCED),
        (ReceiverState.APPLYING, ReceiverState.QUARANTINED),
    }
)
