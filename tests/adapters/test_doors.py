"""The HTTP server of the service: bodies that it refuses, connections, and its end."""

import asyncio
import json
from urllib.parse import urlsplit

import httpx2

from rose.adapters import ServiceLimits
from rose.adapters.connections import raise_descriptors
from rose.adapters.listening import listening
from tests.adapters.rig import BODY, PROMPT, events_of, rigged, until
from tests.adapters.test_routes import Bytes
from tests.waiting import LONG_S

ENDLESS = {**BODY, "max_tokens": 9000}


async def test_head_is_get_without_a_body() -> None:
    async with rigged() as rig, listening(rig.app) as url, httpx2.AsyncClient(base_url=url) as one:
        for path in ("/health", "/v1/models", "/ping", "/liveness"):
            answer = await one.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        assert (await one.head("/v1/completions")).status_code == 405
        assert (await one.get("/v1/models")).json()["data"][0]["id"] == "trial"


async def test_a_compressed_body_is_refused_with_415() -> None:
    async with rigged() as rig:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        answer = await rig.client.post("/v1/completions", content=b"\x1f\x8b", headers=headers)
        assert answer.status_code == 415
        assert "must not be compressed, got Content-Encoding gzip" in answer.text


async def test_a_too_large_body_is_answered_and_not_reset() -> None:
    async with rigged(limits=ServiceLimits(body_bytes=10_000)) as rig, listening(rig.app) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        size = 9 << 20
        writer.write(b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size)
        writer.write(b" " * size)  # as clients do that send without `Expect`
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), LONG_S)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"at most 10000 bytes" in answer


async def test_a_pooled_connection_lives_between_requests() -> None:
    async with rigged() as rig, listening(rig.app) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in range(2):
            writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b'"ok"}'), LONG_S)
        (connection,) = _timers(asyncio.get_running_loop())
        assert connection > 75
        writer.close()


def _timers(loop) -> list[float]:
    """Return the times in seconds until idle connections are closed."""
    return [
        handle.when() - loop.time()
        for handle in loop._scheduled
        if not handle.cancelled() and "timeout_keep_alive" in repr(handle)
    ]


async def test_more_connections_than_the_process_may_have_get_429(monkeypatch) -> None:
    monkeypatch.setattr("rose.adapters.listening.raise_descriptors", lambda: 2)
    async with rigged() as rig, listening(rig.app) as url:
        address = urlsplit(url)
        open_ones = [
            await asyncio.open_connection(address.hostname, address.port) for _ in range(3)
        ]
        answer = await asyncio.wait_for(open_ones[2][0].read(), LONG_S)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in answer
        open_ones[0][1].write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert await asyncio.wait_for(open_ones[0][0].readuntil(b'"ok"}'), LONG_S)
        for _, writer in open_ones:
            writer.close()


def test_the_limit_of_open_files_is_raised_to_the_hard_one(monkeypatch) -> None:
    asked = []
    module = "rose.adapters.connections.resource"
    monkeypatch.setattr(f"{module}.getrlimit", lambda _: (1024, 65_536))
    monkeypatch.setattr(f"{module}.setrlimit", lambda _, limits: asked.append(limits))
    assert raise_descriptors() == 65_536 - 128
    assert asked == [(65_536, 65_536)]


async def test_requests_in_flight_at_the_end_are_answered() -> None:
    async with (
        rigged(1) as rig,
        listening(rig.app) as url,
        httpx2.AsyncClient(base_url=url) as one,
    ):
        whole = asyncio.create_task(one.post("/v1/completions", json=ENDLESS))
        stream = asyncio.create_task(one.post("/v1/completions", json={**ENDLESS, "stream": True}))
        await until(lambda: len(rig.workers[0]._turns) == 2)
        rig.step()
        ending = asyncio.create_task(rig.app.stop(0.05))
        await asyncio.sleep(0)
        late = await one.post("/v1/completions", json={"prompt": PROMPT})
        assert late.status_code == 503
        assert late.headers["retry-after"] == "1"
        await ending
        answer = await asyncio.wait_for(whole, LONG_S)
        assert answer.status_code == 503
        assert "the service stops" in answer.json()["error"]["message"]
        *_, error = events_of((await asyncio.wait_for(stream, LONG_S)).text)
        assert error["error"]["code"] == 503


async def test_a_route_that_fails_answers_json(monkeypatch, caplog) -> None:
    async with rigged() as rig:

        def broken(*_, **__):
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(rig.service, "generate", broken)
        answer = await rig.client.post("/v1/completions", json=BODY)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "secret" not in answer.text
        assert "ZeroDivisionError" in caplog.text


async def test_texts_and_tokens_are_converted() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        said = (await rig.post("/tokenize", {"prompt": "ab", "return_token_strs": True})).json()
        assert (said["count"], said["tokens"], said["token_strs"]) == (2, [97, 98], ["a", "b"])
        chat = {"messages": [{"role": "u", "content": "a"}]}
        said = (await rig.post("/tokenize", chat)).json()
        assert bytes(said["tokens"]) == b"<u>a<assistant>"
        assert (await rig.post("/detokenize", {"tokens": [97, 98]})).json() == {"prompt": "ab"}
        rendered = (await rig.post("/v1/chat/completions/render", chat)).json()
        assert bytes(rendered["token_ids"]) == b"<u>a<assistant>"


async def test_a_large_body_is_read_whole() -> None:
    ids = list(range(200)) * 1500
    async with rigged(limits=ServiceLimits(context_tokens=1_000_000)) as rig:
        for prompt in (ids, [ids[:9], ids]):
            body = json.dumps({"prompt": prompt, "max_tokens": 1, "return_token_ids": True})
            assert len(body) > 1 << 20
            answer = await rig.ask("/v1/completions", json.loads(body))
            last = answer.json()["choices"][-1]
            assert last["prompt_token_ids"] == ids
