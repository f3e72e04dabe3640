"""prime-rl's client `renderers` against a service: python with_renderers.py URL MODEL_FOLDER."""

import asyncio
import sys

from openai import AsyncOpenAI
from renderers import create_renderer
from renderers.client import OverlongPromptError, generate
from transformers import AutoTokenizer

MESSAGES = [{"role": "user", "content": "Who is there?"}]


async def main(url: str, folder: str) -> None:
    """Generate one completion, and one that is too long."""
    renderer = create_renderer(AutoTokenizer.from_pretrained(folder))
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    of = {"client": client, "renderer": renderer, "messages": MESSAGES, "model": "rose"}
    sampling = {"max_tokens": 8, "temperature": 1.0}
    said = await generate(
        **of, sampling_params=sampling, cache_salt="1", extra_headers={"X-Session-ID": "t1"}
    )
    assert 1 <= len(said["completion_ids"]) <= 8, said
    assert len(said["completion_logprobs"]) == len(said["completion_ids"])
    assert said["finish_reason"] in {"stop", "length"}
    try:
        await generate(**of, prompt_ids=[1] * 1_000_000, sampling_params=sampling)
    except OverlongPromptError as error:
        print("overlong:", error)
    else:
        raise AssertionError("a prompt of a million tokens was sent")


asyncio.run(main(*sys.argv[1:]))
print("renderers: ok")
