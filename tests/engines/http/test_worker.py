import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web

from rose.engines.http import worker as module
from rose.scheduler.worker import Options, TurnEnd
from tests.engines.http.fake import CONTEXT, Answer, token_at, tokens_at
from tests.engines.http.rig import PROMPT, rigged, until

DIALECTS = ("vllm", "sglang", "rose")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("burst", [1, 3])
async def test_turn_has_all_tokens_and_its_end_is_with_the_last(dialect: str, burst: int) -> None:
    async with rigged(dialect, burst=burst) as rig:
        last = await rig.play(count=8)
        assert rig.tokens() == tokens_at(3, 8)
        assert last.end is TurnEnd.FINISHED
        assert last.tokens
        assert last.cached_tokens == 1
        assert {one for output in rig.outputs() for one in output.logprobs} == {-1.5}
        assert last.worker == 5
        assert last.grant_epoch == 11


async def test_incremental_stream_of_sglang_has_all_tokens() -> None:
    async with rigged("sglang") as rig:
        rig.engine.is_incremental = True
        rig.worker.facts = replace(rig.worker.facts, is_incremental=True)
        await rig.play(count=9)
        assert rig.tokens() == tokens_at(3, 9)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_stop_token_is_part_of_the_turn_and_named(dialect: str) -> None:
    stop = token_at(3 + 4)
    async with rigged(dialect) as rig:
        last = await rig.play(count=20, stop_tokens=(stop,))
        assert rig.tokens() == tokens_at(3, 5)
        assert (last.end, last.stop_reason) == (TurnEnd.FINISHED, stop)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_recalled_turn_ends_once_with_its_tokens_and_resumes_at_the_next(
    dialect: str,
) -> None:
    async with rigged(dialect) as rig:
        rig.start(count=200)
        await until(lambda: len(rig.outputs()) > 3)
        rig.worker.stop_turn(0)
        assert rig.ends() == [TurnEnd.INTERRUPTED]
        had = rig.tokens()
        await until(lambda: rig.engine.running == 0)  # the stream was closed
        assert rig.engine.decoded < 200
        rig.worker.stop_turn(0)
        assert len(rig.ends()) == 1
        rig.events.clear()
        await rig.play(
            count=200 - len(had), prompt=PROMPT + tuple(had), first_token=len(had), turn=0
        )
        assert had + rig.tokens() == tokens_at(3, 200)
        assert rig.outputs()[0].first_token == len(had)


async def test_turn_of_an_earlier_grant_is_interrupted_at_once() -> None:
    async with rigged() as rig:
        rig.start(grant_epoch=rig.worker.epoch - 1)
        assert rig.ends() == [TurnEnd.INTERRUPTED]
        assert not rig.engine.bodies


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_top_logprobs_are_the_most_likely_first(dialect: str) -> None:
    async with rigged(dialect) as rig:
        await rig.play(options=Options(logprobs=2))
        tops = [top for one in rig.outputs() for top in one.top_logprobs]
        assert len(tops) == 8
        # The sampled token of the fake has a logprob between those of ids 0 and 1.
        assert all(
            [pair[1] for pair in top] == sorted((p[1] for p in top), reverse=True) for top in tops
        )
        assert all(len(top) == 2 and top[0] == (0, -1.0) for top in tops)


async def test_request_has_the_fields_of_the_contract() -> None:
    options = Options(0.9, 40, 0.05, 6, True, 3, {"presence_penalty": 0.5})
    async with rigged("rose") as rig:
        await rig.play(
            prompt=(1, 2, 3, 4), first_token=2, stop_tokens=(9,), temperature=0.7, options=options
        )
        assert rig.engine.bodies[-1] == {
            "model": "tiny",
            "prompt": [1, 2, 3, 4],
            "max_tokens": 8,
            "temperature": 0.7,
            "seed": 7,
            "stop_token_ids": [9],
            "ignore_eos": True,
            "min_tokens": 4,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.05,
            "logprobs": 3,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "return_weight_versions": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "presence_penalty": 0.5,
        }


async def test_only_engines_with_own_seeds_get_others_after_a_move() -> None:
    seeds = {}
    for dialect in ("vllm", "rose"):
        async with rigged(dialect) as rig:
            await rig.play()
            await rig.play(prompt=(1, 2, 3, 4), first_token=1)
            await rig.play(prompt=(1, 2, 3, 4, 5), first_token=2)
            seeds[dialect] = [body["seed"] for body in rig.engine.bodies]
    assert seeds["rose"] == [7, 7, 7]
    assert seeds["vllm"][0] == 7
    assert len(set(seeds["vllm"])) == 3


async def test_an_engine_with_generators_for_seeds_gets_only_those_that_callers_chose() -> None:
    for dialect, seeds in (("vllm", [None]), ("rose", [7])):
        async with rigged(dialect) as rig:
            await rig.play(options=Options(has_seed=False))
            assert [body.get("seed") for body in rig.engine.bodies] == seeds


