"""Rows on a terminal that are wider rather than cut."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table

_ANY_WIDTH: Final = 10_000


def print_rows(
    console: Console,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: str,
) -> None:
    """Print a table as wide as its cells.

    Args:
        console: where to; one without a terminal says 80 columns, whatever reads it.
        headers: may have several lines.
        rows: one cell for each header.
        left: the header whose column is text, and so begins at the left.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header in headers:
        table.add_column(header, justify="left" if header == left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    needed = Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum
    options = console.options.update_width(max(console.width, needed))
    console.print(Segments(console.render(table, options)), soft_wrap=True)
