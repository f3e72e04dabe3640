"""Messages between a device and its tenants: what is decoded is in range, whoever wrote it."""

import dataclasses
import math
import socket
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.errors import CorruptData, Unavailable
from rose.executor import messages
from rose.executor.channel import Channel
from rose.executor.messages import AskLedger, Hello, Ledger, decode, encode
from rose.memory import KVGeometry
from tests.executor.conftest import ROLLOUT_KV, Rig

KINDS = list(messages._KINDS.values())
INT64_MAX = (1 << 63) - 1


# Numbers near the ends of C++ types, and anything else that fits a message.
WILD_INT = st.one_of(
    st.sampled_from([s * ((1 << b) + d) for b in (31, 32, 63) for s in (1, -1) for d in (-1, 0)]),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(-3, 3),
)


def wild(hint: Any) -> st.SearchStrategy:
    """Build values of the shape of a type, whatever its range."""
    if get_origin(hint) is Annotated:
        return wild(get_args(hint)[0])
    if get_origin(hint) in (typing.Union, types.UnionType):
        return st.one_of(*(wild(one) for one in get_args(hint)))
    if get_origin(hint) is tuple:
        inner = [one for one in get_args(hint) if one is not Ellipsis]
        if Ellipsis in get_args(hint):
            return st.lists(wild(inner[0]), max_size=3)
        return st.tuples(*(wild(one) for one in inner))
    if get_origin(hint) is dict:
        return st.dictionaries(*(wild(one) for one in get_args(hint)), max_size=3)
    if dataclasses.is_dataclass(hint):
        return wild_fields(hint)
    return {
        int: WILD_INT,
        float: st.floats(),
        str: st.one_of(st.text(max_size=8), st.just("x" * 100_000)),
        bool: st.booleans(),
        type(None): st.none(),
    }.get(hint, st.sampled_from([one.value for one in getattr(hint, "__members__", {}).values()]))


def wild_fields(kind: type) -> st.SearchStrategy[dict[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return st.fixed_dictionaries(
        {one.name: wild(hints[one.name]) for one in dataclasses.fields(kind)}
    )


def payload(kind: type, fields: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode((kind.__name__, fields))


def check_values(value: Any) -> None:
    match value:
        case bool() | None:
            pass
        case int():
            assert 0 <= value <= INT64_MAX
        case float():
            assert value >= 0
            assert not math.isnan(value)
        case str():
            assert len(value) <= 1 << 16
        case tuple():
            for one in value:
                check_values(one)
        case dict():
            for one in (*value, *value.values()):
                check_values(one)
        case KVGeometry():
            assert 0 < value.block_bytes <= INT64_MAX
        case _:
            assert dataclasses.is_dataclass(value)
            for one in dataclasses.fields(value):
                check_values(getattr(value, one.name))


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), wild_fields(kind))))
def test_what_is_decoded_is_in_range(said: tuple[type, dict[str, Any]]) -> None:
    try:
        message = decode(payload(*said))
    except CorruptData:
        return
    check_values(message)


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, str]]:
    folder: Path = tmp_path_factory.mktemp("messages")
    rig = Rig(folder / "log", lends=False)
    path = str(folder / "sock")
    rig.device.listen(path)
    yield rig, path
    rig.close()


def answers(path: str) -> bool:
    with Channel.connect(path, timeout_s=10) as caller:
        caller.send(AskLedger())
        answer, descriptors = caller.receive(timeout_s=10)
        messages_closed = [socket.close(one) for one in descriptors]
        return isinstance(answer, Ledger) and len(messages_closed) == 1


def say(path: str, *payloads: bytes) -> None:
    """Say these one after the other over one connection; the answers are of no interest."""
    with Channel.connect(path, timeout_s=10) as caller:
        for one in payloads:
            try:
                caller._end.sendall(one)
                _, descriptors = caller.receive(timeout_s=10)
            except (OSError, Unavailable):
                return
            for descriptor in descriptors:
                socket.close(descriptor)


HELLO = encode(Hello(ROLLOUT_KV, 1 << 16))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    first=st.one_of(st.just(HELLO), wild_fields(Hello).map(lambda one: payload(Hello, one))),
    second=st.sampled_from(KINDS).flatmap(
        lambda kind: wild_fields(kind).map(lambda one: payload(kind, one))
    ),
)
def test_whatever_is_said_the_listener_answers_the_next(listening, first, second) -> None:
    rig, path = listening
    say(path, first, second)
    assert answers(path)
    assert rig.device.gave_back is None
