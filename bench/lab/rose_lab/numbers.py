"""Statistics and text formats of report numbers, any of which may be missing."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table

from rose.units import GIB, KIB, MIB

NO_NUMBER: Final = "-"
_ANY_WIDTH: Final = 10_000


def percentile(values: Sequence[float], rank: float) -> float | None:
    """Return the percentile of the finite values; None if there are no such values."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.percentile(finite, rank)) if finite else None


def ratio(value: float | None, of: float | None) -> float | None:
    """Return `value / of`; None if a number is missing, `of` <= 0, or the result is infinite."""
    if value is None or of is None or not of > 0:
        return None
    quotient = value / of
    return quotient if math.isfinite(quotient) else None


def plain(value: object) -> Any:
    """Convert a report's value to one that strict JSON can hold; NaN and infinity become None."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def number(value: float | None) -> str:
    """Format with three significant digits; counts, and values from 100 on, as whole numbers."""
    if value is None:
        return NO_NUMBER
    is_whole = isinstance(value, int) or value == 0 or abs(value) >= 100
    return f"{value:.0f}" if is_whole else f"{value:#.3g}".rstrip(".")


def fixed(value: float | None) -> str:
    """Format with two decimals."""
    return NO_NUMBER if value is None else f"{value:.2f}"


def percent(share: float | None) -> str:
    """Format a share as a whole percentage; below 10 %, with two significant digits."""
    if share is None:
        return NO_NUMBER
    return f"{100 * share:.2g} %" if 0 < abs(share) < 0.1 else f"{100 * share:.0f} %"


def size_text(nbytes: float) -> str:
    """Format a size with its unit."""
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= size:
            return f"{nbytes / size:,.2f} {unit}"
    return f"{nbytes:.0f} B"


def duration(seconds: float | None) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds is None:
        return NO_NUMBER
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_rows(
    console: Console,
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[str] = (),
) -> None:
    """Print a table as wide as its cells.

    Args:
        console: output; a wide table exceeds its width (80 columns without a terminal).
        headers: column titles, possibly of several lines.
        rows: one cell per header.
        words: headers of left-aligned columns, besides the first.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, header in enumerate(headers):
        justify: Any = "right" if place and header not in words else "left"
        table.add_column(escape(header), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    needed = Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum
    options = console.options.update_width(max(console.width, needed))
    console.print(Segments(console.render(table, options)), soft_wrap=True)
