"""An engine in vLLM's dialect that only streams: `python -m bench.stream_engine TOKENS STEP_S`.

Each event of a stream has TOKENS tokens, and follows the one before after STEP_S seconds. The
program writes its URL, and ends with its stdin.
"""

import asyncio
import json
import sys
from typing import Any, Final

from aiohttp import web

MODEL: Final = "streamed"
_CONTEXT_TOKENS: Final = 32_768
_LOGPROB: Final = -1.25


class Engine:
    """The routes of the engine.

    Args:
        tokens: tokens of an event.
        step_s: seconds between two events of a stream.
    """

    def __init__(self, tokens: int, step_s: float) -> None:
        self._tokens, self._step_s = tokens, step_s

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.post("/v1/completions", self._complete),
            ]
        )
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "root": MODEL, "max_model_len": _CONTEXT_TOKENS}
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, _: web.Request) -> web.Response:
        line = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="65536"} 1.0\n'
        return web.Response(text=line)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        left, place = int(body["max_tokens"]), 0
        while left:
            await asyncio.sleep(self._step_s)
            count = min(left, self._tokens)
            left -= count
            await answer.write(_event(list(range(place, place + count)), is_last=left == 0))
            place += count
        prompt = len(body["prompt"])
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": place,
            "total_tokens": prompt + place,
        }
        await answer.write(_line({**_HEAD, "choices": [], "usage": usage}))
        await answer.write(b"data: [DONE]\n\n")
        return answer


_HEAD: Final[dict[str, Any]] = {"id": "cmpl-1", "object": "text_completion", "model": MODEL}


def _event(ids: list[int], *, is_last: bool) -> bytes:
    ids = [1 + one % 255 for one in ids]
    names = [f"token_id:{one}" for one in ids]
    logprobs = {
        "tokens": names,
        "token_logprobs": [_LOGPROB] * len(ids),
        "top_logprobs": [{name: _LOGPROB} for name in names],
        "text_offset": [0] * len(ids),
    }
    reason = "length" if is_last else None
    choice = {
        "index": 0,
        "text": "x" * len(ids),
        "logprobs": logprobs,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": ids,
    }
    return _line({**_HEAD, "choices": [choice]})


def _line(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def main(tokens: int, step_s: float) -> None:
    runner = web.AppRunner(Engine(tokens, step_s).app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
