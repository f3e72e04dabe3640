"""A thousand clients of the rollout service at once."""

import asyncio
import json

import pytest

from rose.adapters.listening import listening
from tests.adapters.rig import rigged, truth, until

CLIENTS = 1000
TOKENS = 8


async def stream(url: str, seed: int) -> list[int]:
    """Return the tokens of one streamed completion, read without a library."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    body = {"prompt": [1], "max_tokens": TOKENS, "seed": seed, "stream": True}
    content = json.dumps({**body, "return_token_ids": True}).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\nconnection: close\r\n\r\n")
    writer.write(content)
    answer = (await reader.read(-1)).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200")
    lines = [one.removeprefix("data: ") for one in answer.splitlines() if one.startswith("data: {")]
    return [i for line in lines for i in json.loads(line)["choices"][0]["token_ids"]]


@pytest.mark.slow
async def test_a_thousand_streams_are_each_whole_though_a_worker_is_revoked() -> None:
    async with rigged(20, step_s=0.05) as rig, listening(rig.app) as url:
        tasks = [asyncio.create_task(stream(url, seed)) for seed in range(CLIENTS)]
        for worker in rig.workers[1:6:2]:
            await until(lambda worker=worker: worker._turns or all(one.done() for one in tasks))
            worker.revoke()
            worker.grant()
        for seed, said in enumerate(await asyncio.gather(*tasks)):
            assert said == truth(seed, prompt=1, count=TOKENS)
        assert rig.service.resumed_count() > 0
        await rig.until_empty()


@pytest.mark.slow
async def test_a_thousand_idle_connections_harm_nobody() -> None:
    async with rigged(1, step_s=0.001) as rig, listening(rig.app) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")
        idle = await asyncio.gather(
            *(asyncio.open_connection(host, int(port)) for _ in range(CLIENTS))
        )
        for _, writer in idle[::2]:  # of these the request never ends
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        assert await stream(url, 3) == truth(3, prompt=1, count=TOKENS)
        for _, writer in idle:
            writer.close()
        await rig.until_empty()
