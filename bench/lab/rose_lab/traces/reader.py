"""Read a trace of any known format, detected by its header or first line."""

import csv
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from rose.errors import InvalidArgument
from rose_lab.traces import azure, burst_gpt, mooncake, rose_csv
from rose_lab.traces.text_file import opened, quoted
from rose_lab.traces.trace import Trace

_Read = Callable[[Path, Iterable[str]], Trace]

_BY_HEADER: Final[dict[tuple[str, ...], _Read]] = {
    azure.COLUMNS: azure.read_azure,
    burst_gpt.COLUMNS: partial(burst_gpt.read_burst_gpt, columns=burst_gpt.COLUMNS),
    burst_gpt.FIRST_COLUMNS: partial(burst_gpt.read_burst_gpt, columns=burst_gpt.FIRST_COLUMNS),
    rose_csv.COLUMNS: rose_csv.read_rose_csv,
}
_EXPECTED: Final = (
    f"expected a trace of Azure ({','.join(azure.COLUMNS)}), BurstGPT (Timestamp,...,Log Type), "
    f'Mooncake (JSON lines: {{"timestamp": ...}}) or rose ({",".join(rose_csv.COLUMNS)})'
)


def read_trace(path: str | Path, *, seed: int = 0) -> Trace:
    """Read a trace of Azure, BurstGPT, Mooncake or rose; `.gz` files are decompressed.

    Blank lines and failed requests are skipped.

    Args:
        path: trace file; its first line determines the format.
        seed: seed of the arrival times inside the steps of a Mooncake trace.

    Returns:
        The trace, named after the file.

    Raises:
        InvalidArgument: the file cannot be read, its format is unknown, or a line is malformed; the
            message numbers it.
    """
    path = Path(path)
    with opened(path, _EXPECTED) as lines:
        first = next(lines, "")
        if not first:
            raise InvalidArgument(f"{path} is empty; {_EXPECTED}")
        return _reader_of(path, first, seed)(path, itertools.chain([first], lines))


def _reader_of(path: Path, first: str, seed: int) -> _Read:
    if first.lstrip().startswith("{"):
        return partial(mooncake.read_mooncake, seed=seed)
    try:
        header = tuple(next(csv.reader([first], strict=True), ()))
    except csv.Error:
        header = ()
    if header not in _BY_HEADER:
        raise InvalidArgument(f"{path} line 1 is {quoted(first.strip())}; {_EXPECTED}")
    return _BY_HEADER[header]
