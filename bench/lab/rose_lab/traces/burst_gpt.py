"""Read BurstGPT traces (HPMLL/BurstGPT, CC-BY 4.0)."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rose.errors import InvalidArgument
from rose.units import NS_PER_S
from rose_lab.traces.requests import Requests
from rose_lab.traces.text_file import numbered_rows, quoted, whole_number
from rose_lab.traces.trace import Trace

COLUMNS: Final = (
    "Timestamp", "Session ID", "Elapsed time", "Model", "Request tokens", "Response tokens",
    "Total tokens", "Log Type",
)  # fmt: skip
FIRST_COLUMNS: Final = tuple(c for c in COLUMNS if c not in {"Session ID", "Elapsed time"})
"""Columns of the first release, which has no sessions."""

# Seconds since the midnight before the first request; whole in the first release.
_TIMESTAMP: Final = re.compile(r"(\d{1,9})(?:\.(\d{1,9})\d*)?", re.ASCII)


def read_burst_gpt(path: Path, lines: Iterable[str], columns: tuple[str, ...]) -> Trace:
    """Read times and lengths; the first answered request arrives at 0 s.

    A row without response tokens is a failed request. It is counted and skipped, because the length
    of its answer is unknown.

    Args:
        path: file name, for messages and the name of the trace.
        lines: lines of the whole file.
        columns: `COLUMNS` or `FIRST_COLUMNS`.

    Raises:
        InvalidArgument: a line is malformed (the message numbers it), or all requests failed.
    """
    expected = f"expected the columns {','.join(columns)} (BurstGPT trace)"
    prompt, output = columns.index("Request tokens"), columns.index("Response tokens")
    requests = Requests(path, columns[0])
    for line, row in numbered_rows(path, lines, columns, expected):
        at_ns = _timestamp_ns(path, line, row[0])
        output_tokens = whole_number(path, line, columns[output], row[output], least=0)
        # A request may fail before its tokens are counted.
        least = 1 if output_tokens else 0
        prompt_tokens = whole_number(path, line, columns[prompt], row[prompt], least=least)
        if output_tokens:
            requests.add(line, at_ns, row[0], prompt_tokens, output_tokens)
        else:
            requests.skipped += 1
    return requests.traced(requests.since_first() / NS_PER_S)


def _timestamp_ns(path: Path, line: int, text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"{path} line {line}: Timestamp {quoted(text)} is malformed; "
            f"give seconds since the start, such as 5 or 17.25"
        )
    return int(match[1]) * NS_PER_S + int((match[2] or "").ljust(9, "0"))
