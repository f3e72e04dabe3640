"""The misses of a log as a table."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.table import Table

from rose.slo.audit import CAUSES, Miss
from rose.units import NS_PER_MS

ROWS_MAX: Final = 20


def cause_sentence(misses: Sequence[Miss]) -> str:
    """Say how many misses each cause has."""
    if not misses:
        return "No token was missed."
    counts = Counter(miss.cause for miss in misses)
    by_cause = ", ".join(f"{counts[part]} {part.value}" for part in CAUSES if counts[part])
    return f"{len(misses)} missed, by cause: {by_cause}."


def miss_table(misses: Sequence[Miss]) -> Table:
    """Lay out the worst misses, by how far they are above their targets.

    Args:
        misses: at least one; at most `ROWS_MAX` are shown.
    """
    shown = sorted(misses, key=lambda miss: miss.target_ms - miss.took_ms)[:ROWS_MAX]
    title = "Missed tokens, in ms"
    if len(shown) < len(misses):
        title += f", the worst {len(shown)} of {len(misses)}"
    table = Table(title=title)
    for name in ("request", "token", "took", "target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cause", no_wrap=True)
    table.add_column("of which")
    for miss in shown:
        table.add_row(
            str(miss.request),
            str(miss.token),
            f"{miss.took_ms:.1f}",
            f"{miss.target_ms:.1f}",
            miss.cause.value,
            _parts(miss),
        )
    return table


def _parts(miss: Miss) -> str:
    """Name the parts that took time, the largest first."""
    parts = sorted(miss.parts_ns.items(), key=lambda one: -one[1])
    return ", ".join(f"{part.value} {ns / NS_PER_MS:.1f}" for part, ns in parts if ns > 0)
