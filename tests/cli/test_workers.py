"""`rose workers` and the routes that it calls, against an application on a real port."""

import asyncio
import json
import threading
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if find_spec("fastapi") is None:  # There is none for Python 3.10.
    pytest.skip("needs fastapi", allow_module_level=True)

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from typing_extensions import Self

from rose.adapters.json_answer import Json
from rose.adapters.listening import listening
from rose.adapters.worker_routes import add_worker_routes
from rose.cli.main import main
from rose.errors import RoseError
from tests.adapters.fleet_rig import Rig, rigged
from tests.engines.http.fake import FakeEngine


class Served:
    """A fleet behind its routes, in the loop of a thread."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[str | None] = []
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        app = FastAPI()

        async def refused(request: Request, error: Exception) -> Json:
            status = error.status_code if isinstance(error, HTTPException) else 400
            message = getattr(error, "detail", str(error))
            return Json({"error": {"message": message}}, status)

        app.add_exception_handler(RoseError, refused)
        app.add_exception_handler(HTTPException, refused)

        @app.middleware("http")
        async def note(request: Request, call_next):
            self.headers.append(request.headers.get("authorization"))
            return await call_next(request)

        async with rigged() as rig:
            self.rig: Rig = rig
            add_worker_routes(app, rig.fleet)
            async with listening(app) as self.url:
                self._ready.set()
                await self._stop.wait()

    def engine(self, dialect: str = "vllm") -> FakeEngine:
        """Start an engine."""
        return asyncio.run_coroutine_threadsafe(self.rig.start(dialect), self.loop).result(20)

    def until_ready(self, number: int) -> None:
        asyncio.run_coroutine_threadsafe(self.rig.until_ready(number), self.loop).result(20)


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as one:
        yield one


def rows(served: Served, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["workers", "list", served.url, "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def test_engines_are_added_drained_and_removed(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [served.engine("vllm"), served.engine("sglang")]
    assert main(["workers", "add", served.url, *(one.url for one in engines)]) == 0
    assert "worker 1: " in capsys.readouterr().out
    served.until_ready(0)
    served.until_ready(1)
    found = rows(served, capsys)
    assert [(row["id"], row["state"], row["runtime_type"]) for row in found] == [
        ("0", "ready", "vllm"),
        ("1", "ready", "sglang"),
    ]
    assert [row["engine"] for row in found] == [one.url for one in engines]
    # SGLang's routes for the first are those of the service.
    assert [row["url"] for row in found] == [served.url, engines[1].url]
    assert main(["workers", "drain", served.url, "1"]) == 0
    assert rows(served, capsys)[1]["state"] == "draining"
    assert main(["workers", "remove", served.url, "1"]) == 0
    assert [row["id"] for row in rows(served, capsys)] == ["0"]


def test_list_says_why_a_worker_is_not_ready(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = served.engine()
    asyncio.run_coroutine_threadsafe(engine.kill(), served.loop).result(20)
    assert main(["workers", "add", served.url, engine.url, "--kind", "borrowed"]) == 0
    capsys.readouterr()
    assert main(["workers", "list", served.url]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["NUMBER", "STATE"]
    assert line.split()[:3] == ["0", "joining", "-"]
    assert line.split()[-1] == engine.url


def test_tokens_come_from_the_environment_and_a_file(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    engine = served.engine()
    engine.token = "of the engine"
    file = tmp_path / "token"
    file.write_text("of the engine\n")
    monkeypatch.setenv("ROSE_TOKEN", "of the service")
    assert main(["workers", "add", served.url, engine.url, "--engine-token", str(file)]) == 0
    served.until_ready(0)
    assert set(served.headers) == {"Bearer of the service"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["drain", "URL", "7"], "404: there is no worker 7"),
        (["remove", "URL", "7"], "404: there is no worker 7"),
        (["add", "URL", "host:80"], "URL of an engine"),
        (["list", "127.0.0.1:80"], "http or https URL"),
        (["list", "http://127.0.0.1:1"], "does not answer"),
    ],
)
def test_refusal_is_one_sentence(
    words: list[str], reason: str, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workers", *(served.url if word == "URL" else word for word in words)]) == 2
    assert reason in capsys.readouterr().err


def test_proxies_of_the_environment_are_not_used(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    engine = served.engine()
    assert main(["workers", "add", served.url, engine.url]) == 0
    served.until_ready(0)
