"""SkyRL's inference client against a service: python with_skyrl.py URL."""

import asyncio
import sys

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteInferenceClient,
)

SAMPLING = {
    "min_tokens": 1,
    "skip_special_tokens": True,
    "include_stop_str_in_output": True,
    "max_tokens": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "logprobs": 1,
    "stop": ["</search>"],
}


async def main(url: str) -> None:
    """Generate, talk, tokenise, pause and resume as SkyRL's trainer does."""
    client = RemoteInferenceClient(
        proxy_url=url, server_urls=[url], data_parallel_size=1, model_name="rose"
    )
    output = await client.generate(
        {
            "prompts": None,
            "prompt_token_ids": [[10, 20, 30], [5, 6]],
            "sampling_params": SAMPLING,
            "session_ids": ["a", "b"],
        },
        model="rose",
    )
    assert all(1 <= len(ids) <= 8 for ids in output["response_ids"]), output
    lengths = [len(one) for one in output["response_logprobs"]]
    assert lengths == [len(ids) for ids in output["response_ids"]]
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "session_id": "a"}
    said = await client.chat_completion({"json": body})
    assert said["choices"][0]["message"]["role"] == "assistant"
    (ids,) = await client.tokenize(["hello"])
    (text,) = await client.detokenize([ids])
    assert text == "hello", (ids, text)
    await client.pause_generation()
    await client.resume_generation()
    await client.reset_prefix_cache()
    await client.finish_session("a")
    print("world size:", await client.get_world_size())
    await client.teardown()


asyncio.run(main(sys.argv[1]))
print("skyrl: ok")
