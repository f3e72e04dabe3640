"""The routes of the rollout service, as trainers and environments call them."""

import asyncio

import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from rose.adapters import ServiceLimits
from rose.adapters.text import StreamedText
from tests.adapters.rig import BODY, JSON, PROMPT, Exchange, events_of, rigged, truth, until


class Bytes:
    """A tokenizer whose tokens are bytes; 0 ends a text and is special."""

    eos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids, *, skip_special_tokens: bool = True) -> str:
        kept = [one for one in ids if one or not skip_special_tokens]
        return bytes(kept).decode(errors="replace")

    def apply_chat_template(self, messages, *, tokenize, return_dict, **options) -> list[int]:
        if options.get("shout"):
            raise ValueError("it does not shout")
        said = "".join(f"<{one['role']}>{one['content']}" for one in messages)
        return self.encode(said + "<assistant>" * options["add_generation_prompt"])


async def test_completions_of_several_prompts_are_told_apart_and_say_their_versions() -> None:
    async with rigged() as rig:
        body = {**BODY, "prompt": [PROMPT, [9]], "n": 2, "logprobs": 0}
        said = (await rig.ask("/v1/completions", {**body, "return_weight_versions": True})).json()
        assert said["object"] == "text_completion"
        assert said["usage"] == {
            "prompt_tokens": 4,
            "completion_tokens": 24,
            "total_tokens": 28,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        for place, choice in enumerate(said["choices"]):
            prompt = body["prompt"][place // 2]
            assert choice["index"] == place
            assert choice["prompt_token_ids"] == prompt
            assert choice["token_ids"] == truth(place=place, prompt=len(prompt))
            assert choice["logprobs"]["token_logprobs"] == pytest.approx([-5.545177] * 6)
            assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]
            assert choice["finish_reason"] == "length"
            assert choice["weight_version"] == {"start": 0, "end": 0}
            assert choice["weight_versions"] == [{"version": "0", "start": 0, "end": 6}]
        await rig.until_empty()


async def test_a_stream_joins_to_the_whole_answer() -> None:
    async with rigged() as rig:
        options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 0}
        answer = await rig.ask("/v1/completions", {**BODY, **options, "n": 2})
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, usage = events_of(answer.text)
        for place in range(2):
            choices = [one["choices"][0] for one in events if one["choices"][0]["index"] == place]
            assert [i for one in choices for i in one["token_ids"]] == truth(place=place)
            logprobs = [i for one in choices for i in one["logprobs"]["token_logprobs"]]
            assert logprobs == pytest.approx([-5.545177] * 6)
            *others, last = (one["finish_reason"] for one in choices)
            assert (set(others), last) == ({None}, "length")
            assert choices[0]["prompt_token_ids"] == PROMPT
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 12
        await rig.until_empty()


async def test_a_stream_says_each_token_before_the_next_is_made() -> None:
    async with rigged(1) as rig:
        exchange = Exchange(rig.app, "/v1/completions", JSON)
        exchange.give(b'{"prompt": [1], "max_tokens": 3, "stream": true, "return_token_ids": true}')
        await until(lambda: rig.workers[0]._turns)
        for count in range(1, 4):
            rig.step()
            await until(lambda count=count: exchange.body.count(b"token_ids") > count)
            assert not exchange.task.done() or count == 3
        await exchange.task
        assert exchange.body.endswith(b"data: [DONE]\n\n")


async def test_an_error_after_the_first_token_is_the_last_event() -> None:
    async with rigged(1) as rig:
        exchange = Exchange(rig.app, "/v1/completions", JSON)
        exchange.give(b'{"prompt": [1], "stream": true, "weight_version": {"exact_version": 0}}')
        await until(lambda: rig.workers[0]._turns)
        rig.step()
        await until(lambda: exchange.body)
        rig.workers[0].commit(1)
        await exchange.task
        assert exchange.status == 200
        *_, error = events_of(exchange.body.decode())
        assert error["error"]["code"] == 409
        assert "exactly 0" in error["error"]["message"]
        await rig.until_empty()


async def test_text_in_and_out_with_a_tokenizer() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        body = {"prompt": "abc", "max_tokens": 40, "seed": 7}
        whole = (await rig.ask("/v1/completions", {**body, "logprobs": 0})).json()["choices"][0]
        tokens = truth(count=40)
        tokens = tokens[: tokens.index(0) + 1] if 0 in tokens else tokens
        assert whole["text"] == Bytes().decode(tokens)
        assert len(whole["logprobs"]["tokens"]) == len(tokens)
        answer = await rig.ask("/v1/completions", {**body, "stream": True})
        pieces = [one["choices"][0]["text"] for one in events_of(answer.text)]
        assert "".join(pieces) == whole["text"]


async def test_a_tokenizer_that_comes_later_reads_and_writes_text() -> None:
    async with rigged() as rig:
        body = {"prompt": "abc", "max_tokens": 4, "seed": 7, "logprobs": 0, "ignore_eos": True}
        answer = await rig.ask("/v1/completions", body)
        assert answer.status_code == 400
        assert "no tokenizer" in answer.json()["error"]["message"]
        rig.service.tokenizer = Bytes()
        choice = (await rig.ask("/v1/completions", body)).json()["choices"][0]
        assert choice["text"] == Bytes().decode(truth(count=4))
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


