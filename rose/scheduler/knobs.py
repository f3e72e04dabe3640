"""Knobs of a settings dataclass, each looked at once."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rose.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class KnobRules:
    """What values of knobs mean something: finite ones above 0, unless this says otherwise.

    Args:
        most: no knob is above it.
        integers: names of knobs that are whole numbers.
        may_be_zero: names of knobs for which zero means "none of it".
        bounds: by name, of knobs with bounds of their own: whether a value is within them.
    """

    most: float
    integers: frozenset[str] = frozenset()
    may_be_zero: frozenset[str] = frozenset()
    bounds: Mapping[str, Callable[[float], bool]] = field(default_factory=dict)

    def check(self, settings: Any) -> None:
        """Refuse a dataclass of knobs in which one is out of its range.

        Raises:
            InvalidArgument: the sentence names the class, the knob and its value.
        """
        for knob in fields(settings):
            value = getattr(settings, knob.name)
            if not self._allows(knob.name, value):
                kind = type(settings).__name__
                raise InvalidArgument(f"{kind}({knob.name}={value}) is out of range")

    def _allows(self, name: str, value: float) -> bool:
        if not isinstance(value, int if name in self.integers else int | float):
            return False
        if not (math.isfinite(value) and 0 <= value <= self.most):
            return False
        if name in self.bounds:
            return self.bounds[name](value)
        return value > 0 or name in self.may_be_zero
