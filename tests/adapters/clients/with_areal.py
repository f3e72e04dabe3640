"""AReaL's requests and readers of answers against a service: python with_areal.py URL."""

import sys

import requests
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelRequest
from areal.engine.sglang_remote import SGLangBackend
from areal.engine.vllm_remote import VLLMBackend

URL = sys.argv[1]


def call(made: object) -> dict:
    """Send a request that AReaL has built."""
    send = getattr(requests, made.method.lower())
    options = {} if made.method == "GET" else {"json": made.payload}
    answer = send(URL + made.endpoint, timeout=30, **options)
    assert answer.ok, answer.text
    return answer.json()


request = ModelRequest(
    input_ids=[10, 20, 30],
    gconfig=GenerationHyperparameters(max_new_tokens=8, temperature=1.0),
)
for backend in (SGLangBackend(), VLLMBackend()):
    name = type(backend).__name__
    call(backend.get_health_check_request())
    made = backend.build_generation_request(request, with_lora=False, version=0)
    result = backend.parse_generation_response(call(made))
    assert 1 <= len(result.output_tokens) <= 8, result
    assert len(result.output_logprobs) == len(result.output_tokens)
    print(name, result.stop_reason, result.output_tokens)
sglang = SGLangBackend()
call(sglang.get_pause_request())
call(sglang.get_resume_request())
print("areal: ok")
