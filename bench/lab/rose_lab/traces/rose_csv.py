"""Rose's own format: the three columns of a `Trace`, as CSV. They are read back equal."""

import csv
import gzip
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.whole_file import write_whole
from rose_lab.traces.requests import Requests
from rose_lab.traces.text_file import numbered_rows, quoted, whole_number
from rose_lab.traces.trace import Trace

COLUMNS: Final = ("arrival_s", "prompt_tokens", "output_tokens")

_EXPECTED: Final = f"expected the columns {','.join(COLUMNS)} (rose trace)"
_SECONDS: Final = re.compile(r"\d{1,12}(?:\.\d{1,30})?(?:[eE][-+]?\d{1,3})?", re.ASCII)
_SECONDS_MAX: Final = 1e12


def read_rose_csv(path: Path, lines: Iterable[str]) -> Trace:
    """Read `COLUMNS`; arrivals ascend, in seconds from the start of the trace.

    Raises:
        InvalidArgument: a line is malformed (the message numbers it), or there are no requests.
    """
    requests = Requests(path, COLUMNS[0])
    for line, row in numbered_rows(path, lines, COLUMNS, _EXPECTED):
        arrival_s = _seconds(path, line, row[0])
        prompt_tokens = whole_number(path, line, COLUMNS[1], row[1])
        output_tokens = whole_number(path, line, COLUMNS[2], row[2])
        requests.add(line, arrival_s, row[0], prompt_tokens, output_tokens)
    return requests.traced(np.array(requests.arrivals, dtype=np.float64))


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write `trace` to `path`, compressed if the name ends in `.gz`; an error leaves no new file.

    `span_s` is not written: a trace read back ends with its last request.

    Raises:
        InvalidArgument: the trace has no requests, or `path` cannot be written.
    """
    path = Path(path)
    if not len(trace):
        raise InvalidArgument(f"trace {trace.name} has no requests to write to {path}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    # tolist() gives floats, whose repr is the shortest text that is read back equal.
    writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    data = text.getvalue().encode()
    # mtime=0 keeps the time out of the header, so that the file depends on the trace alone.
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    try:
        write_whole(path, data)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the trace to {path}: {error.strerror or error}; "
            f"name a file in a directory that can be written"
        ) from None


def _seconds(path: Path, line: int, text: str) -> float:
    if _SECONDS.fullmatch(text) and float(text) <= _SECONDS_MAX:
        return float(text)
    raise InvalidArgument(
        f"{path} line {line}: {COLUMNS[0]} is {quoted(text)}; "
        f"give seconds from 0 to {_SECONDS_MAX:.0f}"
    )
