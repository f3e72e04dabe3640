"""Read the public Azure LLM inference traces (AzurePublicDataset, CC-BY 4.0)."""

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from rose.errors import InvalidArgument
from rose.units import NS_PER_S
from rose_lab.traces.requests import Requests
from rose_lab.traces.text_file import numbered_rows, quoted, whole_number
from rose_lab.traces.trace import Trace

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_EXPECTED: Final = f"expected the columns {','.join(COLUMNS)} (Azure LLM inference trace)"
# The release of 2023 has seven fractional digits; the release of 2024 has six and a zero offset.
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII
)


def read_azure(path: Path, lines: Iterable[str]) -> Trace:
    """Read `COLUMNS`; timestamps must not descend, and the first request arrives at 0 s.

    Raises:
        InvalidArgument: a line is malformed (the message numbers it), or there are no requests.
    """
    requests = Requests(path, COLUMNS[0])
    for line, row in numbered_rows(path, lines, COLUMNS, _EXPECTED):
        at_ns = _timestamp_ns(path, line, row[0])
        prompt_tokens = whole_number(path, line, COLUMNS[1], row[1])
        output_tokens = whole_number(path, line, COLUMNS[2], row[2])
        requests.add(line, at_ns, row[0], prompt_tokens, output_tokens)
    return requests.traced(requests.since_first() / NS_PER_S)


def _timestamp_ns(path: Path, line: int, text: str) -> int:
    """Return nanoseconds since 1970."""
    match = _TIMESTAMP.fullmatch(text)
    if match:
        try:
            whole_s = datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:  # The text is well-formed, but there is no such day or hour.
            match = None
        else:
            return int(whole_s) * NS_PER_S + int((match[2] or "").ljust(9, "0"))
    raise InvalidArgument(
        f"{path} line {line}: timestamp {quoted(text)} is malformed; "
        f"write it as 2023-11-16 18:15:46.6805900"
    )
