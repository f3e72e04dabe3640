"""Sessions of agents as columns.

Traces are read above this room; what is read comes here as columns.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.scenario.distributions import Values

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sessions:
    """The turns of all sessions, session by session.

    Args:
        first_turn: (s + 1,) int64: turns `first_turn[i]` to `first_turn[i + 1]` are those of i.
        heard_tokens: (t,) int64, > 0, of each prompt what was new.
        said_tokens: (t,) int64, > 0, of each answer.
        wait_s: (t,) float64, >= 0, from the end of each answer to the next prompt; the last is 0.
    """

    first_turn: Tokens
    heard_tokens: Tokens
    said_tokens: Tokens
    wait_s: Values

    def __post_init__(self) -> None:
        """Refuse columns that do not fit each other.

        Raises:
            InvalidArgument: there is no session, one has no turn, or a column is too short.
        """
        turns = self.heard_tokens.size
        starts = self.first_turn
        if starts.size < 2 or starts[0] != 0 or starts[-1] != turns or (np.diff(starts) < 1).any():
            raise InvalidArgument("sessions: give at least one, each with a turn")
        if self.said_tokens.size != turns or self.wait_s.size != turns:
            raise InvalidArgument("sessions: the columns have different lengths")
        if min(self.heard_tokens.min(), self.said_tokens.min()) < 1:
            raise InvalidArgument("sessions: a turn hears and says at least one token")
        if not (np.isfinite(self.wait_s).all() and self.wait_s.min() >= 0):
            raise InvalidArgument("sessions: waits are seconds, none below 0")
