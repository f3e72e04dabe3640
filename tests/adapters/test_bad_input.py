"""Bad input to the rollout service: a clear status and sentence, and nobody else is harmed."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from rose.adapters import ServiceLimits
from rose.adapters.listening import listening
from tests.adapters.rig import BODY, JSON, Exchange, rigged, truth, until
from tests.waiting import LONG_S

LIMITS = ServiceLimits(
    sequences=8, choices=4, context_tokens=1000, body_bytes=20_000, body_s=0.05, request_s=60
)
ODD = "\ud800"


def of(**changes) -> bytes:
    return json.dumps({"prompt": [1, 2], "max_tokens": 4, **changes}).encode()


BODIES = [
    # (body, status, what its sentence says)
    (b"", 400, "the body must be JSON"),
    (b"{", 400, "the body must be JSON"),
    (b"null", 400, "must be a JSON object, got NoneType"),
    (b"[]", 400, "must be a JSON object, got list"),
    (b"\xff\xfe", 400, "the body must be JSON"),
    (b"[" * 19_000, 400, "the body must be JSON: maximum recursion depth"),
    (b'{"max_tokens": ' + b"9" * 5000 + b"}", 400, "the body must be JSON: Integer value out"),
    (of(prompt=None), 400, "prompt: expected `str | array`, got `null`"),
    (of(prompt=[]), 400, "prompt must have at least one token"),
    (of(prompt=""), 400, "prompt must have at least one token"),
    (of(prompt=[[]]), 400, "prompt must have at least one token"),
    (of(prompt=[1, "a"]), 400, "prompt must be token ids: Expected `int`, got `str` - at `$[1]`"),
    (of(prompt=[1.5]), 400, "prompt[0] must be token ids: Expected `array`, got `float`"),
    (of(prompt=[[1], [2, 1.5]]), 400, "prompt[1] must be token ids"),
    (of(prompt=[-1]), 400, "prompt must be token ids: Expected `int` >= 0"),
    (of(prompt=[1 << 60]), 400, "prompt must be token ids: Expected `int` <= 1099511627776"),
    (of(prompt="text"), 400, "the service has no tokenizer"),
    (of(prompt=["text"]), 400, "the service has no tokenizer"),
    (of(prompt=[1] * 999), 400, "maximum context length is 1000 tokens, but the prompt has 999"),
    (of(prompt=[1] * 1000), 400, "reduce the length of the messages"),
    (of(prompt=[[1]] * 5), 400, "1 to 4 sequences, got 5"),
    (of(max_tokens=-1), 400, "max_tokens: expected `int` >= 0"),
    (of(max_tokens="5"), 400, "max_tokens: expected `int | null`, got `str`"),
    (of(max_tokens=1 << 50), 400, "max_tokens"),
    (of(n=0), 400, "n: expected `int` >= 1"),
    (of(n=5), 400, "1 to 4 sequences, got 5"),
    (of(n=True), 400, "n: expected `int | null`, got `bool`"),
    (of(temperature=-1), 400, "temperature: expected `float` >= 0"),
    (of(temperature=float("nan")), 400, "the body must be JSON"),
    (of(temperature="hot"), 400, "temperature"),
    (of(seed=1.5), 400, "seed: expected `int | null`, got `float`"),
    (of(top_p=0), 400, "top_p: expected `float` > 0"),
    (of(top_p=0.9), 400, "top_p needs workers with top_p; features of all workers: "),
    (of(top_k=50), 400, "top_k needs workers with top_k"),
    (of(min_p=0.1), 400, "min_p needs workers with min_p"),
    (of(presence_penalty=1), 400, "presence_penalty needs workers with penalties"),
    (of(repetition_penalty=1.1), 400, "repetition_penalty needs workers with penalties"),
    (of(stop=["\n"]), 400, "stop must be null: this service has no tokenizer"),
    (of(logit_bias={"5": 1}), 400, "logit_bias needs workers with logit_bias"),
    (of(logprobs=21), 400, "logprobs: expected `int` <= 20"),
    (of(prompt_logprobs=1), 400, "prompt_logprobs needs workers with prompt_logprobs"),
    (of(structured_outputs={"regex": "a"}), 400, "structured_outputs needs workers with"),
    (of(response_format={"type": "json_object"}), 400, "structured_outputs needs workers with"),
    (of(response_format={"type": "xml"}), 400, "response_format must be text, json_object or"),
    (of(response_format={"type": "json_schema"}), 400, "must have json_schema.schema"),
    (of(echo=True, logprobs=0), 400, "prompt_logprobs needs workers with prompt_logprobs"),
    (of(use_beam_search=True), 400, "use_beam_search must be False, got True"),
    (of(best_of=2), 400, "best_of must be 1, got 2"),
    (of(best_of=True), 400, "best_of must be 1, got True"),
    (of(bad_words=["x"]), 400, "bad_words must be [] or {} or '', got ['x']"),
    (of(truncate_prompt_tokens=3), 400, "truncate_prompt_tokens must be null, got 3"),
    (of(tempurature=1), 400, "tempurature: no such field"),
    (of(**{ODD: 1}), 400, "the body must be JSON"),
    (of(model=ODD), 400, "the body must be JSON"),
    (of(model="gpt"), 404, "model must be 'trial', got 'gpt'"),
    (of(weight_version=3), 400, "weight_version: expected `object | null`, got `int`"),
    (of(weight_version={"min": -1}), 400, "weight_version.min: expected `int` >= 0"),
    (of(weight_version={"newest": 1}), 400, "unknown field `newest`"),
    (of(weight_version={"min": 99}), 409, "at least 99; versions of workers: 0"),
    (of(weight_version={"exact": 99}), 409, "exactly 99; versions of workers: 0"),
    (of(weight_version={"exact": 99}, stream=True), 409, "exactly 99"),
    (of(stream="yes"), 400, "stream"),
    (b" " * 20_001, 413, "at most 20000 bytes, got 20001"),
]


async def test_a_bad_completion_is_refused_in_one_sentence(subtests) -> None:
    async with rigged(1, LIMITS) as rig:
        for body, status, says in BODIES:
            with subtests.test(body=body[:80], says=says):
                answer = await rig.client.post("/v1/completions", content=body, headers=JSON)
                said = answer.json()["error"]
                code = "context_length_exceeded" if "context length" in says else status
                code = "context_length_exceeded" if "reduce the length" in says else code
                assert (answer.status_code, said["code"]) == (status, code)
                assert says in said["message"]
                assert "\n" not in said["message"]
                assert rig.service.sequence_count() == 0


OTHERS = [
    ("GET", "/nothing", b"", 404, "Not Found"),
    ("GET", "/v1/completions", b"", 405, "the method must be POST, got GET"),
    ("POST", "/v1/models", b"", 405, "Method Not Allowed"),
    ("POST", "/pause?mode=forever", b"", 400, "mode"),
    ("POST", "/update_weights", b"{", 400, "the body must be JSON: Expecting property name"),
    ("POST", "/abort_request", b"{}", 400, "a body must have rid or abort_all"),
    ("POST", "/pause_generation", b'{"mode": "x"}', 400, "one of abort, retract, in_place, got x"),
    ("POST", "/tokenize", b"{}", 400, "either prompt or messages"),
    ("POST", "/detokenize", b'{"tokens": [1]}', 400, "which this service does not have"),
    ("POST", "/collective_rpc", b"{}", 501, "rose.publish"),
    ("POST", "/generate", b"{}", 400, "either input_ids or text"),
    ("POST", "/generate", b'{"input_ids": [1], "sampling_params": {"x": 1}}', 400, "_params.x: no"),
    ("POST", "/inference/v1/generate", b'{"token_ids": []}', 400, "token_ids: expected `array`"),
    ("POST", "/init_weight_transfer_engine", b'{"init_info": 5}', 400, "init_info"),
    ("POST", "/publish_weight_version", b'{"version": -1}', 400, "version"),
    ("POST", "/publish_weight_version", b'{"version": 9e99}', 400, "version"),
    ("POST", "/v1/chat/completions", b'{"messages": []}', 400, "messages"),
    ("POST", "/v1/chat/completions", b'{"messages": [{"role": "u"}]}', 400, "tokenizer"),
    (
        "POST",
        "/v1/chat/completions",
        b'{"messages": [{"role": "u", "content": [{"type": "image_url"}]}]}',
        400,
        "messages[0].content must be a text or parts with text, got 'image_url'",
    ),
    (
        "POST",
        "/v1/chat/completions",
        b'{"messages": [{"role": "u"}], "chat_template_kwargs": {"chat_template": "x"}}',
        400,
        "must not replace the chat template",
    ),
]


async def test_a_bad_request_to_another_route_is_refused(subtests) -> None:
    async with rigged(1, LIMITS) as rig:
        for method, path, body, status, says in OTHERS:
            with subtests.test(path=path, body=body):
                answer = await rig.client.request(method, path, content=body, headers=JSON)
                assert answer.status_code == status
                assert says in answer.json()["error"]["message"]


async def test_without_the_token_nothing_is_said(subtests) -> None:
    async with rigged(1, token="secret") as rig:
        for shown in (
            None,
            "",
            "Bearer",
            "Bearer wrong",
            "Basic secret",
            "secret",
            "Bearer secret2",
        ):
            headers = {} if shown is None else {"authorization": shown}
            with subtests.test(shown=shown):
                for path in ("/v1/models", "/nothing", "/openapi.json"):
                    answer = await rig.client.get(path, headers=headers)
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"] == "Bearer"
                assert (await rig.client.post("/pause", headers=headers)).status_code == 401
                assert not rig.service.is_paused
                assert (await rig.client.get("/health", headers=headers)).status_code == 200


async def test_with_the_token_all_is_as_without_one() -> None:
    async with rigged(1, token="secret") as rig:
        rig.client.headers["authorization"] = "bearer secret"
        said = (await rig.ask("/v1/completions", BODY)).json()
        assert said["choices"][0]["token_ids"] == truth()


async def test_a_version_from_the_future_harms_nobody() -> None:
    async with rigged(1) as rig:
        answer = await rig.post("/publish_weight_version", {"version": 1 << 40})
        assert answer.status_code == 400
        assert "version must be at most 1000000000, got" in answer.json()["error"]["message"]
        said = (await rig.ask("/v1/completions", BODY)).json()
        assert said["choices"][0]["token_ids"] == truth()


async def test_overload_is_429_and_says_when_to_come_back() -> None:
    async with rigged(1, LIMITS) as rig:
        others = [rig.later("/v1/completions", {**BODY, "n": 4}) for _ in range(2)]
        await until(lambda: rig.service.sequence_count() == 8)
        for stream in (False, True):
            answer = await rig.post("/v1/completions", {**BODY, "stream": stream})
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert "8 of 8 sequences are in flight" in answer.json()["error"]["message"]
        for other in others:
            choices = (await rig.play(other)).json()["choices"]
            assert [one["token_ids"] for one in choices] == [truth(place=n) for n in range(4)]
        await rig.until_empty()
        assert (await rig.ask("/v1/completions", BODY)).status_code == 200


async def test_more_requests_than_the_service_may_have_are_refused_unread() -> None:
    async with rigged(1, ServiceLimits(sequences=2, body_s=60)) as rig:
        waiting = [Exchange(rig.app, "/v1/completions", JSON) for _ in range(4)]
        await asyncio.sleep(0.01)
        answer = await rig.client.get("/v1/models")
        assert answer.status_code == 429
        assert (await rig.client.get("/health")).status_code == 200
        for one in waiting:
            one.leave()
            await one.task
        assert (await rig.client.get("/v1/models")).status_code == 200


async def test_a_body_that_never_ends_is_refused_after_a_time() -> None:
    async with rigged(1, LIMITS) as rig:
        exchange = Exchange(rig.app, "/v1/completions", JSON)
        exchange.give(b'{"prompt":', more=True)
        await exchange.task
        assert exchange.status == 408
        assert b"must arrive within 0.05 s" in exchange.body


async def test_a_body_that_is_larger_than_it_said_is_refused() -> None:
    async with rigged(1, LIMITS) as rig:
        exchange = Exchange(rig.app, "/v1/completions", {**JSON, "content-length": "5"})
        for _ in range(3):
            exchange.give(b" " * 10_000, more=True)
        await exchange.task
        assert exchange.status == 413


async def test_a_client_that_goes_within_its_body_leaves_nothing() -> None:
    async with rigged(1, LIMITS) as rig:
        exchange = Exchange(rig.app, "/v1/completions", JSON)
        exchange.give(b'{"prompt":', more=True)
        exchange.leave()
        await exchange.task
        assert not exchange.sent
        assert rig.service.sequence_count() == 0


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("sent", [b"G", b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx: "])
async def test_a_head_that_never_ends_closes_the_connection(monkeypatch, sent, is_second) -> None:
    monkeypatch.setattr("rose.adapters.connections._HEAD_S", 0.05)
    async with rigged(1, LIMITS) as rig, listening(rig.app) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        if is_second:
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"}]}"), LONG_S)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), LONG_S) == b""
        writer.close()


async def test_a_client_that_sends_nothing_is_hung_up(monkeypatch) -> None:
    monkeypatch.setattr("rose.adapters.connections._HEAD_S", 0.05)
    async with rigged(1, LIMITS) as rig, listening(rig.app) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        assert await asyncio.wait_for(reader.read(), LONG_S) == b""
        writer.close()


async def test_two_lengths_of_one_body_are_refused() -> None:
    body = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
    async with rigged(1, LIMITS) as rig, listening(rig.app) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        answer = await asyncio.wait_for(reader.read(), LONG_S)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"one length of its body" in answer
    assert answer.count(b"HTTP/1.1 ") == 1
