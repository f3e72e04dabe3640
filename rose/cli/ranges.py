"""The type of a numeric option."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range of finite numbers. The comparisons of `FloatRange` let NaN pass."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail with a sentence."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
