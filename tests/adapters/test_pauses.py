"""Pauses: nobody generates while one holds, and each ends at the latest with its lease."""

import asyncio
import logging

import pytest

from rose.adapters import PauseMode, PauseOvertaken, ServiceLimits, TrialWorker
from rose.errors import DeadlineExceeded
from rose.scheduler.worker import WorkerKind
from tests.adapters.rig import bare, until
from tests.adapters.test_service import ask, finishing, holder, said


async def test_a_pause_that_keeps_stops_every_worker_and_changes_no_token() -> None:
    async with bare() as rig:
        answer = finishing(rig, [ask(12), ask(12)])
        await until(lambda: holder(rig))
        rig.step()
        await rig.service.pause(PauseMode.KEEP)
        assert holder(rig) is None
        late = finishing(rig, [ask(3)])
        for _ in range(20):
            rig.step()
            await asyncio.sleep(0.001)
        assert holder(rig) is None
        assert not answer.done()
        await rig.service.resume()
        assert [one.tokens for one in await rig.play(answer)] == [said(12)] * 2
        assert (await rig.play(late))[0].tokens == said(3)


async def test_a_pause_that_waits_lets_running_sequences_end() -> None:
    async with bare(1) as rig:
        answer = finishing(rig, [ask(6)])
        await until(lambda: holder(rig))
        pausing = asyncio.create_task(rig.service.pause(PauseMode.WAIT))
        await rig.play(pausing)
        assert (await answer)[0].tokens == said(6)
        late = finishing(rig, [ask(2)])
        await asyncio.sleep(0.01)
        assert not late.done()
        await rig.service.resume()
        assert (await rig.play(late))[0].tokens == said(2)


async def test_a_pause_that_aborts_ends_sequences_with_their_tokens() -> None:
    async with bare(1) as rig:
        answer = finishing(rig, [ask(30)])
        await until(lambda: holder(rig))
        rig.step()
        await asyncio.sleep(0.01)
        await rig.service.pause(PauseMode.ABORT)
        (one,) = await answer
        assert (one.tokens, one.finish_reason) == (said(1), "abort")
        await rig.service.resume()
        await rig.until_empty()


async def test_a_worker_that_keeps_generating_does_not_hold_a_pause_for_ever() -> None:
    async with bare(1, ServiceLimits(pause_s=0.05)) as rig:
        answer = finishing(rig, [ask(30)])
        await until(lambda: holder(rig))
        rig.workers[0].stop_turn = lambda _: None
        with pytest.raises(DeadlineExceeded, match=r"within 0.05 s"):
            await rig.service.pause(PauseMode.KEEP)
        del rig.workers[0].stop_turn
        await rig.service.resume()
        assert (await rig.play(answer))[0].tokens == said(30)


async def test_a_worker_that_joins_during_a_pause_waits_too() -> None:
    async with bare(0) as rig:
        await rig.service.pause(PauseMode.KEEP)
        worker = TrialWorker(7, WorkerKind.BORROWED, rig.service.receive, step_s=0)
        rig.workers.append(worker)
        await rig.service.register(worker, worker.capabilities)
        worker.grant()
        answer = finishing(rig, [ask(2)])
        await asyncio.sleep(0.02)
        assert not worker._turns
        await rig.service.resume()
        assert (await rig.play(answer))[0].tokens == said(2)


async def test_a_worker_that_raises_as_a_pause_ends_is_lost_and_its_turns_go_on() -> None:
    async with bare(1) as rig:
        await rig.service.pause(PauseMode.KEEP)
        answer = finishing(rig, [ask(3)])
        await asyncio.sleep(0.02)

        def start_turn(_) -> None:
            raise ValueError("its engine is gone")

        rig.workers[0].start_turn = start_turn
        await rig.service.resume()
        await until(lambda: rig.service.worker_count() == 0)
        other = TrialWorker(5, WorkerKind.DEDICATED, rig.service.receive, step_s=0)
        await rig.service.register(other, other.capabilities)
        other.grant()
        rig.workers[:] = [other]
        assert (await rig.play(answer))[0].tokens == said(3)


async def quiet(rig, answer) -> bool:
    """Return whether the workers generate nothing for a while."""
    for _ in range(20):
        rig.step()
        await asyncio.sleep(0.001)
    return holder(rig) is None and not answer.done()


