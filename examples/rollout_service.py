"""Serve rollouts over HTTP on the workers of rollouts.py, and request twelve completions.

The borrowed worker loses its memory meanwhile. Clients notice nothing: each answer is complete.
`python examples/rollout_service.py` takes a second, and needs `rose-rl[serve]` and httpx2.
"""

import asyncio
import json

import httpx2
from rollouts import KV_TOKENS, SEATS, STEP_S, CountingWorker

from rose.adapters import RolloutService, rollout_app
from rose.adapters.listening import listening
from rose.scheduler import Capabilities
from rose.scheduler.worker import WorkerKind

TOKEN, REQUESTS, TOKENS = "a secret of yours", 12, 60


async def ask(client: httpx2.AsyncClient, first: int) -> list[int]:
    """Return the tokens of one completion, which the service streams."""
    body = {
        "prompt": [first],  # token ids; with a tokenizer, text and chat are possible too
        "max_tokens": TOKENS,
        "stream": True,
        "return_token_ids": True,
        "weight_version": {"min": 0},  # 409 if no worker has weights that are new enough
    }
    tokens: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            data = line.removeprefix("data: ")
            if data and data != "[DONE]":
                tokens += json.loads(data)["choices"][0]["token_ids"]
    return tokens


async def main() -> None:
    """Start the service, ask for completions, and revoke the borrowed worker meanwhile."""
    async with RolloutService() as service:
        can = Capabilities(SEATS, prefill_tokens_per_s=1e5, decode_step_ms=1e3 * STEP_S)
        # `service` takes the place of the scheduler: workers report to its `receive`.
        workers = [CountingWorker(n, kind, service) for n, kind in enumerate(WorkerKind)]
        for worker in workers:
            await service.register(worker, can)
            worker.resize(KV_TOKENS)
        app = rollout_app(service, model="counting", token=TOKEN)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            listening(app) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client,
        ):
            tasks = [asyncio.create_task(ask(client, 1000 * n)) for n in range(REQUESTS)]
            for kv_tokens in (0, KV_TOKENS, 0, KV_TOKENS):
                await asyncio.sleep(0.1)
                workers[-1].resize(kv_tokens)
            for number, tokens in enumerate(await asyncio.gather(*tasks)):
                first = 1000 * number + 1
                assert tokens == list(range(first, first + TOKENS)), "a token is wrong"
        print(f"{REQUESTS} answers, {service.resumed_count()} resumed elsewhere, no token lost")


if __name__ == "__main__":
    asyncio.run(main())