@pytest.mark.parametrize("text", ["plain", "äöü€", "a👍🏽b", "x" * 50, ""])
def test_text_in_pieces_is_the_text(text) -> None:
    ids = list(text.encode())
    for size in (1, 2, 3, 7):
        streamed, said = StreamedText(Bytes(), skip_special_tokens=True), ""
        for at in range(0, len(ids) + 1, size):
            said += streamed.add(ids[at : at + size], is_last=at + size > len(ids))
        assert said == text


async def test_chat_uses_the_template_and_the_end_of_text() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        body = {
            "messages": [{"role": "user", "content": parts}],
            "max_completion_tokens": 5,
            "logprobs": True,
            "return_token_ids": True,
            "seed": 7,
            "ignore_eos": True,
        }
        said = (await rig.ask("/v1/chat/completions", body)).json()
        assert said["object"] == "chat.completion"
        (choice,) = said["choices"]
        prompt = b"<user>hi<assistant>"
        tokens = truth(prompt=len(prompt), count=5)
        assert bytes(choice["prompt_token_ids"]) == prompt
        assert choice["message"] == {"role": "assistant", "content": Bytes().decode(tokens)}
        assert [one["logprob"] for one in choice["logprobs"]["content"]] == (
            pytest.approx([-5.545177] * 5)
        )
        answer = await rig.ask("/v1/chat/completions", {**body, "stream": True})
        first, *events = (one["choices"][0]["delta"] for one in events_of(answer.text))
        assert first == {"role": "assistant", "content": ""}
        assert "".join(one["content"] for one in events) == choice["message"]["content"]


