"""Sessions of tool-using agents: their turns, and the waits for their tools.

The built-in waits come from 710 sessions of a coding agent in production (derived from
callanjfox/kv-cache-tester, Apache-2.0). A wait lasts from the end of an answer to the next request,
so the longest ones are of people rather than tools; replays should cut them.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.traces.text_file import numbered_rows, opened, quoted, whole_number

COLUMNS: Final = (
    "trace_id", "turn", "t_s", "input_tokens", "prefix_reused_tokens", "output_tokens",
    "api_time_s", "think_time_s",
)  # fmt: skip

_EXPECTED: Final = f"expected the columns {','.join(COLUMNS)} (sessions of agents)"
_SECONDS: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_QUANTILES_MAX: Final = 1_000_000

# (share of waits, seconds): quantile function of 47,696 waits above 0, at its bends. The source has
# whole seconds.
_WAIT_QUANTILES: Final = (
    (0.0, 1.0), (0.01, 3.0), (0.05, 4.0), (0.1, 4.0), (0.2, 5.0), (0.3, 6.0), (0.4, 8.0),
    (0.5, 10.0), (0.6, 15.0), (0.65, 18.0), (0.7, 24.0), (0.75, 35.0), (0.8, 55.0), (0.85, 96.0),
    (0.9, 171.0), (0.92, 236.0), (0.94, 341.0), (0.96, 607.0), (0.975, 1101.0), (0.985, 2346.0),
    (0.99, 3043.0), (0.9925, 3256.0), (0.995, 4173.0), (0.9965, 6565.0), (0.9975, 8741.0),
    (0.9985, 15050.0), (0.999, 26749.0), (0.9995, 39529.0), (1.0, 77589.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class AgentTrace:
    """The turns of all sessions, session by session; the arrays are read-only.

    Args:
        session: (n,) int64, index of the session, from 0, ascending.
        turn: (n,) int64, index of the turn in its session, from 0.
        start_s: (n,) float64, seconds since the session began, ascending within it.
        input_tokens: (n,) int64, >= 1; the context of the turn.
        prefix_reused_tokens: (n,) int64, at most `input_tokens`; tokens shared with an earlier
            turn.
        output_tokens: (n,) int64, >= 0; 0 for an aborted answer.
        api_time_s: (n,) float64, duration of the answer; NaN if unknown.
        think_time_s: (n,) float64, from the previous answer to this request; NaN if unknown.
        name: name in reports.
    """

    session: npt.NDArray[np.int64]
    turn: npt.NDArray[np.int64]
    start_s: npt.NDArray[np.float64]
    input_tokens: npt.NDArray[np.int64]
    prefix_reused_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    api_time_s: npt.NDArray[np.float64]
    think_time_s: npt.NDArray[np.float64]
    name: str

    def __post_init__(self) -> None:
        for column in fields(self):
            values = getattr(self, column.name)
            if isinstance(values, np.ndarray):
                values.setflags(write=False)

    def __len__(self) -> int:
        """Return the number of turns of all sessions."""
        return int(self.session.size)

    def turns_per_session(self) -> npt.NDArray[np.int64]:
        """Return (sessions,) the number of turns of each."""
        return np.bincount(self.session).astype(np.int64)


def read_agent_trace(path: str | Path) -> AgentTrace:
    """Read `COLUMNS`, plain or compressed; a session's turns are consecutive, from 0.

    Raises:
        InvalidArgument: the file cannot be read, or a line is malformed; the message numbers it.
    """
    path = Path(path)
    with opened(path, _EXPECTED) as lines:
        rows = list(_checked_rows(path, lines))
    if not rows:
        raise InvalidArgument(f"{path} has a header but no turns; give a trace with turns")
    columns = list(zip(*rows, strict=True))
    return AgentTrace(
        session=np.array(columns[0], dtype=np.int64),
        turn=np.array(columns[1], dtype=np.int64),
        start_s=np.array(columns[2], dtype=np.float64),
        input_tokens=np.array(columns[3], dtype=np.int64),
        prefix_reused_tokens=np.array(columns[4], dtype=np.int64),
        output_tokens=np.array(columns[5], dtype=np.int64),
        api_time_s=np.array(columns[6], dtype=np.float64),
        think_time_s=np.array(columns[7], dtype=np.float64),
        name=path.name,
    )


def tool_waits(n_quantiles: int) -> npt.NDArray[np.float64]:
    """Return built-in waits for tools, without any file.

    Args:
        n_quantiles: number of equally likely parts of the distribution, > 0.

    Returns:
        (n_quantiles,) float64, seconds, ascending: the median of each part. A uniform choice among
        them is a random wait.

    Raises:
        InvalidArgument: `n_quantiles` is out of range.
    """
    if not 0 < n_quantiles <= _QUANTILES_MAX:
        raise InvalidArgument(
            f"n_quantiles is {n_quantiles}, give a whole number from 1 to {_QUANTILES_MAX}"
        )
    shares, waits_s = zip(*_WAIT_QUANTILES, strict=True)
    middles = (np.arange(n_quantiles) + 0.5) / n_quantiles
    return np.exp(np.interp(middles, shares, np.log(waits_s)))


_Row = tuple[int, int, float, int, int, int, float, float]


def _checked_rows(path: Path, lines: Iterable[str]) -> Iterable[_Row]:
    name, session, turn, start_s = "", -1, 0, 0.0
    for line, row in numbered_rows(path, lines, COLUMNS, _EXPECTED):
        is_new = session < 0 or row[0] != name
        name, session = row[0], session + is_new
        turn, start_s = (0, 0.0) if is_new else (turn + 1, start_s)
        if whole_number(path, line, COLUMNS[1], row[1], least=0) != turn:
            raise InvalidArgument(
                f"{path} line {line}: {quoted(name)} has turn {quoted(row[1])} where {turn} should "
                f"be; keep the turns of a session together, in order, from 0"
            )
        at_s = _seconds(path, line, COLUMNS[2], row[2], is_optional=False)
        if at_s < start_s:
            raise InvalidArgument(
                f"{path} line {line}: t_s {quoted(row[2])} is earlier than the turn before it"
            )
        start_s = at_s
        input_tokens = whole_number(path, line, COLUMNS[3], row[3])
        reused = whole_number(path, line, COLUMNS[4], row[4], least=0)
        if reused > input_tokens:
            raise InvalidArgument(
                f"{path} line {line}: {reused} tokens are reused of {input_tokens} that went in"
            )
        output_tokens = whole_number(path, line, COLUMNS[5], row[5], least=0)
        api_s, think_s = (
            _seconds(path, line, COLUMNS[at], row[at], is_optional=True) for at in (6, 7)
        )
        yield session, turn, start_s, input_tokens, reused, output_tokens, api_s, think_s


def _seconds(path: Path, line: int, column: str, text: str, *, is_optional: bool) -> float:
    if not text and is_optional:
        return math.nan
    if _SECONDS.fullmatch(text):
        return float(text)
    raise InvalidArgument(
        f"{path} line {line}: {column} is {quoted(text)}; give seconds, such as 12 or 0.25"
    )
