"""Answers of the generating routes: streams, texts, log-probabilities, and what ends them."""

import asyncio
import json

import pytest

from rose.adapters.exchange import Exchange as Asked
from rose.adapters.logprobs import TokenTexts, of_prompt
from tests.adapters.rig import BODY, JSON, PROMPT, Exchange, events_of, rigged, truth, until
from tests.adapters.test_routes import Bytes

SAMPLING = {"max_new_tokens": 6, "seed": 7}


async def test_sglang_streams_the_output_so_far() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        body = {"input_ids": PROMPT, "sampling_params": SAMPLING, "return_logprob": True}
        events = events_of((await rig.ask("/generate", {**body, "stream": True})).text)
        whole = (await rig.ask("/generate", {**body, "sampling_params": SAMPLING})).json()
        assert [one["output_ids"] for one in events] == [truth()[: n + 1] for n in range(6)]
        for one in events:
            pairs = one["meta_info"]["output_token_logprobs"]
            assert [token for _, token, _ in pairs] == one["output_ids"]
        assert events[-1]["text"] == whole["text"]
        assert [one["meta_info"]["finish_reason"] for one in events[:-1]] == [None] * 5
        assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}


async def test_vllms_token_route_streams_new_tokens() -> None:
    async with rigged() as rig:
        sampling = {"max_tokens": 6, "seed": 7, "logprobs": 0}
        body = {"token_ids": PROMPT, "sampling_params": sampling, "stream": True}
        events = events_of((await rig.ask("/inference/v1/generate", body)).text)
        choices = [one["choices"][0] for one in events]
        assert [token for one in choices for token in one["token_ids"]] == truth()
        assert len(choices) > 1
        assert choices[-1]["finish_reason"] == "length"
        assert choices[-1]["weight_versions"] == [{"version": "0", "start": 0, "end": 6}]


async def test_without_a_tokenizer_every_answer_has_token_ids() -> None:
    async with rigged() as rig:
        (choice,) = (await rig.ask("/v1/completions", {**BODY, "return_token_ids": False})).json()[
            "choices"
        ]
        assert choice["token_ids"] == truth()
        assert "prompt_token_ids" not in choice
    async with rigged(tokenizer=Bytes()) as rig:
        (choice,) = (await rig.ask("/v1/completions", {**BODY, "return_token_ids": False})).json()[
            "choices"
        ]
        assert "token_ids" not in choice


async def test_several_prompts_of_sglang_are_answered_by_a_list() -> None:
    async with rigged() as rig:
        body = {"input_ids": [PROMPT, [9]], "sampling_params": SAMPLING}
        answers = (await rig.ask("/generate", body)).json()
        assert [one["output_ids"] for one in answers] == [truth(), truth(place=1, prompt=1)]
        body = {"input_ids": [PROMPT], "sampling_params": SAMPLING}
        assert isinstance((await rig.ask("/generate", body)).json(), list)
        body = {"input_ids": PROMPT, "sampling_params": SAMPLING}
        assert isinstance((await rig.ask("/generate", body)).json(), dict)


async def test_a_stop_text_ends_text_and_tokens_alike() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        body = {"prompt": "abc", "max_tokens": 200, "seed": 3, "ignore_eos": True}
        free = (await rig.ask("/v1/completions", {**body, "return_token_ids": True})).json()
        tokens = free["choices"][0]["token_ids"]
        place = next(n for n, token in enumerate(tokens) if n > 3 and 32 <= token < 127)
        stop = chr(tokens[place])
        first = next(n for n, token in enumerate(tokens) if chr(token) == stop)
        body |= {"stop": [stop], "return_token_ids": True, "logprobs": 0}
        for stream in (False, True):
            answer = await rig.ask("/v1/completions", {**body, "stream": stream})
            choices = (
                [one["choices"][0] for one in events_of(answer.text)]
                if stream
                else answer.json()["choices"]
            )
            assert [i for one in choices for i in one["token_ids"]] == tokens[: first + 1]
            assert sum(len(one["logprobs"]["tokens"]) for one in choices) == first + 1
            assert "".join(one["text"] for one in choices) == Bytes().decode(tokens[:first])
            assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)