async def test_status_says_what_trainers_read() -> None:
    async with rigged(limits=ServiceLimits(context_tokens=500), dtype="float32") as rig:
        (model,) = (await rig.client.get("/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("trial", 500)
        said = (await rig.client.get("/server_info?config_format=json")).json()
        assert said["vllm_config"]["model_config"]["dtype"] == "torch.float32"
        assert said["vllm_config"]["weight_transfer_config"] is None
        assert said["rose"]["versions"] == {"0": 2}
        assert (await rig.client.get("/get_world_size")).json() == {"world_size": 2}
        assert (await rig.client.get("/version")).status_code == 200
        assert (await rig.client.get("/health")).status_code == 200
    async with rigged(0) as rig:
        assert (await rig.client.get("/health")).status_code == 503


async def test_metrics_count_the_sequences_of_the_service() -> None:
    async with rigged() as rig:
        await rig.ask("/v1/completions", {**BODY, "n": 2})
        scraped = await rig.client.get("/metrics")
        assert scraped.headers["content-type"] == CONTENT_TYPE_LATEST
        samples = {
            (one.name, one.labels.get("state", "")): one.value
            for family in text_string_to_metric_families(scraped.text)
            for one in family.samples
        }
    assert samples["rose_scheduler_num_trajectories", "environment"] == 2
    assert samples["rose_scheduler_tokens_delivered_total", ""] == 2 * BODY["max_tokens"]


async def test_a_pause_over_http_keeps_requests_until_it_ends() -> None:
    async with rigged() as rig:
        answer = rig.later("/v1/completions", BODY)
        await until(lambda: any(worker._turns for worker in rig.workers))
        rig.step()
        paused = (await rig.post("/pause?mode=keep&clear_cache=false")).json()
        assert paused["status"] == "paused"
        assert (await rig.client.get("/is_paused")).json() == {"is_paused": True}
        assert not any(worker._turns for worker in rig.workers)
        assert (await rig.post("/resume")).status_code == 200
        assert (await rig.play(answer)).json()["choices"][0]["token_ids"] == truth()
        assert (await rig.post("/reset_prefix_cache")).json() == {"success": True}


async def test_weights_over_http_become_the_next_version() -> None:
    taken = []

    async def bring(infos, version) -> None:
        taken.append((list(infos), version))
        rig.workers[0].commit(version)

    async with rigged(1, weights=bring) as rig:
        paths = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights")
        bodies = ({"init_info": {}}, {"is_checkpoint_format": True}, {"update_info": {"a": 1}})
        for path, body in zip(paths, bodies, strict=True):
            assert (await rig.post(path, body)).status_code == 200
        await rig.post("/update_weights", {"update_info": {"b": 2}})
        assert not taken
        assert (await rig.post("/finish_weight_update")).json()["weight_version"] == 1
        assert taken == [([{"a": 1}, {"b": 2}], 1)]
        said = (await rig.post("/update_weights", {"weight_dir": "step_2"})).json()
        assert said["weight_version"] == 2
        assert taken[1] == ([{"weight_dir": "step_2"}], 2)
        await rig.post("/start_weight_update")
        answer = await rig.post("/finish_weight_update", {"weight_version": 9})
        assert answer.json()["weight_version"] == 9
        assert (await rig.post("/finish_weight_update")).status_code == 400
        await rig.post("/start_weight_update")
        answer = await rig.post("/finish_weight_update", {"weight_version": 9})
        assert (
            "must be above 9 and at most 1099511627776, got 9" in answer.json()["error"]["message"]
        )
        nccl = {"init_info": {"master_address": "x"}}
        assert (await rig.post("/init_weight_transfer_engine", nccl)).status_code == 501


async def test_without_a_source_weights_come_by_publish_and_are_reported() -> None:
    async with rigged() as rig:
        for path in ("/start_weight_update", "/finish_weight_update"):
            answer = await rig.post(path)
            assert answer.status_code == 501
            assert "rose.publish" in answer.json()["error"]["message"]
        assert (await rig.post("/update_weights", {})).status_code == 501
        assert (await rig.post("/publish_weight_version", {"version": 4})).json() == {
            "published": 4,
            "versions": {"0": 2},
        }
        assert (await rig.post("/publish_weight_version", {"version": 3})).status_code == 400
        rig.workers[1].commit(4)
        await until(lambda: rig.service.versions() == {0: 1, 4: 1})
        body = {**BODY, "weight_version": {"min": 4}}
        (choice,) = (await rig.ask("/v1/completions", body)).json()["choices"]
        assert choice["token_ids"] == truth(version=4)
        assert choice["weight_version"] == {"start": 4, "end": 4}


async def test_a_client_that_goes_away_cancels_its_turn_and_no_other() -> None:
    for stream in (b"true", b"false"):
        async with rigged(1) as rig:
            other = rig.later("/v1/completions", BODY)
            await until(lambda: rig.workers[0]._turns)
            exchange = Exchange(rig.app, "/v1/completions", JSON)
            exchange.give(b'{"prompt": [1], "max_tokens": 9000, "stream": ' + stream + b"}")
            await until(lambda: len(rig.workers[0]._turns) == 2)
            rig.step()
            await asyncio.sleep(0.01)
            exchange.leave()
            await exchange.task
            await until(lambda: len(rig.workers[0]._turns) == 1)
            answer = await rig.play(other)
            assert answer.json()["choices"][0]["token_ids"] == truth()
            await rig.until_empty()


async def test_a_client_that_goes_before_its_stream_begins_leaves_nothing() -> None:
    async with rigged(1) as rig:
        exchange = Exchange(rig.app, "/v1/completions", JSON)
        exchange.give(b'{"prompt": [1], "max_tokens": 9000, "stream": true}')
        exchange.leave()
        await exchange.task
        await rig.until_empty()


async def test_token_ids_in_and_out_as_skyrl_and_prime_rl_ask_for_them() -> None:
    async with rigged() as rig:
        body = {
            "request_id": "r",
            "model": "trial",
            "token_ids": PROMPT,
            "features": None,
            "sampling_params": {"max_tokens": 6, "seed": 7, "logprobs": 1, "n": 2, "top_k": -1},
        }
        said = (await rig.ask("/inference/v1/generate", body)).json()
        assert said["request_id"] == "r"
        for place, choice in enumerate(said["choices"]):
            assert choice["token_ids"] == truth(place=place)
            content = choice["logprobs"]["content"]
            assert [one["token"] for one in content] == [
                f"token_id:{token}" for token in choice["token_ids"]
            ]
            assert choice["weight_versions"] == [{"version": "0", "start": 0, "end": 6}]
            assert choice["finish_reason"] == "length"
        answer = await rig.post("/inference/v1/generate", {**body, "model": "other"})
        assert answer.status_code == 404


async def test_token_ids_in_and_out_with_versions_as_slime_and_miles_ask_for_them() -> None:
    async with rigged(tokenizer=Bytes()) as rig:
        stop = truth()[3]
        body = {
            "input_ids": PROMPT,
            "sampling_params": {
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": -1,
                "max_new_tokens": 6,
                "stop": None,
                "stop_token_ids": [stop],
                "skip_special_tokens": False,
                "no_stop_trim": True,
                "spaces_between_special_tokens": False,
                "sampling_seed": 7,
            },
            "return_logprob": True,
            "return_routed_experts": False,
            "return_indexer_topk": False,
            "weight_version": {"min_version": 0},
        }
        said = (await rig.ask("/generate", body)).json()
        tokens = truth()[: truth().index(stop) + 1]
        meta = said["meta_info"]
        assert said["output_ids"] == [token for _, token, _ in meta["output_token_logprobs"]]
        assert said["output_ids"] == tokens
        assert said["text"] == Bytes().decode(tokens, skip_special_tokens=False)
        assert meta["finish_reason"] == {"type": "stop", "matched": stop}
        assert (meta["weight_version"], meta["weight_version_end"]) == ("0", "0")
        answer = await rig.post("/generate", {**body, "weight_version": {"exact_version": 2}})
        assert answer.status_code == 409
        assert answer.json()["error"]["versions"] == {"0": 2}
        assert int(answer.headers["retry-after"]) >= 1
        several = {"max_new_tokens": 1, "n": 3}
        body = {"input_ids": PROMPT, "sampling_params": several}
        assert len((await rig.ask("/generate", body)).json()) == 3
