"""Checks the input of callers and workers: a numpy integer is a count, 1.5 is not.

Input is journaled and passed to a core that takes numbers only. So each value is checked once, on
entry, against the types of its fields, and only its sender gets the error.
"""

import math
from array import array
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import astuple, fields, force_setattr

from rose.errors import InvalidArgument

# Largest count that csrc/scheduler accepts; a larger number is a mistake or an attack.
COUNT_MAX: Final = 1 << 40
# Token ids are stored with 32 bits each.
TOKEN_MAX: Final = (1 << 32) - 1
# Exceptions that foreign objects raise when converted to a number; torch raises RuntimeError.
_NO_NUMBER: Final = (TypeError, ValueError, OverflowError, RuntimeError)
_TEXT_MAX: Final = 1000

Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Some: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=TOKEN_MAX)]
# Seeds of turns; trajectories may be numbered by hashes of either sign.
Seed: TypeAlias = Annotated[int, Meta(ge=-COUNT_MAX, le=COUNT_MAX)]
Cost: TypeAlias = Annotated[float, Meta(ge=0, le=COUNT_MAX)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
# The limits of csrc/scheduler/batch_check.cpp, within which all computed times are finite.
Rate: TypeAlias = Annotated[float, Meta(ge=1e-6, le=COUNT_MAX)]
if TYPE_CHECKING:
    # The token ids of a context: 4 bytes each, where a list takes 36.
    Tokens: TypeAlias = array[int]
else:
    Tokens = array  # It has no subscript before Python 3.12.

T = TypeVar("T", bound=msgspec.Struct)


def no_tokens() -> Tokens:
    """Return an empty context."""
    return array("I")


def tokens_of(name: str, ids: Iterable[Any]) -> Tokens:
    """Return token ids in a compact copy.

    Raises:
        InvalidArgument: an element is not a whole number from 0 to `TOKEN_MAX`.
    """
    try:
        if hasattr(ids, "tolist"):
            ids = ids.tolist()
        # An array would take bytes and texts for its own representation.
        return array("I", tuple(ids) if isinstance(ids, bytes | bytearray | str) else ids)
    except _NO_NUMBER as error:
        rule = f"{name} must be whole numbers from 0 to {TOKEN_MAX}"
        raise InvalidArgument(f"{rule}: {error}") from error


def checked(value: T) -> T:
    """Return an equal struct whose fields have their declared types.

    Raises:
        InvalidArgument: a field does not have its type, or is out of range.
    """
    return type(value)(*astuple(_twin_of(value)))


def check_fields(value: msgspec.Struct) -> None:
    """Check and convert the fields of a struct in its `__post_init__`.

    Raises:
        InvalidArgument: a field does not have its type, or is out of range.
    """
    found = _twin_of(value)
    for name in value.__struct_fields__:
        force_setattr(value, name, getattr(found, name))


def checked_as(kind: Any, name: str, value: Any) -> Any:
    """Return `value` as a `kind`, such as `Count`; raises InvalidArgument."""
    try:
        return msgspec.convert(_plain(value), kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{name} must be {_rule(error)}, got {_shown(value)}") from error


def one_of(name: str, value: Any, kind: type[Any]) -> Any:
    """Return `value`, an instance of `kind`; raises InvalidArgument."""
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be a {kind.__name__}, got {_shown(value)}")
    return value


def can_be_stored(value: Any) -> bool:
    """Return whether a value of a foreign program can be written to the journal."""
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def printable(text: object) -> str:
    """Return, for any object, a string that is safe for journals and web pages."""
    plain = text if isinstance(text, str) else f"a {type(text).__name__} that is not a text"
    return plain[:_TEXT_MAX].encode(errors="replace").decode()


def is_finite(values: tuple[float, ...]) -> bool:
    """Return whether all values are finite, and their sum too."""
    return math.isfinite(math.fsum(values)) if values else True


@cache
def _twin(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct type with the same fields: msgspec checks no struct of the type asked for."""
    return msgspec.defstruct(kind.__name__, [(one.name, one.type) for one in fields(kind)])


def _twin_of(value: msgspec.Struct) -> msgspec.Struct:
    twin = _twin(type(value))
    try:
        return msgspec.convert(value, twin, from_attributes=True)
    except msgspec.ValidationError:
        pass
    plain = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    try:
        return msgspec.convert(plain, twin)
    except msgspec.ValidationError as error:
        raise InvalidArgument(_sentence(value, str(error))) from error


def _plain(value: Any) -> Any:
    """Return numbers and arrays of numpy, torch or the standard library as Python's own."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    if hasattr(value, "tolist"):
        try:
            return value.tolist()
        except _NO_NUMBER:
            return value
    return value


def _sentence(value: msgspec.Struct, text: str) -> str:
    """Return msgspec's error with the name of the field, and its value."""
    rule, _, path = text.partition(" - at `$.")
    name = path.rstrip("`")
    shown = _shown(getattr(value, name.partition("[")[0], None))
    return f"{type(value).__name__}: {name} must be {_rule(rule)}, got {shown}"


def _rule(error: object) -> str:
    return str(error).partition(", got ")[0].removeprefix("Expected ").replace("`", "")


def _shown(value: object) -> str:
    """Return a short description of a value, at most one line."""
    if value is None or isinstance(value, int | float | str):
        return repr(value)[:80]
    return f"a {type(value).__name__}"