async def test_alternatives_are_reported_in_all_formats() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        body = {**BODY, "logprobs": 2}
        made = (await rig.ask("/v1/completions", body)).json()["choices"][0]["logprobs"]
        assert all(len(one) in {2, 3} for one in made["top_logprobs"])
        assert [one[text] for one, text in zip(made["top_logprobs"], made["tokens"], strict=True)]
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
        said = await rig.ask("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2})
        content = said.json()["choices"][0]["logprobs"]["content"]
        assert [len(one["top_logprobs"]) for one in content] == [2] * len(content)
        body = {"input_ids": PROMPT, "sampling_params": SAMPLING, "return_logprob": True}
        meta = (await rig.ask("/generate", {**body, "top_logprobs_num": 2})).json()["meta_info"]
        assert [len(one) for one in meta["output_top_logprobs"]] == [2] * 6


async def test_an_echo_puts_the_prompt_before_the_output() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        body = {"prompt": "abc", "max_tokens": 2, "seed": 7, "echo": True, "ignore_eos": True}
        said = (await rig.ask("/v1/completions", body)).json()["choices"][0]
        assert said["text"] == "abc" + Bytes().decode(truth(count=2))
        said = (await rig.ask("/v1/completions", {**body, "max_tokens": 0})).json()["choices"][0]
        assert said["text"] == "abc"


class Parts(Bytes):
    """Bytes, with the names that byte-level BPE and byte fallback give to them."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names

    def convert_ids_to_tokens(self, ids):
        return [self.names[one] for one in ids]


@pytest.mark.parametrize("name", ["<0xE2>", "\u00e2"])
def test_a_part_of_a_character_has_its_own_bytes(name) -> None:
    assert TokenTexts(Parts({0xE2: name})).bytes(0xE2) == [0xE2]
    assert TokenTexts(Bytes()).bytes(ord("a")) == [ord("a")]


def test_logprobs_of_a_prompt_are_read_from_the_engines_answer() -> None:
    found = [None, {"7": {"logprob": -1.0, "rank": 2}, "9": {"logprob": -0.5, "rank": 1}}]
    first, second = of_prompt([5, 7], found)
    assert first is None
    assert (second.token, second.logprob, second.top) == (7, -1.0, [(9, -0.5), (7, -1.0)])
    assert of_prompt([5, 7], None) == [None, None]


async def test_a_silent_stream_is_kept_open_by_comments(monkeypatch) -> None:
    monkeypatch.setattr("rose.adapters.exchange._KEEP_ALIVE_S", 0.01)
    async with rigged(1) as rig:
        exchange = Exchange(rig.app, "/v1/completions", JSON)
        exchange.give(json.dumps({**BODY, "stream": True}).encode())
        await until(lambda: exchange.body.count(b": keep-alive\n\n") >= 2)
        while not exchange.task.done():
            rig.step()
            await asyncio.sleep(0.001)
        await exchange.task
        events = events_of(exchange.body.replace(b": keep-alive\n\n", b"").decode())
        assert [i for one in events for i in one["choices"][0]["token_ids"]] == truth()


async def test_an_aborted_request_answers_with_its_tokens() -> None:
    async with rigged(1) as rig:
        body = {"input_ids": PROMPT, "sampling_params": {**SAMPLING, "max_new_tokens": 900}}
        one = rig.later("/generate", {**body, "rid": "a-1"})
        other = rig.later("/generate", {**body, "rid": "b-1"})
        await until(lambda: len(rig.workers[0]._turns) == 2)
        rig.step()
        await asyncio.sleep(0.05)
        assert (await rig.post("/abort_request", {"rid": "a"})).json()["aborted"] == 1
        said = (await one).json()
        assert said["meta_info"]["finish_reason"]["type"] == "abort"
        assert said["output_ids"] == truth(count=1)
        assert not other.done()
        load = (await rig.client.get("/v1/loads?include=core")).json()["loads"][0]
        assert load["num_running_reqs"] == 1
        assert (await rig.post("/abort_request", {"abort_all": True})).json()["aborted"] == 1
        await other
        load = (await rig.client.get("/v1/loads?include=core")).json()["loads"][0]
        assert load["num_running_reqs"] == 0


@pytest.mark.parametrize("key", [{"headers": {"idempotency-key": "k"}}, {"rid": "k"}])
async def test_a_repeated_request_gets_the_same_answer(key) -> None:
    async with rigged(1) as rig:
        headers = {**JSON, **key.get("headers", {})}
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 6}}
        body |= {"rid": key["rid"]} if "rid" in key else {}

        async def ask(**changes):
            exchange = Exchange(rig.app, "/generate", headers)
            exchange.give(json.dumps({**body, **changes}).encode())
            while not exchange.task.done():
                rig.step()
                await asyncio.sleep(0.001)
            await exchange.task
            return json.loads(exchange.body)["output_ids"]

        first = await ask()
        assert await ask() == first
        assert await ask(session_id="other") != first  # another body is another request


async def test_a_session_is_named_by_header_or_body(monkeypatch) -> None:
    named = []
    async with rigged(1) as rig:
        generate = rig.service.generate

        def noted(asks, **options):
            named.append((options["session"], options["job"]))
            return generate(asks, **options)

        monkeypatch.setattr(rig.service, "generate", noted)
        for headers, body in (
            ({"X-Session-ID": "a"}, {}),
            ({"X-SMG-Routing-Key": "b"}, {}),
            ({"X-Session-ID": "a"}, {"session_id": 5}),
            ({}, {}),
        ):
            rig.client.headers.update(headers)
            await rig.ask("/v1/completions", {**BODY, **body})
            for name in headers:
                del rig.client.headers[name]
    assert named == [("a", 0), ("b", 0), ("5", 0), (None, 0)]


def test_a_header_of_a_request_is_read() -> None:
    asked = Asked({"headers": [(b"a", b"1")]}, b"", None, None)
    assert (asked.header(b"a"), asked.header(b"b")) == ("1", "")


class Begun(Bytes):
    """Bytes after a token that begins a text."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + super().encode(text)


async def test_a_prompt_begins_with_a_special_token_only_if_asked() -> None:
    async with rigged(tokenizer=Begun()) as rig:
        for asked, prompt in ((True, [1, 97]), (None, [1, 97]), (False, [97])):
            body = {"prompt": "a", "max_tokens": 1, "return_token_ids": True}
            said = (await rig.ask("/v1/completions", {**body, "add_special_tokens": asked})).json()
            assert said["choices"][0]["prompt_token_ids"] == prompt
