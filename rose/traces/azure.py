"""Read the public Azure LLM inference traces (AzurePublicDataset, CC-BY 4.0)."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from rose.errors import InvalidArgument
from rose.traces.trace import TOKENS_MAX, Trace
from rose.units import NS_PER_S

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_EXPECTED: Final = f"expected the columns {','.join(COLUMNS)} (Azure LLM inference trace)"
# The release of 2023 has seven fractional digits, that of 2024 six and an offset of zero.
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII
)
# As many digits as TOKENS_MAX has; int() of a very long run of them would raise.
_DIGITS: Final = re.compile(r"\d{1,10}", re.ASCII)
_GZIP_MAGIC: Final = b"\x1f\x8b"
_QUOTED_CHARS: Final = 40


def read_trace(path: str | Path) -> Trace:
    """Read an Azure CSV, plain or compressed (its name ends in `.gz`); blank lines are skipped.

    Args:
        path: file whose columns are `COLUMNS`; timestamps ascend, equal ones are fine.

    Returns:
        The trace, named after the file; its first request arrives at 0 s.

    Raises:
        InvalidArgument: the file cannot be read, or a line (the sentence numbers it) is malformed.
    """
    path = Path(path)
    arrival_ns: list[int] = []
    prompt_tokens: list[int] = []
    output_tokens: list[int] = []
    with _opened(path) as lines:
        for line, row in _numbered_rows(path, lines):
            at_ns = _timestamp_ns(path, line, row[0])
            if arrival_ns and at_ns < arrival_ns[-1]:
                raise InvalidArgument(
                    f"{path} line {line}: timestamp {_quoted(row[0])} is earlier than the one "
                    f"before it; sort the file by TIMESTAMP"
                )
            arrival_ns.append(at_ns)
            prompt_tokens.append(_tokens(path, line, COLUMNS[1], row[1]))
            output_tokens.append(_tokens(path, line, COLUMNS[2], row[2]))
    if not arrival_ns:
        raise InvalidArgument(f"{path} has a header but no requests; give a trace with requests")
    # Subtracted as integers: a float64 of nanoseconds since 1970 would round to 256 ns.
    since_first_ns = np.array(arrival_ns, dtype=np.int64) - arrival_ns[0]
    return Trace(
        arrival_s=since_first_ns / NS_PER_S,
        prompt_tokens=np.array(prompt_tokens, dtype=np.int64),
        output_tokens=np.array(output_tokens, dtype=np.int64),
        name=path.name,
    )


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open as text, and turn every way in which reading can fail into one sentence."""
    is_gzip = path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as raw:
            first = raw.peek(len(_GZIP_MAGIC))
            if first[: len(_GZIP_MAGIC)] == _GZIP_MAGIC:
                raise InvalidArgument(
                    f"{path} is compressed {'twice' if is_gzip else 'by gzip'}; "
                    f"{'decompress it once' if is_gzip else 'rename it so that it ends in .gz'}"
                )
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
    except FileNotFoundError:
        raise InvalidArgument(f"{path} does not exist; check the path of the trace") from None
    except IsADirectoryError:
        raise InvalidArgument(f"{path} is a directory; name the trace file in it") from None
    except gzip.BadGzipFile as error:
        raise InvalidArgument(
            f"{path} is not a sound gzip file ({error}) although its name ends in .gz; "
            f"remove the ending if it is plain text, or copy it again"
        ) from None
    except (EOFError, zlib.error):
        raise InvalidArgument(
            f"{path} is a gzip file that is cut off or damaged; copy it again"
        ) from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is not text but binary data; {_EXPECTED}") from None
    except OSError as error:
        raise InvalidArgument(
            f"{path} cannot be read: {error.strerror or error}; check the file and its permissions"
        ) from None


def _numbered_rows(path: Path, lines: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Check the header; yield each row that is not blank with the number of its first line."""
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader, None)
        if header is None:
            raise InvalidArgument(f"{path} is empty; {_EXPECTED}")
        if tuple(header) != COLUMNS:
            raise InvalidArgument(f"{path} line 1 is {_quoted(','.join(header))}; {_mend(header)}")
        line = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(COLUMNS):
                raise InvalidArgument(
                    f"{path} line {line}: {_quoted(','.join(row))} has {len(row)} values, not "
                    f"{len(COLUMNS)}; {_EXPECTED}"
                )
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidArgument(f"{path} line {line} is not CSV ({error}); {_EXPECTED}") from None


def _mend(header: list[str]) -> str:
    """Say what to do about a header of another format, by name where it is a known one."""
    if "Request tokens" in header:
        return f"BurstGPT traces are not read yet, {_EXPECTED}"
    if header and header[0].startswith("{"):
        return f"JSON lines (Mooncake) are not read yet, {_EXPECTED}"
    return _EXPECTED


def _timestamp_ns(path: Path, line: int, text: str) -> int:
    """Return nanoseconds since 1970."""
    match = _TIMESTAMP.fullmatch(text)
    if match:
        try:
            whole_s = datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:  # Digits in the right places, but no such day or hour.
            match = None
        else:
            return int(whole_s) * NS_PER_S + int((match[2] or "").ljust(9, "0"))
    raise InvalidArgument(
        f"{path} line {line}: timestamp {_quoted(text)} is malformed; "
        f"write it as 2023-11-16 18:15:46.6805900"
    )


def _tokens(path: Path, line: int, column: str, text: str) -> int:
    digits = text.strip()
    if _DIGITS.fullmatch(digits) and 1 <= int(digits) <= TOKENS_MAX:
        return int(digits)
    raise InvalidArgument(
        f"{path} line {line}: {column} is {_quoted(text)}; "
        f"give a whole number of tokens from 1 to {TOKENS_MAX}"
    )


def _quoted(text: str) -> str:
    """Quote a value for a message: on one line, and short even when the value is not."""
    return repr(text if len(text) <= _QUOTED_CHARS else text[:_QUOTED_CHARS] + "...")