# ---- answers other than tokens -------------------------------------------------------------------


def refusing(status: int, body: object = None, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return answer


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_invalid_turn_is_refused_with_the_engines_sentence(dialect: str) -> None:
    async with rigged(dialect) as rig:
        last = await rig.play(prompt=(5, 999))
        assert last.end is TurnEnd.REFUSED
        assert "out of" in last.error
        assert not rig.lost
        assert (await rig.play(1)).end is TurnEnd.FINISHED


@pytest.mark.parametrize("status", [408, 409, 425, 429, 503])
async def test_busy_engine_gives_the_turn_back(status: int) -> None:
    async with rigged() as rig:
        rig.engine.answers = [refusing(status, {}, **{"retry-after": "0"})]
        await rig.play()
        assert rig.ends() == [TurnEnd.INTERRUPTED]
        assert not rig.lost


@pytest.mark.parametrize(
    ("told", "seconds"), [("", 1.0), ("0", 0.0), ("17", 17.0), ("999", 30.0), ("Wed, 21 Oct", 1.0)]
)
def test_wait_after_a_refusal_is_the_engines_within_a_limit(told: str, seconds: float) -> None:
    assert module.wait_s(told) == seconds


async def test_fault_of_the_engine_fails_the_turn_only() -> None:
    async with rigged() as rig:
        rig.engine.answers = [refusing(500, {"error": {"message": "out of memory"}})]
        last = await rig.play()
        assert last.end is TurnEnd.FAILED
        assert "out of memory" in last.error
        assert not rig.lost


@pytest.mark.parametrize("status", [401, 404])
async def test_engine_that_knows_no_such_model_or_client_is_lost(status: int) -> None:
    async with rigged() as rig:
        rig.engine.answers = [refusing(status, {"error": {"message": "no such model"}})]
        rig.start()
        await until(lambda: rig.lost)
        assert "no such model" in rig.lost[0].reason
        assert rig.ends() == [TurnEnd.INTERRUPTED]  # It is not the turn's fault.


@pytest.mark.parametrize(
    ("event", "end"),
    [
        ({"error": {"message": "bad", "code": 400}}, TurnEnd.REFUSED),
        ({"error": {"message": "bad", "code": 500}}, TurnEnd.FAILED),
        (
            {"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1]}}]},
            TurnEnd.FAILED,
        ),
        ({"choices": [{"token_ids": None, "logprobs": {"token_logprobs": [-1]}}]}, TurnEnd.FAILED),
        ({"choices": [{"token_ids": [], "finish_reason": "abort"}]}, TurnEnd.INTERRUPTED),
        ({"choices": "none"}, TurnEnd.FAILED),
    ],
)
async def test_event_that_ends_a_turn_early(event: object, end: TurnEnd) -> None:
    async with rigged() as rig:
        text = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"

        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=text, content_type="text/event-stream")

        rig.engine.answers = [answer]
        last = await rig.play()
        assert last.end is end
        assert not rig.lost
        assert not rig.worker.running


async def test_comments_and_split_events_change_nothing() -> None:
    async def pieces(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        choice = {"token_ids": [4], "logprobs": {"token_logprobs": [-1.0]}}
        last = {"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
        text = f": ping\r\n\r\ndata: {json.dumps({'choices': [choice]})}\r\n\r\n"
        text += f": ping\n\ndata:{json.dumps({'choices': [last]})}\n\n"
        for letter in text:
            await answer.write(letter.encode())
            await asyncio.sleep(0)
        return answer

    async with rigged() as rig:
        rig.engine.answers = [pieces]
        last = await rig.play()
        assert rig.tokens() == [4, 5]
        assert last.end is TurnEnd.FINISHED


# ---- turns that cannot be continued --------------------------------------------------------------


async def test_a_whole_turn_reports_its_tokens_only_at_its_end() -> None:
    options = Options(is_whole=True, fields={"presence_penalty": 1.0})
    async with rigged() as rig:
        await rig.play(options=options)
        assert [len(one.tokens) for one in rig.outputs()] == [8]
        rig.start(1, count=CONTEXT, options=options)
        await until(lambda: rig.engine.decoded > 12)
        rig.worker.stop_turn(1)
        assert [(one.tokens, one.end) for one in rig.outputs(1)] == [((), TurnEnd.INTERRUPTED)]


async def test_prompt_logprobs_come_with_the_end() -> None:
    options = Options(is_whole=True, fields={"prompt_logprobs": 1})
    async with rigged() as rig:
        last = await rig.play(options=options)
        assert rig.tokens() == tokens_at(3, 8)
        assert last.extras == {"prompt_logprobs": [None, {"5": {"logprob": -1.0}}]}
        assert "stream" not in rig.engine.bodies[-1]


async def test_option_that_sglang_lacks_is_refused_by_name() -> None:
    async with rigged("sglang") as rig:
        last = await rig.play(options=Options(fields={"bad_words": ["x"]}))
        assert last.end is TurnEnd.REFUSED
        assert "bad_words" in last.error
