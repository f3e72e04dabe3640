"""The client of TRL's rollouts: what it waits for, repeats, refuses and says."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager

import pytest

import rose
from rose.adapters.listening import listening
from rose.adapters.trl import TrlRollouts, TrlWeightTransfer, trl_weights
from rose.adapters.trl import client as module
from rose.adapters.trl.client import RolloutClient
from tests.adapters.rig import BODY, rigged, truth
from tests.adapters.test_trl_rollouts import Recording, trainer
from tests.adapters.test_weight_transfer import WAIT_S, Model, following
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl

PATH = "/v1/completions"
AWAY = "service.invalid:8000"


def client(url: str, **changed) -> RolloutClient:
    return RolloutClient(url, **{"token": None, "ca": None, "wait_s": WAIT_S, **changed})


class Scripted:
    """An application that answers as it is told, and then passes requests on."""

    def __init__(self, app, answers: list[tuple[int, bytes, str]]) -> None:
        self._app, self._answers = app, answers

    async def __call__(self, scope, receive, send) -> None:
        if not self._answers:
            await self._app(scope, receive, send)
            return
        status, content, retry_after = self._answers.pop(0)
        headers = [(b"retry-after", retry_after.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def failure(status: int, message: str = "not now") -> tuple[int, bytes, str]:
    return status, json.dumps({"error": {"message": message}}).encode(), "0"


@asynccontextmanager
async def broken(port: int = 0):
    """A server that takes a request and closes the connection, as a dying service does."""
    bodies: list[bytes] = []

    async def take(reader, writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"-length" in line
        )
        bodies.append(await reader.readexactly(length))
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1], bodies
    finally:
        server.close()
        await server.wait_closed()


async def test_statuses_that_pass_are_waited_for(monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "_REPORT_S", 0.0)
    refusals = [failure(status) for status in (409, 429, 503)] + [(502, b"<h1>Bad</h1>\n", "soon")]
    caplog.set_level(logging.WARNING)
    async with (
        rigged(1, step_s=0.001) as rig,
        listening(Scripted(rig.app, list(refusals))) as url,
    ):
        said = await asyncio.to_thread(client(url).call, "POST", PATH, BODY)
    assert said["choices"][0]["token_ids"] == truth()
    for status, reason in ((409, "not now"), (429, "not now"), (503, "not now"), (502, "<h1>Bad")):
        (line,) = [one.message for one in caplog.records if f"status {status}" in one.message]
        assert line.startswith("waited ")
        assert reason in line
        assert line.endswith(module._REMEDIES[status])


async def test_waits_of_many_requests_are_one_line(caplog) -> None:
    one = client("http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        one.report(9.0, "early", "wait")
        for waited_s in (10.0, 11.0, 12.0):
            one.report(waited_s, "no worker", "add one")
    assert [record.message for record in caplog.records] == ["waited 10 s: no worker; add one"]


async def test_a_completion_outlives_its_service_and_is_counted_once() -> None:
    async with rigged(1, step_s=0.001) as rig:
        app = Recording(rig.app)
        with (
            rose.publish(trl_weights(Model(0.0))) as publisher,
            following(rig.workers[0], publisher),
        ):
            async with broken() as (port, bodies):
                transfer = TrlWeightTransfer(f"http://127.0.0.1:{port}", publisher, wait_s=WAIT_S)
                rollouts = TrlRollouts(transfer)
                rollouts._step = 0  # its weights are published already
                asking = asyncio.create_task(asyncio.to_thread(rollouts, ["ab", "c"], trainer()))
                while len(bodies) < 4:
                    await asyncio.sleep(0.01)
            async with listening(app, f"127.0.0.1:{port}"):
                said = await asking
                await rig.until_empty()
    assert len(app.asked) == len(said["completion_ids"]) == 2
    assert {json.dumps(body) for _, body in app.asked} == {
        json.dumps(json.loads(body)) for body in bodies
    }


async def test_a_service_that_stays_away_ends_the_wait() -> None:
    async with broken() as (port, _):
        pass
    url = f"http://127.0.0.1:{port}"
    with pytest.raises(rose.Unavailable, match=rf"{url} did not answer .* within 0\.2 s; start"):
        await asyncio.to_thread(client(url, wait_s=0.2).call, "GET", "/weight_versions")


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (failure(400, "top_p must be 1"), rose.InvalidArgument, "status 400: top_p must be 1"),
        (failure(401, "the token is wrong"), rose.InvalidArgument, "status 401: the token is"),
        ((500, b"Internal Server\nError", ""), rose.Unavailable, "500: Internal Server Error"),
        ((200, b"<html>", ""), rose.Unavailable, "status 200: <html>"),
        ((404, b'{"detail": "Not Found"}', ""), rose.InvalidArgument, "Not Found"),
    ],
)
async def test_other_answers_are_one_sentence(answer, error, text) -> None:
    async with rigged(0) as rig, listening(Scripted(rig.app, [answer])) as url:
        with pytest.raises(error) as raised:
            await asyncio.to_thread(client(url).call, "POST", f"{PATH}?a=b", BODY)
    assert text in str(raised.value)
    assert str(raised.value).startswith(f"the rollout service at {url} answered POST {PATH} with")
    assert "\n" not in str(raised.value)


async def test_a_proxy_is_used_unless_the_service_is_on_this_machine(monkeypatch) -> None:
    seen: list[bytes] = []

    async def take(reader, writer) -> None:
        seen.append(await reader.readline())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as proxy:
        host, port = proxy.sockets[0].getsockname()
        monkeypatch.setenv("http_proxy", f"http://{host}:{port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        away = client(f"http://{AWAY}/")
        assert await asyncio.to_thread(away.call, "GET", "/weight_versions") == {}
        async with rigged(1) as rig, listening(rig.app) as url:
            for here in (url, url.replace("127.0.0.1", "localhost")):
                said = await asyncio.to_thread(client(here).call, "GET", "/weight_versions")
                assert said["versions"] == {"0": 1}
    assert seen == [f"GET http://{AWAY}/weight_versions HTTP/1.1\r\n".encode()]


@needs_openssl
async def test_a_certificate_is_checked_against_its_authority(tmp_path) -> None:
    authority = make_authority(tmp_path)
    files = make_certificate(authority, "server")
    async with (
        rigged(1, token="t") as rig,
        listening(rig.app, "127.0.0.1:0", tls=(files.certificate, files.key)) as url,
    ):
        url = url.replace("127.0.0.1", "localhost")  # noqa: PLW2901
        trusting = client(url, ca=authority, token="t")
        said = await asyncio.to_thread(trusting.call, "GET", "/weight_versions")
        assert said["versions"] == {"0": 1}
        with pytest.raises(rose.Unavailable, match=r"no certificate that is trusted here.*ca="):
            await asyncio.to_thread(client(url).call, "GET", "/weight_versions")
    for path in (tmp_path / "none.pem", tmp_path):
        with pytest.raises(rose.InvalidArgument, match="ca must be a PEM file"):
            client(url, ca=path)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a:1", "http://"])
def test_a_url_is_checked_at_once(url) -> None:
    with pytest.raises(rose.InvalidArgument, match="url must start with http"):
        client(url)


async def test_it_also_runs_in_the_thread_of_an_event_loop() -> None:
    async with rigged(1) as rig, listening(rig.app) as url:
        loop = asyncio.get_running_loop()

        def notebook() -> object:
            async def cell() -> object:
                return client(url).call("GET", "/weight_versions")

            return asyncio.run(cell())

        assert (await loop.run_in_executor(None, notebook))["versions"] == {"0": 1}
