"""Tokens change hands once, whatever workers repeat, leave out or take with them."""

import asyncio

import pytest
from msgspec.structs import replace

from rose.scheduler.worker import GrantChanged, TurnEnd, WorkerEvent, WorkerKind, WorkerLost
from tests.lab.demo.rl.play import logprob_at, token_at, version_at
from tests.scheduler.driver_world import SAMPLING, first_prompt, truth
from tests.scheduler.elastic_rig import (
    ask,
    assert_true,
    bring,
    opened,
    speak_until,
    until,
)

# Trajectories whose first turn ends for its length, and at its last token.
CUT, ENDED = (
    next(n for n in range(100) if truth(n, first_prompt(n), 0).is_cut is is_cut)
    for is_cut in (True, False)
)


async def test_of_what_overlaps_each_token_is_taken_once_and_none_beyond_the_turn() -> None:
    said: list[WorkerEvent] = []
    async with opened() as scheduler:
        worker = await bring(scheduler, 0, on_event=said.append)
        await scheduler.start(CUT)
        asked = ask(scheduler, CUT)
        scheduler.receive(said[0])
        await until(lambda: worker.running)
        worker.output(CUT, 2)
        request = worker.asked[0]
        first = len(request.prompt)
        places = range(first, first + SAMPLING.max_new_tokens + 2)
        again = replace(
            said[-1],
            tokens=tuple(token_at(request.seed, place) for place in places),
            logprobs=tuple(logprob_at(request.seed, place) for place in places),
            versions=tuple(version_at(request.seed, place) for place in places),
            end=TurnEnd.FINISHED,
        )
        for output in (said[-1], said[-1], again):
            scheduler.receive(output)
            await asyncio.sleep(0)
        assert_true(await asked, first_prompt(CUT))
        assert scheduler.stats().tokens_delivered == SAMPLING.max_new_tokens


@pytest.mark.parametrize("number", [CUT, ENDED])
async def test_a_turn_whose_last_token_came_and_whose_end_was_lost_is_not_run_again(number) -> None:
    async with opened() as scheduler:
        first = await bring(scheduler, 0)
        await scheduler.start(number)
        asked = ask(scheduler, number)
        await until(lambda: first.running)
        first.output(number, SAMPLING.max_new_tokens, with_end=False)
        first.is_up = False
        await scheduler.lose(0, "killed before it said that it ended")
        second = await bring(scheduler, 1)
        assert_true(await asked, first_prompt(number))
        assert second.asked == []


async def test_a_worker_may_be_lost_in_the_very_step_that_takes_its_turns() -> None:
    async with opened() as scheduler:
        first = await bring(scheduler, 0, WorkerKind.BORROWED)
        await scheduler.start(CUT)
        asked = ask(scheduler, CUT)
        await until(lambda: first.running)
        first.output(CUT, 2)
        # A lease that ends recalls its turns: the Stop is for a worker that is gone.
        scheduler.receive(GrantChanged(0, first.epoch, 0, 0.0))
        scheduler.receive(WorkerLost(0, "killed"))
        scheduler.receive(GrantChanged(0, first.epoch + 1, 1000, 0.0))  # It was late.
        second = await bring(scheduler, 1)
        assert_true(await speak_until(second, asked), first_prompt(CUT))
        assert [request.first_token for request in second.asked] == [2]
