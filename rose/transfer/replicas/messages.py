"""What the ranks of a replica and their coordinator say to each other.

Both sides say all of where they are, again and again, and never what happened: a message that is
lost, doubled or late changes nothing that the next one does not say again.
"""

from dataclasses import dataclass
from enum import Enum

from rose.transfer.version import Version


class OrderKind(Enum):
    """What ranks are to do."""

    STOP = "leave use, and go, each alone, to the version that is named, if one is"
    USE = "the version is in use; stage what comes next"
    AIM = "the version stays in use; stage just the one that is named"
    BEGIN = "leave use, make the weights the version, and hold that"
    KEEP = "all have it: let it be for good"


class RankPhase(Enum):
    """Where a rank is; in `SETTLED` ones its weights are what it says, and rest."""

    IN_USE = "steps run"
    STOPPED = "no step runs"
    APPLYING = "the weights change, or go back"
    MATCHED = "they are the version, and may still go back"
    KEPT = "they are the version for good; no step runs yet"
    BACK = "they are the base again; no step runs yet"
    QUARANTINED = "they are no version; final"


SETTLED = frozenset({RankPhase.IN_USE, RankPhase.STOPPED, RankPhase.KEPT, RankPhase.BACK})


@dataclass(frozen=True, slots=True)
class Order:
    """The coordinator to every rank, the same to all.

    Args:
        coordinator: tells it from those before it.
        round: counts up; with each new one no rank is in use until a USE of that round.
        kind: what to do.
        version: with what; None only for STOP.
    """

    coordinator: int
    round: int
    kind: OrderKind
    version: Version | None


@dataclass(frozen=True, slots=True)
class Word:
    """A rank to its coordinator: all of where it is.

    Args:
        rank: who says it.
        incarnation: tells it from processes of that rank before it.
        coordinator: whom it follows.
        round: of the newest order that it has heard.
        sequence: counts up; a word that is not above those heard says nothing.
        phase: where it is.
        held: what its weights are; a version without a run is none.
        staged: what lies ready; the version that is held is a repair of it.
        unreachable: what it was to aim at and cannot be made any more.
        is_fault: BACK because the version did not go in, and not because somebody else failed.
    """

    rank: int
    incarnation: int
    coordinator: int
    round: int
    sequence: int
    phase: RankPhase
    held: Version
    staged: Version | None = None
    unreachable: Version | None = None
    is_fault: bool = False
