"""Engines without a model, behind the routes and answers of vLLM 0.32, SGLang 0.5 and rose.

The token at each place of a context is `token_at(place, version)`, whatever the seed, so that lost
and doubled tokens show. `python -m tests.engines.http.fake DIALECT PORT` runs one as a process.
"""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from typing import Any

from aiohttp import web

VOCABULARY = 256
KV_BLOCKS, BLOCK = 4096, 16
CONTEXT = 4096
UPDATES = (
    *("init_weight_transfer_engine", "start_weight_update", "update_weights"),
    *("finish_weight_update", "reset_prefix_cache", "update_weight_version"),
)


def token_at(place: int, version: int = 0) -> int:
    return blake2b(f"{place} {version}".encode(), digest_size=1).digest()[0]


def tokens_at(start: int, count: int, version: int = 0) -> list[int]:
    return [token_at(place, version) for place in range(start, start + count)]


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeEngine:
    """One engine. Attributes may be changed while it runs.

    Args:
        dialect: "vllm", "sglang" or "rose".
        step_s: time of a decode step.
        burst: tokens per event.
    """

    def __init__(self, dialect: str = "vllm", *, step_s: float = 0.002, burst: int = 1) -> None:
        self.dialect, self.step_s, self.burst = dialect, step_s, burst
        self.model = "tiny"
        self.root = "tiny"
        self.version = 0
        self.instance = "one"
        self.token: str | None = None
        self.tls: ssl.SSLContext | None = None
        self.is_incremental = False
        self.label = "default"  # of the weights
        self.is_updating = False  # between vLLM's start and finish of an update
        self.received = 1 << 30  # newest version that arrived from the publisher
        self.fails_at: str | None = None  # route that refuses
        self.breaks_at: str | None = None  # route that drops the connection
        self.kind = "borrowed" if dialect == "rose" else "dedicated"
        self.grant = {"grant_epoch": 1, "kv_tokens": KV_BLOCKS * BLOCK, "ttl_ms": 0.0}
        self.features = ["top_p", "seeds"]
        self.health = 200
        self.running = 0
        self.step_ms = 2.0  # as it tells
        self.peers: set[int] = set()  # ports of the clients that asked for turns
        self.decoded = 0
        self.bodies: list[dict[str, Any]] = []
        self.calls: list[tuple[str, Any]] = []
        self.answers: list[Answer] = []  # to the next turns
        self.can_run = asyncio.Event()
        self.can_run.set()
        self.changed = asyncio.Condition()
        self.is_vllm = False  # whether the engine under rose is a vLLM
        self.tells = True  # whether the events go on
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http{'' if self.tls is None else 's'}://127.0.0.1:{self.port}"

    # ---- life -----------------------------------------------------------------------------------

    async def start(self, port: int = 0) -> "FakeEngine":
        app = web.Application(middlewares=[self._guard], client_max_size=64 << 20)
        get, post = app.router.add_get, app.router.add_post
        get("/health", self._health)
        get("/v1/models", self._models)
        if self.dialect == "sglang":
            get("/model_info", self._model_info)
            get("/server_info", self._server_info)
            get("/get_weight_version", self._weight_info)
            post("/generate", self._generate)
            post("/update_weights_from_disk", self._update)
            post("/update_weight_version", self._update)
        else:
            post("/v1/completions", self._complete)
        if self.dialect == "vllm":
            get("/version", self._version)
            get("/metrics", self._metrics)
            get("/weight_info", self._weight_info)
            for name in UPDATES:
                post(f"/{name}", self._update)
        if self.dialect == "rose":
            get("/rose/status", self._status)
            get("/rose/events", self._events)
            for name in UPDATES:
                post(f"/{name}", self._update)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            "127.0.0.1",
            port or self.port,
            reuse_address=True,
            ssl_context=self.tls,
        )
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def kill(self) -> None:
        """Close the port and every connection, as the end of a process does."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for server in runner.sites:
                await server.stop()
            for connection in list(runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    async def restart(self) -> None:
        await self.kill()
        self.instance += "+"
        self.version, self.label, self.is_updating = 0, "default", False
        await self.start()

    async def tell(self, **changes: Any) -> None:
        """Change attributes, and tell it to those who follow the events."""
        async with self.changed:
            for name, value in changes.items():
                setattr(self, name, value)
            self.changed.notify_all()

    # ---- routes ---------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        shown = request.headers.get("authorization")
        if self.token is not None and shown != f"Bearer {self.token}":
            return _json({"error": "Unauthorized"}, 401)
        await self.can_run.wait()
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "root": self.root, "max_model_len": CONTEXT}
        return _json({"object": "list", "data": [card]})

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": "0.32.0"})

    async def _status(self, _: web.Request) -> web.Response:
        return _json({"engine": self.state()})

    async def _metrics(self, _: web.Request) -> web.Response:
        labels = (
            f'block_size="{BLOCK}",engine="0",num_gpu_blocks="{KV_BLOCKS}",sliding_window="None"'
        )
        text = f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
        return web.Response(text=text)

    async def _model_info(self, _: web.Request) -> web.Response:
        return _json({"model_path": self.root, "is_generation": True, "weight_version": "default"})

    async def _server_info(self, _: web.Request) -> web.Response:
        states = [{"effective_max_running_requests_per_dp": 32, "memory_usage": {}}]
        return _json(
            {
                "model_path": self.root,
                "dp_size": 1,
                "context_length": None,
                "max_total_num_tokens": KV_BLOCKS * BLOCK,
                "incremental_streaming_output": self.is_incremental,
                "internal_states": states,
            }
        )

    async def _weight_info(self, _: web.Request) -> web.Response:
        return _json({"weight_version": self.label})

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body))
        if request.path == self.breaks_at:
            request.transport.abort()
        if request.path == self.fails_at:
            self.is_updating = False
            return _json({"error": {"message": f"{request.path} fails", "code": 500}}, 500)
        match request.path:
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/update_weights" if self.dialect == "rose" and not self.is_vllm:
                await self.tell(version=body["weight_version"])
            case "/start_weight_update":
                if self.is_updating:
                    return _json({"error": {"message": "already active", "code": 500}}, 500)
                self.is_updating = True
            case "/finish_weight_update":
                self.is_updating = False
            case "/update_weights" if not self.is_updating:
                return _json({"error": {"message": "start it first", "code": 500}}, 500)
            case "/update_weights":
                wanted = body["update_info"]
                if self.received < wanted["version"]:
                    self.is_updating = False  # As vLLM does after any failure.
                    return _json({"error": {"message": "not there yet", "code": 500}}, 500)
                if not wanted.get("is_only_waiting"):
                    await self.tell(version=wanted["version"])
            case "/update_weights_from_disk":
                self.version, self.label = int(body["weight_version"]), body["weight_version"]
        return _json({"success": True})

    def state(self) -> dict[str, Any]:
        return {
            "status": {
                "kind": self.kind,
                "model": self.model,
                "vocabulary": VOCABULARY,
                "context_tokens": CONTEXT,
                "seats": 64,
                "kv_tokens": KV_BLOCKS * BLOCK,
                "eos_token_ids": [2],
                "version": self.version,
                "features": self.features,
                "instance": self.instance,
                **({"weights": "routes"} if self.is_vllm else {}),
                "prefill_tokens_per_s": 50_000.0,
                "decode_step_ms": self.step_ms,
                "decode_ms_per_sequence": 0.1,
            },
            "grant": self.grant,
            "version": {"version": self.version, "is_match": True, "pause_ms": 0.0},
            "wait": {"reason": None, "waited_s": 0.0, "remedy": None},
        }

    async def _events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        told: dict[str, Any] = {}
        while True:
            while not (self.tells and self.can_run.is_set()):
                await asyncio.sleep(0.01)
            for name, data in self.state().items():
                if told.get(name) != data:
                    told[name] = dict(data)
                    await answer.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
            await answer.write(b": ping\n\n")
            async with self.changed:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.5)

    # ---- turns ----------------------------------------------------------------------------------

    async def _steps(self, prompt: int, count: int, stops: list[int]) -> AsyncIterator[list[int]]:
        """Yield the tokens of each event."""
        made: list[int] = []
        sent = 0
        while len(made) < count and not (made and made[-1] in stops):
            await asyncio.sleep(self.step_s)
            await self.can_run.wait()
            made.append(token_at(prompt + len(made), self.version))
            self.decoded += 1
            is_over = len(made) == count or made[-1] in stops
            if len(made) - sent >= self.burst or is_over:
                yield made[sent:]
                sent = len(made)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.peers.add(request.transport.get_extra_info("peername")[1])
        if self.answers:
            return await self.answers.pop(0)(request)
        prompt, stops = body["prompt"], body["stop_token_ids"]
        if max(prompt) >= VOCABULARY:
            message = f"Token id {max(prompt)} is out of vocabulary"
            return _json(
                {"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400
            )
        self.running += 1
        try:
            if not body.get("stream"):
                made = [
                    one
                    async for some in self._steps(len(prompt), body["max_tokens"], stops)
                    for one in some
                ]
                choice = self._choice(body, made, is_last=True, is_first=True)
                choice["prompt_logprobs"] = [None, {"5": {"logprob": -1.0}}]
                return _json({"choices": [choice], "usage": self._usage(prompt, made)})
            answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await answer.prepare(request)
            made: list[int] = []
            async for some in self._steps(len(prompt), body["max_tokens"], stops):
                made += some
                is_last = len(made) == body["max_tokens"] or made[-1] in stops
                choice = self._choice(body, some, is_last=is_last, is_first=made == some)
                if self.dialect == "rose":
                    span = {"start": len(made) - len(some), "end": len(made)}
                    choice["weight_versions"] = [{"version": str(self.version), **span}]
                await _event(answer, {"id": "c", "object": "text_completion", "choices": [choice]})
            await _event(answer, {"choices": [], "usage": self._usage(prompt, made)})
            await answer.write(b"data: [DONE]\n\n")
            return answer
        finally:
            self.running -= 1

    def _choice(
        self, body: dict[str, Any], some: list[int], *, is_last: bool, is_first: bool
    ) -> dict[str, Any]:
        names = [f"token_id:{one}" for one in some]
        tops = [
            {name: -1.5, **{f"token_id:{k}": -1.0 - k for k in range(body["logprobs"])}}
            for name in names
        ]
        hit = some[-1] in body["stop_token_ids"] if some else False
        choice = {
            "index": 0,
            "text": "x" * len(some),
            "logprobs": {
                "text_offset": [0] * len(some),
                "token_logprobs": [-1.5] * len(some),
                "tokens": names,
                "top_logprobs": tops,
            },
            "finish_reason": ("stop" if hit else "length") if is_last else None,
            "stop_reason": some[-1] if hit else None,
            "token_ids": some,
        }
        return {**choice, "prompt_token_ids": body["prompt"]} if is_first else choice

    def _usage(self, prompt: list[int], made: list[int]) -> dict[str, Any]:
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(made),
            "total_tokens": len(prompt) + len(made),
            "prompt_tokens_details": {"cached_tokens": len(prompt) // 2},
        }

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        prompt, sampling = body["input_ids"], body["sampling_params"]
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        if max(prompt) >= VOCABULARY:
            finish = {"type": "abort", "message": "input_ids out of range", "status_code": 400}
            await _event(answer, {"text": "", "meta_info": {"finish_reason": finish}})
            return answer
        self.running += 1
        made: list[int] = []
        stops, most = sampling["stop_token_ids"], sampling["max_new_tokens"]
        try:
            async for some in self._steps(len(prompt), most, stops):
                made += some
                shown = some if self.is_incremental else made
                finish = {"type": "length", "length": most} if len(made) == most else None
                if made[-1] in stops:
                    finish = {"type": "stop", "matched": made[-1]}
                meta = {
                    "id": "g",
                    "finish_reason": finish,
                    "prompt_tokens": len(prompt),
                    "completion_tokens": len(made),
                    "cached_tokens": len(prompt) // 2,
                    "weight_version": "default",
                    "output_token_logprobs": [[-1.5, one, None] for one in shown],
                }
                if body["top_logprobs_num"]:
                    meta["output_top_logprobs"] = [
                        [[-1.0 - k, k, None] for k in range(body["top_logprobs_num"])]
                        for _ in shown
                    ]
                await _event(answer, {"text": "x", "output_ids": shown, "meta_info": meta})
            await answer.write(b"data: [DONE]\n\n")
            return answer
        finally:
            self.running -= 1


async def _event(answer: web.StreamResponse, body: Any) -> None:
    await answer.write(b"data: " + json.dumps(body).encode() + b"\n\n")


def _json(body: Any, status: int = 200) -> web.Response:
    return web.json_response(body, status=status)


@asynccontextmanager
async def engine(dialect: str = "vllm", **options: Any) -> AsyncIterator[FakeEngine]:
    one = FakeEngine(dialect, **options)
    await one.start()
    try:
        yield one
    finally:
        one.can_run.set()
        await one.kill()


async def main(dialect: str, port: str, step_s: str = "0.002", burst: str = "1") -> None:
    one = FakeEngine(dialect, step_s=float(step_s), burst=int(burst))
    one.instance = str(id(one))
    await one.start(int(port))
    print(one.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
