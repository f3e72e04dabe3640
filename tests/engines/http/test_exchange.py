"""Answers of any form that HTTP allows, and connections that are used again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rose.engines.http import worker as worker_module
from rose.engines.http.exchange import AnswerEnd, Exchanges
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.scheduler.worker import TurnEnd
from tests.engines.http.rig import rigged

PATH = b"base/v1/completions"
OK = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def answering(
    *pieces: bytes, is_closed: bool = False
) -> AsyncIterator[tuple[Exchanges, list[bytes]]]:
    """A server that sends the same bytes to every request, piece by piece."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(1 << 16):
            asked.append(head)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.005)
            if is_closed:
                break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    exchanges = Exchanges(f"http://127.0.0.1:{port}/base", token="secret", tls=None)
    try:
        yield exchanges, asked
    finally:
        exchanges.close()
        server.close()


async def run(
    exchanges: Exchanges, take: Callable[[bytes], None] | None = None
) -> tuple[AnswerEnd, bytes]:
    data: list[bytes] = []

    def on_data(piece: bytes, _: object) -> None:
        data.append(piece)
        if take is not None:
            take(piece)

    reply = await exchanges.run("/v1/completions", b"{}", on_data)
    return reply, b"".join(data)


@pytest.mark.parametrize(
    ("pieces", "is_closed"),
    [
        ([OK + b"content-length: 5\r\n\r\nhello"], False),
        (
            [OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", b"2\r\nlo\r\n", b"0\r\n\r\n"],
            False,
        ),
        ([*(bytes([one]) for one in OK + b"content-length: 5\r\n\r\nhello")], False),
        ([OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello"], False),
        ([OK + b"\r\nhel", b"lo"], True),
    ],
)
async def test_answer_is_whole_in_any_form(pieces: list[bytes], is_closed: bool) -> None:
    async with answering(*pieces, is_closed=is_closed) as (exchanges, asked):
        for _ in range(3):
            reply, data = await run(exchanges)
            assert reply.status == 200
            assert data == b"hello"
        assert len(asked) == 3
        assert asked[0].startswith(b"POST /" + PATH + b" HTTP/1.1\r\nhost: 127.0.0.1:")
        assert b"\r\nauthorization: Bearer secret\r\n" in asked[0]
        assert asked[0].endswith(b"\r\ncontent-length: 2\r\n\r\n{}")


async def test_answer_of_another_status_is_kept() -> None:
    text = b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\ncontent-length: 5\r\n\r\nlater"
    async with answering(text) as (exchanges, _):
        reply, data = await run(exchanges)
        assert reply == AnswerEnd(429, "7", b"later")
        assert data == b""


@pytest.mark.parametrize(
    "piece",
    [
        b"220 smtp.example ready\r\n",
        OK + b"content-length: 5\r\n\r\nhel",
        OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",
        b"",
    ],
)
async def test_broken_answer_is_an_error(piece: bytes) -> None:
    async with answering(piece, is_closed=True) as (exchanges, _):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
            await run(exchanges)


async def test_error_of_the_reader_ends_the_answer() -> None:
    def fail(_: bytes) -> None:
        raise CorruptData("no tokens")

    async with answering(OK + b"content-length: 5\r\n\r\nhello") as (exchanges, _):
        with pytest.raises(CorruptData, match="no tokens"):
            await run(exchanges, fail)
        assert (await run(exchanges))[1] == b"hello"


@pytest.mark.parametrize("token", ["a\r\nx: y", "ä"])
def test_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgument, match="token"):
        Exchanges("http://127.0.0.1:1", token=token, tls=None)


async def test_turns_use_one_connection_and_outlive_the_limits_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_REST_S", 0.05)
    async with rigged() as rig:
        for trajectory in range(4):
            assert (await rig.play(trajectory, count=60)).end is TurnEnd.FINISHED
        assert len(rig.engine.peers) == 1
        assert [len(rig.ends(trajectory)) for trajectory in range(4)] == [1] * 4
