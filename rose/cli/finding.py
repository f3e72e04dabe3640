"""One row of `rose doctor`."""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """What the doctor says about a part; the value is the colour of the word."""

    ACTIVE = "green"
    ABSENT = "yellow"
    BROKEN = "red"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row.

    Args:
        part: of rose, or of what it stands on.
        state: `ABSENT` parts are optional, `BROKEN` ones are needed.
        why: what was found, and the mend if something is missing.
    """

    part: str
    state: State
    why: str
