"""The asyncio driver: turns come home whole, whatever callers, workers and clocks do."""

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from rose.errors import InternalError, InvalidArgument, Unavailable
from rose.scheduler.turns import Capabilities, Sampling, TrajectoryDropped
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)
from tests.lab.demo.rl.scripted_worker import ScriptedWorker
from tests.scheduler.driver_world import SAMPLING, ManualClock, first_prompt
from tests.scheduler.elastic_rig import (
    WIDE,
    Voices,
    ask,
    assert_true,
    bring,
    opened,
    play,
    run,
    speak,
    speak_until,
    until,
)
from tests.scheduler.tuned import tuned

BORROWED = WorkerKind.BORROWED
HUGE = 1 << 70


# ---- turns ---------------------------------------------------------------------------------------


async def test_many_trajectories_say_what_each_would_say_alone() -> None:
    async with opened() as scheduler:
        workers = [await bring(scheduler, 0), await bring(scheduler, 1, BORROWED)]
        with Voices(*workers):
            await asyncio.gather(*(play(scheduler, number) for number in range(60)))
        counts = scheduler.counts()
        assert (counts.begun, counts.finished, counts.dropped) == (60, 60, 0)
        assert scheduler.trajectories() == ()


async def test_a_turn_that_moves_goes_on_at_its_token() -> None:
    async with opened() as scheduler:
        first = await bring(scheduler, 0, BORROWED)
        await scheduler.start(3)
        asked = ask(scheduler, 3)
        await until(lambda: first.running)
        first.output(3, 2)
        first.revoke()
        second = await bring(scheduler, 1)
        await until(lambda: second.running)
        assert second.asked[0].first_token == 2
        assert second.asked[0].prompt[:-2] == first_prompt(3)
        result = await speak_until(second, asked)
        assert_true(result, first_prompt(3))
        assert (result.workers, result.resumed) == ((0, 1), 1)


async def test_what_contradicts_itself_is_refused_and_changes_nothing() -> None:
    async with opened() as scheduler:
        await scheduler.start(0, group=1)
        wrong = [
            (scheduler.generate(5, turn=0, prompt=(1,), sampling=SAMPLING), "never started"),
            (scheduler.generate(0, turn=1, prompt=(1,), sampling=SAMPLING), "next turn is 0"),
            (
                scheduler.generate(0, turn=-1, prompt=(1,), sampling=SAMPLING),
                "turn must be int >= 0, got -1",
            ),
            (scheduler.generate(0, turn=0, prompt=(), sampling=SAMPLING), "at least one"),
            (scheduler.generate(0, turn=0, prompt=(-1,), sampling=SAMPLING), "from 0 to"),
            (scheduler.generate(0, turn=0, prompt=(HUGE,), sampling=SAMPLING), "from 0 to"),
            (scheduler.start(0, group=2), "with other arguments"),
            (scheduler.start(-1), "must be int"),
            (scheduler.start(HUGE), "must be int"),
            (scheduler.finish(9), "never started"),
            (scheduler.consumed(1), "cannot consume 1 trajectories: only 0 finished"),
            (scheduler.publish(-1), "must be int"),
            (
                scheduler.add_job(1, batch_trajectories=0, max_staleness=1),
                "must be int >= 1, got 0",
            ),
            (scheduler.checkpoint(), "without a store"),
        ]
        for call, said in wrong:
            with pytest.raises(InvalidArgument, match=said):
                await call
        asked = ask(scheduler, 0)
        await until(lambda: scheduler.trajectories()[0].has_turn)
        with pytest.raises(InvalidArgument, match="another prompt"):
            await scheduler.generate(0, turn=0, prompt=(1, 2), sampling=SAMPLING)
        with pytest.raises(InvalidArgument, match="cannot be finished now"):
            await scheduler.finish(0)
        worker = await bring(scheduler, 0)
        assert_true(await speak_until(worker, asked), first_prompt(0))
        await scheduler.finish(0)
        await scheduler.finish(0)  # Said again, it says nothing.
        with pytest.raises(InvalidArgument, match="is over"):
            await scheduler.generate(0, turn=1, prompt=(1,), sampling=SAMPLING)
        with pytest.raises(InvalidArgument, match="was used before"):
            await scheduler.start(0, group=1)
        await scheduler.consumed(1)
        assert scheduler.counts().jobs[0].consumed == 1


