"""The core of the rollout service: tokens, revocations, versions, pauses, limits."""

import asyncio

import pytest

from rose.adapters import (
    Ask,
    ContextTooLong,
    Overloaded,
    ServiceLimits,
    TrialWorker,
    VersionConflict,
    VersionRange,
)
from rose.adapters.trial import trial_token
from rose.errors import DeadlineExceeded, InvalidArgument, RoseError, Unavailable
from rose.scheduler.turns import Sampling
from tests.adapters.rig import bare, until

ANY = VersionRange()


def ask(
    count: int = 8,
    versions: VersionRange = ANY,
    stop: tuple[int, ...] = (),
    prompt: tuple[int, ...] = (1, 2, 3),
) -> Ask:
    return Ask(prompt, Sampling(count, 1.0, stop), 5, versions)


def said(count: int = 8, version: int = 0, start: int = 3) -> list[int]:
    return [trial_token(5, start + place, version) for place in range(count)]


def finishing(rig, asks, **options):
    async def run():
        async with rig.service.generate(asks, **options) as generation:
            return await generation.finished()

    return asyncio.create_task(run())


def holder(rig) -> TrialWorker | None:
    return next((worker for worker in rig.workers if worker._turns), None)


async def test_a_sequence_is_what_an_undisturbed_worker_says() -> None:
    async with bare() as rig:
        (one,) = await rig.play(finishing(rig, [ask()]))
        assert (one.tokens, one.finish_reason) == (said(), "length")
        assert one.versions == [0] * 8
        await rig.until_empty()


async def test_a_stop_token_ends_a_sequence_and_is_part_of_it() -> None:
    async with bare() as rig:
        stop = said()[3]
        (one,) = await rig.play(finishing(rig, [ask(stop=(stop,))]))
        assert (one.tokens, one.finish_reason) == (said()[: said().index(stop) + 1], "stop")


async def test_each_change_of_a_sequence_is_seen_once_and_in_order() -> None:
    async with bare() as rig:
        seen = [0]

        async def watch() -> None:
            async with rig.service.generate([ask()]) as generation:
                seen.extend(
                    [len(generation.sequences[0].tokens) async for _ in generation.changes()]
                )

        await rig.play(asyncio.create_task(watch()))
        assert seen == sorted(seen)
        assert seen[-1] == 8


async def test_a_revoked_sequence_goes_on_at_its_next_token_elsewhere() -> None:
    async with bare() as rig:
        answer = finishing(rig, [ask(40)])
        for _ in range(3):
            await until(lambda: holder(rig))
            for _ in range(4):
                rig.step()
            worker = holder(rig)
            worker.revoke()
            await until(lambda worker=worker: holder(rig) not in (None, worker))
            worker.grant()
        (one,) = await rig.play(answer)
        assert one.tokens == said(40)
        assert rig.service.resumed_count() == 1
        await rig.until_empty()


async def test_sequences_wait_while_nothing_is_lent() -> None:
    async with bare(1) as rig:
        rig.workers[0].revoke()
        answer = finishing(rig, [ask()])
        await asyncio.sleep(0.02)
        assert not answer.done()
        rig.workers[0].grant()
        (one,) = await rig.play(answer)
        assert one.tokens == said()


@pytest.mark.parametrize(
    ("wanted", "version"),
    [
        (VersionRange(at_least=3), 3),
        (VersionRange(at_least=1), 3),
        (VersionRange(exact=3), 3),
        (VersionRange(exact=0), 0),
        (VersionRange(at_least=0, exact=0), 0),
    ],
)
async def test_a_sequence_runs_only_on_weights_that_it_accepts(wanted, version) -> None:
    async with bare(3) as rig:
        rig.workers[1].commit(3)
        await until(lambda: rig.service.versions() == {0: 2, 3: 1})
        asks = [ask(versions=wanted)] * 6
        for one in await rig.play(finishing(rig, asks)):
            assert set(one.versions) == {version}
            assert one.tokens == said(version=version)


@pytest.mark.parametrize(
    "wanted", [VersionRange(at_least=1), VersionRange(exact=2), VersionRange(at_least=0, exact=9)]
)
async def test_versions_that_nobody_published_are_refused_with_those_that_are_there(wanted) -> None:
    async with bare() as rig:
        with pytest.raises(VersionConflict, match="versions of workers: 0"):
            rig.service.generate([ask(versions=wanted)])
        assert rig.service.sequence_count() == 0


async def test_versions_that_every_worker_has_passed_are_refused() -> None:
    async with bare() as rig:
        for worker in rig.workers:
            worker.commit(3)
        await until(lambda: rig.service.versions() == {3: 2})
        for wanted in (VersionRange(exact=2), VersionRange(at_most=2)):
            with pytest.raises(VersionConflict, match="versions of workers: 3"):
                await rig.play(finishing(rig, [ask(versions=wanted)]))
        await rig.until_empty()


