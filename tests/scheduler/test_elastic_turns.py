"""What a caller may ask of a turn, from the call through any number of workers to the result."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from rose.errors import InvalidArgument, Unavailable
from rose.scheduler import Sampling, TrajectoryDropped, VersionRange
from rose.scheduler.turns import TurnLost, TurnRefused
from rose.scheduler.versions import VersionConflict
from rose.scheduler.worker import (
    GrantChanged,
    Options,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)
from tests.lab.demo.rl.scripted_worker import ScriptedWorker
from tests.scheduler.driver_world import SAMPLING, first_prompt
from tests.scheduler.elastic_rig import (
    CAN,
    WIDE,
    ask,
    bring,
    opened,
    speak,
    speak_until,
    until,
)
from tests.scheduler.tuned import tuned

OPTIONS = Options(0.9, 40, 0.05, 3, True, 2, {"stop": ["END"], "presence_penalty": 0.5})
WISHES = Sampling(8, 0.7, (9,), seed=77, options=OPTIONS)


def said(request: TurnRequest, worker: int, first: int, tokens: int, **more: Any) -> TurnOutput:
    """Return tokens of a request, with two likely tokens for each."""
    places = range(first, first + tokens)
    return TurnOutput(
        *(worker, request.trajectory, request.turn, request.grant_epoch, first),
        tokens=tuple(100 + place for place in places),
        logprobs=tuple(-0.5 - place for place in places),
        versions=more.pop("versions", (0,) * tokens),
        top_logprobs=tuple(((100 + place, -0.5), (5, -1.5)) for place in places),
        **more,
    )


async def test_options_and_seed_reach_every_worker_and_what_they_say_is_one_result() -> None:
    async with opened() as scheduler:
        first = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3, prompt=(1, 2), sampling=WISHES)
        await until(lambda: first.running)
        request = first.running.pop(3).request
        assert (request.seed, request.options, request.stop_tokens) == (77, OPTIONS, (9,))
        extras = {"prompt_logprobs": [None, 1], "kind": "a"}
        scheduler.receive(said(request, 0, 0, 3, cached_tokens=2, extras=extras))
        scheduler.receive(WorkerLost(0, "killed"))
        second = await bring(scheduler, 1)
        await until(lambda: second.running)
        rest = second.running.pop(3).request
        assert (rest.prompt, rest.first_token) == ((1, 2, 100, 101, 102), 3)
        assert (rest.seed, rest.options, rest.options.min_tokens) == (77, OPTIONS, 3)
        # Its first token was delivered before; its cache and prompt hold the turn's first tokens.
        end = {"end": TurnEnd.FINISHED, "stop_reason": "END"}
        news = {"cached_tokens": 5, "extras": {"kind": "b", "more": 1}}
        scheduler.receive(said(rest, 1, 2, 3, **end, **news))
        result = await asked
        assert result.tokens == (100, 101, 102, 103, 104)
        assert result.logprobs == (-0.5, -1.5, -2.5, -3.5, -4.5)
        assert [one[0][0] for one in result.top_logprobs] == list(result.tokens)
        assert (result.cached_tokens, result.stop_reason, result.is_cut) == (2, "END", False)
        assert result.extras == {"prompt_logprobs": [None, 1], "kind": "a", "more": 1}


async def test_a_turn_that_starts_again_has_the_extras_of_its_last_worker() -> None:
    async with opened() as scheduler:
        first = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3, sampling=replace(WISHES, options=Options(is_whole=True)))
        await until(lambda: first.running)
        request = first.running.pop(3).request
        interrupted = said(request, 0, 0, 0, end=TurnEnd.INTERRUPTED, extras={"kind": "a"})
        scheduler.receive(interrupted)
        second = await bring(scheduler, 1)
        await until(lambda: second.running)
        again = second.running.pop(3).request
        scheduler.receive(said(again, 1, 0, 8, end=TurnEnd.FINISHED, extras={"kind": "b"}))
        result = await asked
        assert (len(result.tokens), result.extras, result.is_cut) == (8, {"kind": "b"}, True)


async def test_tokens_of_a_worker_without_top_logprobs_have_none() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3, sampling=WISHES)
        await until(lambda: worker.running)
        request = worker.running.pop(3).request
        for place, tops in enumerate([False, True, False]):
            one = said(request, 0, place, 1)
            scheduler.receive(one if tops else replace(one, top_logprobs=()))
        scheduler.receive(said(request, 0, 3, 0, end=TurnEnd.FINISHED, stop_reason=9))
        result = await asked
        assert [len(one) for one in result.top_logprobs] == [0, 2, 0]
        assert result.stop_reason == 9


async def test_a_stop_token_counts_only_after_the_least_tokens() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3, sampling=replace(WISHES, stop_tokens=(100, 103)))
        await until(lambda: worker.running)
        request = worker.running.pop(3).request
        scheduler.receive(said(request, 0, 0, 5, end=TurnEnd.FINISHED))
        assert (await asked).tokens == (100, 101, 102, 103)


# ---- cuts


@pytest.mark.parametrize("count", [0, 2, 3])
async def test_a_cut_turn_has_its_first_tokens_and_later_output_is_stale(tmp_path, count) -> None:
    async with opened(tmp_path / "state") as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3, sampling=WISHES)
        await until(lambda: worker.running)
        request = worker.running[3].request
        scheduler.receive(said(request, 0, 0, 3))
        await until(lambda: scheduler.stats().tokens_delivered == 3)
        with pytest.raises(InvalidArgument, match="only 3 were delivered"):
            await scheduler.cut(3, turn=0, tokens=4)
        await scheduler.cut(3, turn=0, tokens=count)
        result = await asked
        assert result.tokens == (100, 101, 102)[:count]
        assert len(result.logprobs) == len(result.top_logprobs) == len(result.versions) == count
        assert (result.is_cut, 3 in worker.running) == (False, False)
        scheduler.receive(said(request, 0, 3, 2, end=TurnEnd.FINISHED))
        await scheduler.cut(3, turn=0, tokens=1)  # It is over: nothing changes.
        with pytest.raises(InvalidArgument, match="turn 1 is not the current turn"):
            await scheduler.cut(3, turn=1, tokens=0)
        assert await ask(scheduler, 3, sampling=WISHES) == result
        again = ask(scheduler, 3, 1, prompt=(*first_prompt(3), *result.tokens, 7))
        await until(lambda: worker.running)
        assert worker.running[3].request.prompt[-2 if count else -1 :][-1] == 7
        again.cancel()
    async with opened(tmp_path / "state") as later:
        assert later.trajectories()[0].turns == (result,)


async def test_a_cut_and_the_turns_own_end_in_one_step_give_the_cut() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3, sampling=WISHES)
        await until(lambda: worker.running)
        request = worker.running.pop(3).request
        scheduler.receive(said(request, 0, 0, 3))
        await until(lambda: scheduler.stats().tokens_delivered == 3)
        scheduler.receive(said(request, 0, 3, 2, end=TurnEnd.FINISHED))
        await scheduler.cut(3, turn=0, tokens=2)
        assert (await asked).tokens == (100, 101)


# ---- versions


async def test_a_turn_waits_for_its_version_and_no_token_of_another_is_delivered() -> None:
    async with opened() as scheduler:
        old = await bring(scheduler, 0)
        new = await bring(scheduler, 1, version=1)
        await scheduler.start(3)
        asked = ask(scheduler, 3, sampling=WISHES, versions=VersionRange(at_least=1, at_most=2))
        await until(lambda: new.running)
        assert not old.running
        request = new.running[3].request
        scheduler.receive(said(request, 1, 0, 2, versions=(1, 1)))
        await until(lambda: scheduler.stats().tokens_delivered == 2)
        scheduler.receive(VersionCommitted(1, 3, True, 1.0))
        await until(lambda: not new.running)  # It was recalled.
        scheduler.receive(said(request, 1, 2, 2, versions=(3, 3)))
        assert not old.running
        scheduler.receive(VersionCommitted(0, 2, True, 1.0))
        await until(lambda: old.running)
        rest = old.running.pop(3).request
        assert rest.first_token == 2
        scheduler.receive(said(rest, 0, 2, 1, versions=(2,), end=TurnEnd.FINISHED))
        result = await asked
        assert (result.versions, result.workers) == ((1, 1, 2), (1, 0))


async def test_a_version_that_is_gone_everywhere_is_a_conflict_that_names_the_versions() -> None:
    async with opened() as scheduler:
        await bring(scheduler, 0, version=4)
        await bring(scheduler, 1, version=5)
        scheduler.receive(VersionCommitted(1, 6, True, 1.0))
        for number, versions in enumerate([VersionRange(exact=3), VersionRange(at_most=2)]):
            await scheduler.start(number)
            with pytest.raises(VersionConflict, match=r"versions of workers: 4, 6") as failed:
                await ask(scheduler, number, versions=versions)
            assert str(versions) in str(failed.value)
        await scheduler.start(9)
        waits = ask(scheduler, 9, versions=VersionRange(exact=7))
        await asyncio.sleep(0.05)
        assert not waits.done()
        waits.cancel()


def test_a_range_that_nothing_fits_is_refused() -> None:
    for wrong in ({"at_least": 5, "at_most": 4}, {"exact": 3, "at_least": 4}, {"exact": -1}):
        with pytest.raises(InvalidArgument):
            VersionRange(**wrong)
    fits = VersionRange(at_least=2, at_most=4)
    assert [fits.fits(version) for version in range(6)] == [False, False, True, True, True, False]
    assert all(map(VersionRange().fits, range(6)))


# ---- pauses


@pytest.mark.parametrize("is_recalling", [True, False])
async def test_a_pause_starts_nothing_outlives_the_process_and_ends(tmp_path, is_recalling) -> None:
    async with opened(tmp_path / "state") as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        await scheduler.start(4)
        asked = ask(scheduler, 3)
        await until(lambda: worker.running)
        speak(worker, 2)
        await scheduler.pause(is_recalling)
        quiet = asyncio.create_task(scheduler.quiet())
        if is_recalling:
            await asyncio.wait_for(quiet, 10)
            assert not worker.running
        else:
            await asyncio.sleep(0.02)
            assert not quiet.done()
            await speak_until(worker, asked)
            await asyncio.wait_for(quiet, 10)
        late = ask(scheduler, 4)
        await asyncio.sleep(0.05)
        assert not worker.running
    await asyncio.gather(asked, late, return_exceptions=True)
    async with opened(tmp_path / "state") as scheduler:
        worker = await bring(scheduler, 0, version=0)
        asked, late = ask(scheduler, 3), ask(scheduler, 4)
        await asyncio.sleep(0.05)
        assert not worker.running
        await scheduler.resume()
        for one in (asked, late):
            await speak_until(worker, one)


# ---- turns that end workers, and turns that workers refuse


async def test_a_refused_turn_is_refused_at_once_with_the_engines_sentence() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        await scheduler.start(4)
        bad, good = ask(scheduler, 3), ask(scheduler, 4)
        await until(lambda: len(worker.running) == 2)
        request = worker.running.pop(3).request
        scheduler.receive(
            said(request, 0, 0, 0, end=TurnEnd.REFUSED, error="token id 9 is not one")
        )
        with pytest.raises(TurnRefused, match=r"^token id 9 is not one$"):
            await bad
        await speak_until(worker, good)
        assert scheduler.counts().dropped == 1


async def test_a_turn_that_ends_its_workers_fails_alone() -> None:
    async with opened(settings=tuned(WIDE, losses_max=2)) as scheduler:
        await bring(scheduler, 0)
        asked = []
        for number in range(6):
            await scheduler.start(number)
            asked.append(ask(scheduler, number))
        workers = [await bring(scheduler, number) for number in range(1, 6)]
        await asyncio.sleep(0.02)
        scheduler.receive(WorkerLost(0, "a turn ended it"))
        ended = 0
        while not all(task.done() for task in asked):
            for worker in workers:
                if worker.is_up and 3 in worker.running:
                    worker.is_up = False
                    worker.running.clear()
                    ended += 1
                    scheduler.receive(WorkerLost(worker.number, "a turn ended it"))
                elif worker.is_up:
                    speak(worker)
            await asyncio.sleep(0)
        assert ended == 1
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [number for number, one in enumerate(results) if isinstance(one, Exception)] == [3]
        assert isinstance(results[3], TurnLost)
        assert isinstance(results[3], TrajectoryDropped)
        assert "its worker was lost twice with it" in str(results[3])


# ---- workers


async def test_a_drained_worker_gives_its_turns_away_at_the_token() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3)
        await until(lambda: worker.running)
        speak(worker, 2)
        await asyncio.wait_for(scheduler.drain(0), 10)
        assert not worker.running
        worker.grant()
        other = await bring(scheduler, 1)
        result = await speak_until(other, asked)
        assert (result.workers, other.asked[0].first_token) == ((0, 1), 2)
        await scheduler.lose(0, "it was removed", is_crash=False)
        again = ScriptedWorker(0, WorkerKind.DEDICATED, scheduler.receive)
        again.epoch = worker.epoch
        await scheduler.register(again, CAN)
        again.grant()
        assert set(scheduler.stats().used_kv_tokens) == {0, 1}


async def test_a_drained_worker_that_comes_back_after_a_restart_gets_turns(tmp_path) -> None:
    async with opened(tmp_path / "state") as scheduler:
        await bring(scheduler, 0)
        await scheduler.start(3)
        await scheduler.drain(0)
    async with opened(tmp_path / "state") as scheduler:
        worker = ScriptedWorker(0, WorkerKind.DEDICATED, scheduler.receive)
        worker.epoch = 1
        await scheduler.register(worker, CAN)
        worker.grant()
        await speak_until(worker, ask(scheduler, 3))


async def test_measured_rates_are_kept_for_a_return_and_refused_if_they_are_none(tmp_path) -> None:
    async with opened(tmp_path / "state") as scheduler:
        await bring(scheduler, 0)
        rates = {"prefill_tokens_per_s": 9.0, "decode_step_ms": 2.0, "decode_ms_per_sequence": 0.5}
        await scheduler.measured(0, **rates)
        await scheduler.measured(9, **rates)  # It is lost.
        for name in rates:
            with pytest.raises(InvalidArgument, match=name):
                await scheduler.measured(0, **{**rates, name: -1.0})
        found = scheduler._rollouts.state.workers[0].capabilities
        assert {name: getattr(found, name) for name in rates} == rates
    async with opened(tmp_path / "state") as scheduler:
        found = scheduler._rollouts.state.workers[0].capabilities
        assert {name: getattr(found, name) for name in rates} == rates


async def test_a_worker_that_was_lost_before_it_registers_is_no_zombie() -> None:
    async with opened() as scheduler:
        scheduler.receive(GrantChanged(0, 1, 1000, 0.0))
        scheduler.receive(WorkerLost(0, "its address is dead"))
        with pytest.raises(Unavailable, match="its address is dead"):
            await bring(scheduler, 0)
        assert not scheduler.stats().used_kv_tokens
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        await speak_until(worker, ask(scheduler, 3, sampling=SAMPLING))