# ---- callers -------------------------------------------------------------------------------------


async def test_a_caller_that_is_cancelled_leaves_alone_and_its_turn_goes_on() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(0)
        leaves, stays = ask(scheduler, 0), ask(scheduler, 0)
        await until(lambda: worker.running)
        leaves.cancel()
        await speak_until(worker, stays)
        with pytest.raises(asyncio.CancelledError):
            await leaves
        assert await stays == await ask(scheduler, 0)
        assert len(worker.asked) == 1


async def test_what_is_given_up_is_stopped_and_everybody_is_told() -> None:
    async with opened(settings=replace(WIDE, max_staleness=0, batch_trajectories=2)) as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(0)
        await scheduler.start(1)
        waits = asyncio.create_task(scheduler.start(2))
        asked = ask(scheduler, 0)
        await until(lambda: worker.running)
        await scheduler.abort(0)  # in the middle of a turn
        with pytest.raises(TrajectoryDropped, match="trajectory 0 was dropped: it was given up"):
            await asked
        assert worker.running == {}
        await waits  # One that is given up makes room for another.
        waits = asyncio.create_task(scheduler.start(3))
        await asyncio.sleep(0.02)
        assert not waits.done()
        await scheduler.abort(1)  # in its environment
        await waits
        last = asyncio.create_task(scheduler.start(4))
        await until(lambda: len(scheduler.trajectories()) == 3)
        await scheduler.abort(4)  # before it was admitted
        with pytest.raises(TrajectoryDropped, match="trajectory 4"):
            await last
        await scheduler.abort(0)  # Said again.
        counts = scheduler.counts()
        assert (counts.begun, counts.given_up, counts.finished) == (5, 3, 0)


async def test_a_turn_that_ends_as_it_is_given_up_leaves_no_gap_in_the_books() -> None:
    settings = replace(WIDE, max_staleness=0, batch_trajectories=1)
    async with opened(settings=settings) as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(3)
        asked = ask(scheduler, 3)
        await until(lambda: worker.running)
        worker.output(3, 99)  # Its end, and what follows, are heard in one step.
        await scheduler.abort(3)
        with pytest.raises(TrajectoryDropped, match="dropped"):
            await asked
        await scheduler.start(4)
        assert scheduler.counts().given_up == 1


async def test_no_more_start_than_may_be_under_way_and_the_next_waits() -> None:
    async with opened(limits={"TRAJECTORIES_MAX": 2}) as scheduler:
        await scheduler.start(0)
        await scheduler.start(1)
        third = asyncio.create_task(scheduler.start(2))
        fourth = asyncio.create_task(scheduler.start(3))
        await asyncio.sleep(0.03)
        assert not third.done()
        fourth.cancel()
        await scheduler.finish(0)
        await third
        assert {one.trajectory for one in scheduler.trajectories()} == {1, 2}


async def test_a_turn_that_fails_everywhere_is_told_with_what_the_worker_said() -> None:
    async with opened(settings=tuned(WIDE, attempts_max=1)) as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: worker.running)
        request = worker.running.pop(0).request
        scheduler.receive(
            TurnOutput(*(0, 0, 0, request.grant_epoch, 0, (), (), ()), TurnEnd.FAILED, "no memory")
        )
        with pytest.raises(TrajectoryDropped, match=r"failed on every attempt.*no memory"):
            await asked
        assert scheduler.counts().dropped == 1


# ---- workers that lie, refuse, flood -------------------------------------------------------------


