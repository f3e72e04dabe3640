"""Table cells for serving's slowdown, shown beside the gain."""

from collections.abc import Mapping
from typing import Any, Final

from rose.demo.numbers import NO_NUMBER, fixed
from rose.sim.outcome import PRICES

PRICE_HEADERS: Final = ("TTFT x alone\nP50 / P99", "TPOT x alone\nP50 / P99")


def price_text(row: Mapping[str, Any], what: str) -> str:
    """Return both quantiles of "ttft" or "tpot" as multiples of serving alone."""
    values = [row[name] for name in PRICES if name.startswith(what)]
    return NO_NUMBER if None in values else " / ".join(map(fixed, values))
