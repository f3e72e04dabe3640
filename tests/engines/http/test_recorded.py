"""Streams that vLLM 0.32 really sent."""

from pathlib import Path

import pytest
from aiohttp import web

from rose.scheduler.worker import Options, TurnEnd, TurnOutput
from tests.engines.http.rig import Rig, rigged

FOLDER = Path(__file__).parent / "recorded"


async def played(rig: Rig, name: str, **changes: object) -> TurnOutput:
    async def answer(_: web.Request) -> web.Response:
        body = (FOLDER / f"vllm-0.32-{name}.txt").read_bytes()
        return web.Response(body=body, content_type="text/event-stream")

    rig.engine.answers = [answer]
    return await rig.play(**changes)


async def test_turn_to_its_limit() -> None:
    async with rigged() as rig:
        last = await played(rig, "length")
        assert rig.tokens() == [74, 346, 182, 244]
        assert last.end is TurnEnd.FINISHED
        assert last.stop_reason is None
        assert last.logprobs[0] == pytest.approx(-0.11853816)
        assert last.cached_tokens == 0


async def test_turn_to_its_stop_token_with_top_logprobs() -> None:
    async with rigged() as rig:
        last = await played(rig, "stop", options=Options(logprobs=1), stop_tokens=(258,))
        assert rig.tokens()[:5] == [74, 346, 182, 244, 245]
        assert last.end is TurnEnd.FINISHED
        tops = [top for one in rig.outputs() for top in one.top_logprobs]
        assert len(tops) == len(rig.tokens())
        assert tops[0] == ((74, pytest.approx(-0.11853816)),)


@pytest.mark.parametrize(
    ("name", "end", "count"),
    [
        ("aborted", TurnEnd.INTERRUPTED, 2),
        ("engine-died", TurnEnd.FAILED, 2),
        ("refused", TurnEnd.REFUSED, 0),
    ],
)
async def test_turn_that_ends_early(name: str, end: TurnEnd, count: int) -> None:
    async with rigged() as rig:
        last = await played(rig, name)
        assert last.end is end
        assert rig.tokens() == [74, 346][:count]
        assert (last.error is None) is (end is TurnEnd.INTERRUPTED)