@pytest.mark.parametrize(
    "lie",
    [
        {"logprobs": ()},
        {"logprobs": (float("nan"),) * 2},
        {"logprobs": (1.0, 1.0)},
        {"logprobs": (-float("inf"), -1.0)},
        {"versions": (0,)},
        {"versions": (-1, 0)},
        {"tokens": (-7, 3)},
        {"tokens": (HUGE, 3)},
    ],
    ids=str,
)
async def test_an_output_that_nobody_can_learn_from_counts_as_a_failure(lie) -> None:
    # The turn does not return to the worker, which still has it.
    async with opened(settings=tuned(WIDE, retry_ms=60_000.0)) as scheduler:
        liar = await bring(scheduler, 0, BORROWED)
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: liar.running)
        request = liar.running[0].request
        output = TurnOutput(0, 0, 0, request.grant_epoch, 0, (1, 2), (-0.5, -0.5), (0, 0))
        scheduler.receive(structs.replace(output, **lie))
        await until(lambda: scheduler.stats().running == 0)
        liar.revoke()
        honest = await bring(scheduler, 1)
        assert_true(await speak_until(honest, asked), first_prompt(0))


async def test_numbers_that_are_no_counts_change_nothing() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: worker.running)
        epoch = worker.epoch
        for number in (-1, HUGE):
            scheduler.receive(GrantChanged(number, epoch, 10, 0.0))
            scheduler.receive(GrantChanged(0, number, 10, 0.0))
            scheduler.receive(GrantChanged(0, epoch, number, 0.0))
            scheduler.receive(VersionCommitted(0, number, True, 0.0))
            scheduler.receive(WorkerLost(number, "somebody else"))
            for field in ("worker", "trajectory", "turn", "grant_epoch", "first_token"):
                output = TurnOutput(0, 0, 0, epoch, 0, (1,), (-0.5,), (0,))
                scheduler.receive(structs.replace(output, **{field: number}))
        assert_true(await speak_until(worker, asked), first_prompt(0))


async def test_a_worker_that_goes_on_behind_its_own_end_has_said_nothing_more() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(0)
        sampling = Sampling(max_new_tokens=9, stop_tokens=(4,))
        asked = ask(scheduler, 0, sampling=sampling)
        await until(lambda: worker.running)
        epoch = worker.running.pop(0).request.grant_epoch
        tokens = (3, 4, 5, 4, 6)
        scheduler.receive(
            TurnOutput(0, 0, 0, epoch, 0, tokens, (-1.0,) * 5, (0,) * 5, TurnEnd.FINISHED)
        )
        result = await asked
        assert (result.tokens, len(result.logprobs), result.is_cut) == ((3, 4), 2, False)


async def test_a_worker_that_refuses_a_turn_costs_an_attempt() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        taken = worker.start_turn
        refusals = iter([True, True])

        def start_turn(request) -> None:
            if next(refusals, False):
                raise Unavailable("its engine is not ready")
            taken(request)

        worker.start_turn = start_turn
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: worker.running)
        result = await speak_until(worker, asked)
        assert_true(result, first_prompt(0))
        assert result.workers == (0, 0, 0)


async def test_a_worker_that_floods_the_scheduler_is_lost_and_its_turns_go_on() -> None:
    async with opened(limits={"EVENTS_MAX": 50}) as scheduler:
        loud, quiet = await bring(scheduler, 0, BORROWED), await bring(scheduler, 1)
        quiet.revoke()
        await asyncio.sleep(0.02)
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: loud.running)
        for _ in range(60):  # in one turn of the loop: nobody takes any of it
            scheduler.receive(GrantChanged(0, loud.epoch, 10_000, 0.0))
        await until(lambda: not loud.running)
        quiet.grant()
        await until(lambda: quiet.running)
        assert_true(await speak_until(quiet, asked), first_prompt(0))
        # It may come back, and is heard again.
        await scheduler.register(loud, Capabilities(8, 1000.0, 5.0))
        loud.grant()
        quiet.revoke()
        await scheduler.start(1)
        asked = ask(scheduler, 1)
        await until(lambda: loud.running)
        await speak_until(loud, asked)


