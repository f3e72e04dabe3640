"""From the bytes of a request to its body, without holding up the event loop."""

import asyncio
from typing import Any, Final, TypeVar

import msgspec

from rose.adapters.bodies import Body, GenerateBody, SglangBody, SglangSampling, TokenSampling
from rose.adapters.neutral_fields import drop_neutral
from rose.errors import InvalidArgument

T = TypeVar("T", bound=Body)
# Parsing takes about 7 ms per MB, during which nothing else runs.
_LARGE_BYTES: Final = 1 << 20
_PART_BYTES: Final = 1 << 19
_PARTS: Final[dict[Any, type[msgspec.Struct]]] = {
    GenerateBody: TokenSampling,
    SglangBody: SglangSampling,
}
# Fields with token ids, which are nearly all of a large body.
_IDS: Final = ("prompt", "token_ids", "input_ids")


class _Large(msgspec.Struct):
    """The fields of a large body that are parsed in parts."""

    prompt: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    input_ids: msgspec.Raw = msgspec.Raw()


async def parsed(raw: bytes, kind: type[T]) -> T:
    """Return the body of a request. A large one is parsed in another thread.

    Raises:
        InvalidArgument: the body is not JSON, or has a field that is wrong or unknown.
    """
    if len(raw) > _LARGE_BYTES:
        return await asyncio.to_thread(_body, raw, kind)
    return _body(raw, kind)


def _body(raw: bytes, kind: type[T]) -> T:
    try:
        given = _in_parts(raw) if len(raw) > _LARGE_BYTES else msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body must be JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidArgument(f"the body must be a JSON object, got {type(given).__name__}")
    drop_neutral(given, _known(kind))
    part, sampling = _PARTS.get(kind), given.get("sampling_params")
    if part is not None and isinstance(sampling, dict):
        drop_neutral(sampling, _known(part), place="sampling_params.")
    elif part is not None and sampling is None:
        given.pop("sampling_params", None)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        rule, _, place = str(error).partition(" - at `$")
        name = place.rstrip("`").lstrip(".") or "the body"
        raise InvalidArgument(f"{name}: {rule[:1].lower()}{rule[1:]}") from None


def _known(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_encode_fields__)


def _in_parts(raw: bytes) -> Any:
    """Parse a large body so that other threads run in between: a call of the parser blocks them."""
    found = msgspec.json.decode(raw, type=_Large)
    rest = raw
    lists: dict[str, Any] = {}
    for name in _IDS:
        text = bytes(getattr(found, name))
        if len(text) < _PART_BYTES or text[:1] != b"[":
            continue
        rest = rest.replace(text, b"null", 1)
        nested = text[1:_PART_BYTES].lstrip()[:1] in {b"[", b'"'}
        lists[name] = _nested(text) if nested else _flat(text)
    given = msgspec.json.decode(rest)
    return {**given, **lists} if isinstance(given, dict) else given


def _nested(text: bytes) -> list[Any]:
    return [msgspec.json.decode(one) for one in msgspec.json.decode(text, type=list[msgspec.Raw])]


def _flat(text: bytes) -> list[Any]:
    found: list[Any] = []
    at, end = 1, len(text) - 1
    while at < end:
        cut = text.find(b",", min(at + _PART_BYTES, end), end)
        cut = end if cut < 0 else cut
        found += msgspec.json.decode(b"[" + text[at:cut] + b"]")
        at = cut + 1
    return found
