"""Read text that may be compressed. An error about malformed text names the line in one sentence.

Every format is read through this module, so all are equally strict.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from rose.errors import InvalidArgument
from rose.whole_file import open_input
from rose_lab.traces.trace import TOKENS_MAX

# As many digits as TOKENS_MAX; int() of a very long run would raise.
_DIGITS: Final = re.compile(r"\d{1,10}", re.ASCII)
_GZIP_MAGIC: Final = b"\x1f\x8b"
_QUOTED_CHARS: Final = 40
# A line of Mooncake lists the blocks of a prompt: some KiB.
_LINE_CHARS_MAX: Final = 1 << 20


@contextmanager
def opened(path: Path, expected: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a text, and turn any read error into one sentence.

    Args:
        path: text file, compressed if its name ends in `.gz`.
        expected: expected content, for the message about binary data.

    Raises:
        InvalidArgument: the file cannot be read; also raised while the `with` block reads.
    """
    is_gzip = path.suffix == ".gz"
    try:
        with open_input(path) as file, gzip.open(file) if is_gzip else file as raw:
            first = raw.peek(len(_GZIP_MAGIC))
            if first[: len(_GZIP_MAGIC)] == _GZIP_MAGIC:
                raise InvalidArgument(
                    f"{path} is compressed {'twice' if is_gzip else 'by gzip'}; "
                    f"{'decompress it once' if is_gzip else 'rename it so that it ends in .gz'}"
                )
            yield _lines(path, io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""))
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
        raise InvalidArgument(f"{path} is not text but binary data; {expected}") from None
    except OSError as error:
        raise InvalidArgument(
            f"{path} cannot be read: {error.strerror or error}; check the file and its permissions"
        ) from None


def _lines(path: Path, text: TextIO) -> Iterator[str]:
    number = 1
    while line := text.readline(_LINE_CHARS_MAX):
        if len(line) == _LINE_CHARS_MAX:
            raise InvalidArgument(
                f"{path} line {number} has {_LINE_CHARS_MAX} characters or more; shorten it"
            )
        yield line
        number += 1


def numbered_rows(
    path: Path, lines: Iterable[str], columns: Sequence[str], expected: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, row) for each row below the header, without blank rows.

    Args:
        path: file name, for messages.
        lines: lines of the whole file; the first is the header, which is checked.
        columns: expected header.
        expected: expected content, for messages.

    Raises:
        InvalidArgument: the header differs, a row has too many or too few values, or is not CSV.
    """
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader, None)
        if header is None:
            raise InvalidArgument(f"{path} is empty; {expected}")
        if header != list(columns):
            raise InvalidArgument(f"{path} line 1 is {quoted(','.join(header))}; {expected}")
        line = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(columns):
                raise InvalidArgument(
                    f"{path} line {line}: {quoted(','.join(row))} has {len(row)} values, not "
                    f"{len(columns)}; {expected}"
                )
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidArgument(f"{path} line {line} is not CSV ({error}); {expected}") from None


def whole_number(path: Path, line: int, column: str, text: str, *, least: int = 1) -> int:
    """Read a number of tokens from `least` to `TOKENS_MAX`.

    Raises:
        InvalidArgument: the text is not such a number.
    """
    digits = text.strip()
    if _DIGITS.fullmatch(digits) and least <= int(digits) <= TOKENS_MAX:
        return int(digits)
    raise InvalidArgument(
        f"{path} line {line}: {column} is {quoted(text)}; "
        f"give a whole number of tokens from {least} to {TOKENS_MAX}"
    )


def quoted(text: str) -> str:
    """Quote a value for a message: on one line, and shortened."""
    return repr(text if len(text) <= _QUOTED_CHARS else text[:_QUOTED_CHARS] + "...")
