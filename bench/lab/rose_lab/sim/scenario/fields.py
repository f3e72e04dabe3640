"""Field types of scenario files, and errors with a path.

Parts of a scenario are frozen structs that msgspec decodes, without unknown fields. An error is one
sentence that begins with the path of the field, such as `jobs[0].batch`.
"""

import re
from typing import Annotated, Final, TypeAlias, TypeVar

from msgspec import Meta, Struct, ValidationError, convert

from rose.errors import InvalidArgument

T = TypeVar("T")

# A month: a longer time suggests a wrong unit.
_MONTH_S: Final = 30 * 86_400.0

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Factor: TypeAlias = Annotated[float, Meta(gt=0, le=1000)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=_MONTH_S)]
SomeSeconds: TypeAlias = Annotated[float, Meta(ge=1e-6, le=_MONTH_S)]
SomeMilliseconds: TypeAlias = Annotated[float, Meta(gt=0, le=_MONTH_S * 1000)]
Gpus: TypeAlias = Annotated[int, Meta(ge=1, le=65_536)]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 22)]
Trajectories: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]
Versions: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
Staleness: TypeAlias = Annotated[int, Meta(ge=0, le=64)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
GbitPerS: TypeAlias = Annotated[float, Meta(gt=0, le=100_000)]
DollarsPerHour: TypeAlias = Annotated[float, Meta(ge=0, le=10_000)]
Text: TypeAlias = Annotated[str, Meta(pattern=r"\S")]

_AT: Final = re.compile(r"(?P<what>.*) - at `(?:key` in `)?\$\.?(?P<path>.*)`", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?P<how>\w+ \w+) field `(?P<name>.*)`", re.DOTALL)
_OWN: Final = re.compile(r"[\w.\[\]]+: ")


class Spec(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a scenario."""


def decoded(kind: type[T], value: object) -> T:
    """Convert data from YAML or JSON to a part of a scenario.

    Raises:
        InvalidArgument: a field is unknown, missing, or invalid.
    """
    try:
        return convert(value, kind)
    except ValidationError as error:
        raise InvalidArgument(_sentence(str(error))) from None


def _sentence(text: str) -> str:
    at = _AT.fullmatch(text)
    what, path = (at["what"], at["path"]) if at else (text, "")
    if field := _FIELD.fullmatch(what):
        how = "no such field" if field["how"] == "contains unknown" else "is missing; add it"
        what = f"{field['name']}: {how}"
    if _OWN.match(what):  # The message names a field already.
        return f"{path}.{what}" if path else what
    return f"{path or 'the scenario'}: {what[:1].lower()}{what[1:]}"
