"""What a scheduler and a worker say to each other survives the wire, or is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.scheduler.wire import (
    FORMAT,
    MESSAGE_BYTES_MAX,
    Greeting,
    Heartbeat,
    Ping,
    StopTurn,
    decode_command,
    decode_news,
    encode,
)
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)

INTS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False)  # -0.0 and the infinities included
IDS = st.lists(INTS, max_size=40).map(tuple)

REQUESTS = st.builds(
    TurnRequest,
    trajectory=INTS,
    turn=INTS,
    grant_epoch=INTS,
    prompt=IDS,
    first_token=INTS,
    max_new_tokens=INTS,
    stop_tokens=IDS,
    temperature=FLOATS,
    seed=INTS,
)


@st.composite
def outputs(draw) -> TurnOutput:
    said = draw(st.lists(st.tuples(INTS, FLOATS, INTS), max_size=40))
    return TurnOutput(
        worker=draw(INTS),
        trajectory=draw(INTS),
        turn=draw(INTS),
        grant_epoch=draw(INTS),
        first_token=draw(INTS),
        tokens=tuple(token for token, _, _ in said),
        logprobs=tuple(logprob for _, logprob, _ in said),
        versions=tuple(version for _, _, version in said),
        end=draw(st.none() | st.sampled_from(TurnEnd)),
        error=draw(st.none() | st.text()),
    )


COMMANDS = st.one_of(REQUESTS, st.builds(StopTurn, INTS), st.just(Ping()))
NEWS_OF_A_CONNECTION = st.one_of(
    outputs(),
    st.builds(GrantChanged, INTS, INTS, INTS, FLOATS),
    st.builds(VersionCommitted, INTS, INTS, st.booleans(), FLOATS),
    st.just(Heartbeat()),
)
"""News that neither begins nor ends a connection."""

NEWS = st.one_of(
    NEWS_OF_A_CONNECTION,
    st.builds(WorkerLost, INTS, st.text()),
    st.builds(Greeting, INTS, st.sampled_from(WorkerKind)),
)


def is_same(a, b) -> bool:
    """Equal, and the same bits: `==` alone takes -0.0 for 0.0 and 1 for True."""
    return a == b and repr(a) == repr(b)


@given(COMMANDS)
def test_commands_survive_the_wire_bit_for_bit(command) -> None:
    assert is_same(decode_command(encode(command)), command)


@given(NEWS)
def test_news_survive_the_wire_bit_for_bit(news) -> None:
    assert is_same(decode_news(encode(news)), news)


@pytest.mark.parametrize("decode", [decode_command, decode_news])
@given(st.binary(max_size=200))
def test_garbage_is_corrupt_data(decode, frame: bytes) -> None:
    with pytest.raises(CorruptData):  # No whole message is that likely.
        decode(frame)


@given(NEWS, st.data())
def test_a_damaged_message_is_never_of_another_type(news, data) -> None:
    frame = bytearray(encode(news))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        read = decode_news(bytes(frame))
    except CorruptData:
        return
    assert type(read) is type(news)


@pytest.mark.parametrize("number", [0, FORMAT + 1, 2**40])
def test_another_format_is_refused_by_its_number(number: int) -> None:
    frame = msgspec.msgpack.encode([number, "ping", {}, "what a later format adds"])
    with pytest.raises(CorruptData, match=f"format {number}: this rose uses format {FORMAT}"):
        decode_command(frame)


def test_the_directions_do_not_mix() -> None:
    with pytest.raises(CorruptData, match="'heartbeat' is unknown"):
        decode_command(encode(Heartbeat()))
    with pytest.raises(CorruptData, match="'stop' is unknown"):
        decode_news(encode(StopTurn(1)))


def test_sizes_are_bounded_on_both_sides() -> None:
    with pytest.raises(InvalidArgument, match=str(MESSAGE_BYTES_MAX)):
        encode(WorkerLost(1, "x" * MESSAGE_BYTES_MAX))
    long = msgspec.msgpack.encode([FORMAT, "lost", {"worker": 1, "reason": "x" * (4 << 20)}])
    with pytest.raises(CorruptData, match=str(len(long))):
        decode_news(long)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object()])
def test_a_value_without_a_place_in_the_format_is_refused(value) -> None:
    with pytest.raises(InvalidArgument, match="StopTurn cannot be sent"):
        encode(StopTurn(value))


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        encode(WorkerLost(1, "\ud800"))
