"""What the broker says about a device."""

from dataclasses import dataclass
from enum import Enum


class Move(Enum):
    """What becomes of a device's loan."""

    LEND = "a loan begins"
    GROW = "the loan gets larger"
    KEEP = "the loan stays as it is"
    SHRINK = "serving gets a part back"
    END = "serving gets all back"
    REFUSE = "there is no loan, and none begins"


@dataclass(frozen=True, slots=True)
class Decision:
    """One device, from now on.

    Args:
        device: its name.
        move: what changes.
        lend_bytes: of KV on loan, in whole slabs; 0 ends it.
        ttl_ms: the loan ends so long after the decision unless a later one renews it; 0 without a
            loan.
        expected_life_s: until serving is expected to take the device back.
        retry_after_ms: a loan cannot begin or grow sooner.
        why: one sentence.
    """

    device: str
    move: Move
    lend_bytes: int
    ttl_ms: float
    expected_life_s: float
    retry_after_ms: float
    why: str


def move_of(before_bytes: int, after_bytes: int) -> Move:
    """Return what a change of a loan's size is called."""
    if after_bytes == before_bytes:
        return Move.KEEP if after_bytes else Move.REFUSE
    if after_bytes > before_bytes:
        return Move.GROW if before_bytes else Move.LEND
    return Move.SHRINK if after_bytes else Move.END
