"""Numbers of a report that may be missing, and how they are written."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

NO_NUMBER: Final = "-"


def percentile(values: Sequence[float], rank: float) -> float | None:
    """Return the percentile of the values that are finite; None when there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.percentile(finite, rank)) if finite else None


def ratio(value: float | None, of: float | None) -> float | None:
    """Divide, or return None where that gives no finite number."""
    if value is None or of is None or not of > 0:
        return None
    quotient = value / of
    return quotient if math.isfinite(quotient) else None


def plain(value: object) -> Any:
    """Turn what a caller put in `machine` or `settings` into what strict JSON can hold."""
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
    """Write three digits, which is what such measurements carry; counts are written whole."""
    if value is None:
        return NO_NUMBER
    is_whole = isinstance(value, int) or value == 0 or abs(value) >= 100
    return f"{value:.0f}" if is_whole else f"{value:#.3g}".rstrip(".")


def fixed(value: float | None) -> str:
    """Write two decimals."""
    return NO_NUMBER if value is None else f"{value:.2f}"


def percent(share: float | None) -> str:
    """Write a share of 1 as a whole percentage, and a small one with two digits."""
    if share is None:
        return NO_NUMBER
    return f"{100 * share:.2g} %" if 0 < abs(share) < 0.1 else f"{100 * share:.0f} %"