async def test_a_published_version_is_waited_for() -> None:
    async with bare() as rig:
        await rig.service.publish(2)
        answer = finishing(rig, [ask(versions=VersionRange(at_least=2))])
        for _ in range(20):
            rig.step()
            await asyncio.sleep(0.001)
        assert not answer.done()
        assert holder(rig) is None
        rig.workers[1].commit(2)
        (one,) = await rig.play(answer)
        assert (set(one.versions), one.tokens) == ({2}, said(version=2))


async def test_a_sequence_of_one_version_fails_when_its_worker_commits_another() -> None:
    async with bare(1) as rig:
        answer = finishing(rig, [ask(40, VersionRange(exact=0))])
        await until(lambda: holder(rig))
        rig.step()
        rig.workers[0].commit(1)
        with pytest.raises(VersionConflict, match="exactly 0; versions of workers: 1"):
            await rig.play(answer)
        await rig.until_empty()
        (other,) = await rig.play(finishing(rig, [ask(4)]))
        assert set(other.versions) == {1}


async def test_a_sequence_moves_to_a_worker_that_still_has_its_version() -> None:
    async with bare(2) as rig:
        answer = finishing(rig, [ask(40, VersionRange(exact=0))])
        await until(lambda: holder(rig))
        for _ in range(5):
            rig.step()
        holder(rig).commit(1)
        (one,) = await rig.play(answer)
        assert (set(one.versions), one.tokens) == ({0}, said(40))


async def test_a_sequence_of_any_version_goes_on_through_a_commit() -> None:
    async with bare(1) as rig:
        answer = finishing(rig, [ask(8)])
        await until(lambda: holder(rig))
        for _ in range(3):
            rig.step()
        rig.workers[0].commit(1)
        (one,) = await rig.play(answer)
        assert one.versions == [0] * 3 + [1] * 5
        assert one.tokens == said(3) + said(8, 1)[3:]


async def test_leaving_gives_up_what_is_not_finished_and_harms_no_other() -> None:
    async with bare(1) as rig:
        other = finishing(rig, [ask(9)])
        gone = finishing(rig, [ask(500)] * 3)
        await until(lambda: len(rig.workers[0]._turns) == 4)
        gone.cancel()
        await until(lambda: len(rig.workers[0]._turns) == 1)
        assert (await rig.play(other))[0].tokens == said(9)
        await rig.until_empty()


async def test_a_request_that_takes_too_long_is_ended() -> None:
    async with bare(1, ServiceLimits(request_s=0.02)) as rig:
        with pytest.raises(DeadlineExceeded, match=r"must end within 0.02 s"):
            await finishing(rig, [ask()])
        await rig.until_empty()


@pytest.mark.parametrize(
    ("asks", "error", "rule"),
    [
        ([], InvalidArgument, "must have 1 to 3 sequences, got 0"),
        ([ask()] * 4, InvalidArgument, "must have 1 to 3 sequences, got 4"),
        (
            [ask(98)],
            ContextTooLong,
            "maximum context length is 100 tokens, but the prompt has 3 and",
        ),
        ([Ask((), Sampling(1), 0, ANY)], InvalidArgument, "at least 1 token, got 0"),
        ([ask()] * 2, Overloaded, "3 of 4 sequences are in flight, and the request has 2"),
    ],
)
async def test_a_request_beyond_a_limit_is_refused_alone(asks, error, rule) -> None:
    async with bare(1, ServiceLimits(sequences=4, choices=3, context_tokens=100)) as rig:
        others = finishing(rig, [ask()] * 3)
        await until(lambda: rig.service.sequence_count() == 3)
        with pytest.raises(error, match=rule):
            rig.service.generate(asks)
        assert [one.tokens for one in await rig.play(others)] == [said()] * 3


async def test_a_closed_service_ends_its_requests_and_takes_no_more() -> None:
    async with bare(1) as rig:
        answer = finishing(rig, [ask(100)])
        await until(lambda: holder(rig))
        await rig.service.__aexit__(None, None, None)
        with pytest.raises(Unavailable, match="was closed"):
            await answer
        with pytest.raises(Unavailable, match="is not open"):
            rig.service.generate([ask()])
        assert holder(rig) is None


async def test_a_worker_number_is_taken_once_and_free_again_after_a_loss() -> None:
    async with bare(1) as rig:
        with pytest.raises(InvalidArgument, match="worker 0 is registered already"):
            await rig.service.register(rig.workers[0], rig.workers[0].capabilities)
        await rig.service._scheduler.lose(0, "a test says so")
        await until(lambda: rig.service.worker_count() == 0)
        await rig.service.register(rig.workers[0], rig.workers[0].capabilities)
        rig.workers[0].grant()
        assert (await rig.play(finishing(rig, [ask()])))[0].tokens == said()


async def test_a_sequence_that_every_worker_fails_is_an_error_of_its_own() -> None:
    async with bare(1) as rig:
        worker = rig.workers[0]

        def start_turn(_) -> None:
            raise InvalidArgument("it cannot run this")

        worker.start_turn = start_turn
        with pytest.raises(RoseError, match="it cannot run this"):
            await finishing(rig, [ask()])
        del worker.start_turn
        assert (await rig.play(finishing(rig, [ask()])))[0].tokens == said()
