"""The script of a run: who does what, and what goes wrong, drawn from a seed before it begins.

An event holds all that it needs, so any part of a script is a script: that is how a failing one is
made short.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from tests.transfer.faults.shards import SHARES

LENGTH: Final = (40, 160)

# How often each event comes, beside the others.
_WORK: Final = {
    "publish": 10,
    "merge": 6,
    "relay": 12,
    "round": 45,
    "commit": 30,
    "run": 12,
    "scrub": 3,
}
_FAULTS: Final = {
    "refuse": 2,  # the log has no room
    "interrupt": 1,  # publishing is interrupted
    "kill trainer": 2,
    "drop": 2,
    "duplicate": 2,
    "reorder": 2,
    "corrupt frame": 3,
    "corrupt reply": 3,
    "stall": 2,
    "break off": 3,
    "lose report": 1,
    "forge frame": 3,
    "forge update": 4,
    "forge snapshot": 4,
    "replay": 3,
    "hide": 1,
    "fail": 6,  # a memory, at its n-th call
    "corrupt": 3,
    "abandon": 2,
    "kill receiver": 4,
    "kill relay": 3,
    "fail disk": 4,
    "rot disk": 2,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a script.

    Args:
        kind: of the table above.
        who: the receiver, or the receiver whose link it is.
        number: seeds whatever else it draws.
        is_inside: it happens inside the call that its forerunner makes, if that makes one.
    """

    kind: str
    who: str
    number: int
    is_inside: bool

    @property
    def is_fault(self) -> bool:
        return self.kind in _FAULTS

    def __str__(self) -> str:
        where = "  (inside) " if self.is_inside else ""
        return f"{where}{self.kind} {self.who} {self.number}"


def script_of(seed: int) -> list[Event]:
    """Return the script of a seed; calm ones and wild ones, and of some nothing but work."""
    rng = Random(seed)
    wildness = rng.choice((0.0, 0.3, 1.0, 1.0, 2.0))
    # A run has some kinds of faults and lacks others, so that rare ones meet often.
    present = {kind: weight for kind, weight in _FAULTS.items() if rng.random() < 0.5}
    table = _WORK | {kind: weight * wildness for kind, weight in present.items()}
    names = tuple(SHARES)
    return [
        Event(
            rng.choices(tuple(table), tuple(table.values()))[0],
            rng.choice(names),
            rng.getrandbits(32),
            rng.random() < 0.3,
        )
        for _ in range(rng.randint(*LENGTH))
    ]