async def test_the_service_runs_again_when_no_pause_is_left() -> None:
    async with bare() as rig:
        await rig.service.pause(PauseMode.KEEP, owner="trainer")
        await rig.service.pause(PauseMode.WAIT, owner="monitor")
        answer = finishing(rig, [ask(4)])
        await rig.service.resume("trainer")
        await rig.service.resume()  # There is no pause without an owner.
        await rig.service.resume("nobody")
        assert rig.service.is_paused
        assert await quiet(rig, answer)
        await rig.service.resume("monitor")
        assert not rig.service.is_paused
        assert (await rig.play(answer))[0].tokens == said(4)


async def test_an_owner_has_one_pause_and_a_name_ends_one_without_an_owner() -> None:
    async with bare() as rig:
        await rig.service.pause(PauseMode.KEEP, owner="trainer")
        await rig.service.pause(PauseMode.KEEP, owner="trainer")
        first = await rig.service.pause(PauseMode.KEEP)
        await rig.service.pause(PauseMode.KEEP)
        await rig.service.resume("trainer")
        await rig.service.resume(first)
        assert rig.service.is_paused
        await rig.service.resume()
        assert not rig.service.is_paused


async def test_a_pause_ends_with_its_lease_and_the_log_says_so(caplog) -> None:
    async with bare() as rig:
        with caplog.at_level(logging.WARNING):
            await rig.service.pause(PauseMode.KEEP, owner="trainer", lease_s=0.05)
            answer = finishing(rig, [ask(4)])
            assert (await rig.play(answer))[0].tokens == said(4)
        assert not rig.service.is_paused
        assert "the pause of 'trainer' was not ended within 0.05 s" in caplog.text


async def test_a_pause_that_was_resumed_before_it_began_says_so() -> None:
    async with bare(1) as rig:
        answer = finishing(rig, [ask(6)])
        await until(lambda: holder(rig))
        pausing = asyncio.create_task(rig.service.pause(PauseMode.WAIT))
        await until(lambda: rig.service.is_paused)
        await rig.service.resume()
        with pytest.raises(PauseOvertaken, match="another request resumed the service"):
            await pausing
        assert (await rig.play(answer))[0].tokens == said(6)


async def test_a_client_that_leaves_while_it_pauses_leaves_a_lease() -> None:
    async with bare(1) as rig:
        answer = finishing(rig, [ask(6)])
        await until(lambda: holder(rig))
        pausing = asyncio.create_task(rig.service.pause(PauseMode.WAIT, lease_s=0.05))
        await until(lambda: rig.service.is_paused)
        pausing.cancel()
        await until(lambda: not rig.service.is_paused)
        assert (await rig.play(answer))[0].tokens == said(6)


async def test_racing_pauses_and_resumes_harm_no_sequence() -> None:
    async with bare(2) as rig:
        answer = finishing(rig, [ask(60)] * 4)

        async def client(name: str, mode: PauseMode) -> None:
            for _ in range(6):
                await rig.service.pause(mode, owner=name)
                assert holder(rig) is None
                await rig.service.resume(name)
                await asyncio.sleep(0.003)

        modes = (PauseMode.KEEP, PauseMode.WAIT, PauseMode.KEEP)
        clients = [client(str(place), mode) for place, mode in enumerate(modes)]
        racing = asyncio.gather(*clients)
        assert [one.tokens for one in await rig.play(answer)] == [said(60)] * 4
        await racing
        assert not rig.service.is_paused
        await rig.until_empty()


async def test_an_aborted_sequence_goes_on_as_the_next_turn() -> None:
    async with bare(2) as rig:
        prompt = tuple(range(70))
        answer = finishing(rig, [ask(30, prompt=prompt)])
        await until(lambda: holder(rig))
        for _ in range(4):
            rig.step()
        await asyncio.sleep(0.01)
        await rig.service.pause(PauseMode.ABORT)
        (one,) = await answer
        assert (one.finish_reason, one.tokens) == ("abort", said(4, start=70))
        await rig.service.resume()
        longer = ask(5, prompt=(*prompt, *one.tokens))
        (rest,) = await rig.play(finishing(rig, [longer]))
        assert rest.cached_tokens == 74
        assert rest.tokens == said(9, start=70)[4:]
        await rig.until_empty()
