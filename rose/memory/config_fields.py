"""Checked access to the fields of a JSON object from a file."""

from collections.abc import Mapping
from typing import Any, Final

from rose.errors import InvalidArgument

_COUNT_MAX: Final = 1 << 31  # larger than any number in a model


class ConfigFields:
    """The fields of one JSON object; null counts as absent.

    Args:
        fields: the JSON object.
        source: name of the object, for messages.
    """

    def __init__(self, fields: Mapping[str, Any], source: str) -> None:
        self._fields = fields
        self._source = source

    def error(self, what: str) -> InvalidArgument:
        """Return an exception with a message about this object."""
        return InvalidArgument(f"{self._source}: {what}")

    def has(self, name: str) -> bool:
        """Return whether the field is present."""
        return self._fields.get(name) is not None

    def within(self, name: str) -> "ConfigFields":
        """Return the fields of a nested object."""
        inner = self._fields.get(name)
        if not isinstance(inner, Mapping):
            raise self.error(f"{name} is {inner!r}, not an object")
        return ConfigFields(inner, f"{self._source}: {name}")

    def count(
        self,
        name: str,
        *,
        default: int | None = None,
        at_least: int = 1,
        at_most: int = _COUNT_MAX,
    ) -> int:
        """Return a whole number from `at_least` to `at_most`."""
        value = self._fields.get(name)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{name} is missing")
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not at_least <= value <= at_most
        ):
            raise self.error(
                f"{name} is {value!r}, not a whole number from {at_least} to {at_most:,}"
            )
        return value

    def truth(self, name: str) -> bool:
        """Return true or false; false if absent."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, neither true nor false")
        return bool(value)

    def name(self, name: str, *, among: tuple[str, ...]) -> str:
        """Return the field's value, which must be in `among`."""
        return self._one_of(name, self._fields.get(name), among)

    def names(self, name: str, *, among: tuple[str, ...], length: int) -> list[str]:
        """Return a list of `length` strings, each of which must be in `among`."""
        words = self._list(name)
        if len(words) != length:
            raise self.error(f"{name} has {len(words)} entries instead of {length}")
        return [self._one_of(name, word, among) for word in words]

    def integers(self, name: str) -> list[int]:
        """Return a list of whole numbers; an empty list if absent."""
        numbers = self._list(name) if self.has(name) else []
        if not all(isinstance(one, int) for one in numbers):
            raise self.error(f"{name} is {numbers!r}, not a list of whole numbers")
        return numbers

    def _list(self, name: str) -> list[Any]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.error(f"{name} is {value!r}, not a list")
        return value

    def _one_of(self, name: str, word: object, among: tuple[str, ...]) -> str:
        if not isinstance(word, str) or word not in among:
            raise self.error(f"{name} is {word!r}; rose knows {', '.join(among)}")
        return word