async def test_what_a_worker_says_of_its_lease_before_it_is_registered_is_kept() -> None:
    async with opened() as scheduler:
        worker = ScriptedWorker(0, BORROWED, scheduler.receive)
        worker.grant()
        worker.grant()
        scheduler.receive(VersionCommitted(0, 1, True, 1.0))
        await scheduler.publish(3)
        await asyncio.sleep(0.02)
        await scheduler.register(worker, Capabilities(8, 1000.0, 5.0))
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await asyncio.sleep(0.02)
        assert not worker.running  # Its weights are too old.
        scheduler.receive(VersionCommitted(0, 2, True, 1.0))
        await until(lambda: worker.running)
        assert worker.running[0].request.grant_epoch == 2
        await scheduler.abort(0)
        with pytest.raises(Unavailable):
            await asked


# ---- clocks --------------------------------------------------------------------------------------


async def test_a_clock_that_stands_still_jumps_or_goes_back_loses_nothing() -> None:
    clock = ManualClock(now_ms=5e6)
    async with opened(clock=clock) as scheduler:
        worker = await bring(scheduler, 0)
        lent = await bring(scheduler, 1, BORROWED)
        tasks = [asyncio.create_task(play(scheduler, number)) for number in range(12)]
        jumps = [0.0, 3.6e6, -4e6, 0.0, 50.0, 8.6e7, -8e7]
        while not all(task.done() for task in tasks):
            for one in (worker, lent):
                speak(one, 1)
            await asyncio.sleep(0.002)
            clock.now_ms += jumps.pop(0) if jumps else 40.0
            if len(jumps) == 3:
                lent.revoke()  # What it had waits for time to go on.
        assert not jumps
        await asyncio.gather(*tasks)
        assert scheduler.counts().finished == 12


# ---- its end -------------------------------------------------------------------------------------


async def test_who_still_waits_when_it_closes_is_told_and_nobody_runs_on() -> None:
    async with opened() as scheduler:
        worker = await bring(scheduler, 0)
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: worker.running)
    with pytest.raises(Unavailable, match="was closed"):
        await asked
    assert worker.running == {}
    with pytest.raises(Unavailable, match="not open"):
        await scheduler.start(1)
    scheduler.receive(GrantChanged(0, 9, 9, 0.0))  # Nobody listens.


def test_a_bug_of_its_own_ends_it_and_everybody_is_told() -> None:
    async def life() -> None:
        async with opened() as scheduler:
            worker = await bring(scheduler, 0)
            await scheduler.start(0)
            asked = ask(scheduler, 0)
            await until(lambda: worker.running)
            scheduler._rollouts.state.trajectories[0].tokens.append(1)
            worker.revoke()
            worker.grant()
            with pytest.raises(InternalError):
                await asked
            with pytest.raises(InternalError):
                await scheduler.start(1)

    async def program() -> None:
        with pytest.raises(InternalError, match="wrong token"):
            await life()

    run(program())


def test_a_bug_in_what_a_caller_makes_it_hear_ends_it_too(monkeypatch) -> None:
    async def life() -> None:
        async with opened() as scheduler:
            await scheduler.publish(1)

            def receive(event) -> None:
                raise InternalError("a bug of rose")

            monkeypatch.setattr(scheduler._durable, "receive", receive)
            scheduler.receive(GrantChanged(0, 1, 1, 0.0))
            with pytest.raises(InternalError, match="a bug of rose"):
                await scheduler.publish(2)
            await asyncio.sleep(0.02)
            with pytest.raises(Unavailable, match="the scheduler has ended"):
                await scheduler.publish(3)

    async def program() -> None:
        with pytest.raises(Unavailable, match="has ended"):
            await life()

    run(program())
