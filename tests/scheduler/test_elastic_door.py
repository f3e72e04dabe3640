"""What callers and workers say in wrong types harms nobody else, now or in the next life."""

import asyncio

import numpy as np
import pytest
from msgspec.structs import replace

from rose.errors import InvalidArgument
from rose.scheduler.arrivals import validated
from rose.scheduler.checks import checked
from rose.scheduler.driver_events import Begun, Ended, Registered
from rose.scheduler.turns import Capabilities, Sampling
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)
from tests.scheduler.driver_world import SAMPLING, first_prompt
from tests.scheduler.elastic_rig import (
    CAN,
    ask,
    assert_true,
    bring,
    die,
    opened,
    speak_until,
    until,
)

DEDICATED = WorkerKind.DEDICATED
OUTPUT = TurnOutput(0, 1, 2, 3, 4, (5,), (-0.5,), (6,), TurnEnd.FINISHED, "no")
LEASE = GrantChanged(0, 1, 100, 0.0)
COMMITTED = VersionCommitted(0, 1, True, 0.0)


async def nobody_is_harmed(path, poison) -> None:
    """Let one do harm; another gets its turn, and the next life knows of both trajectories."""
    manager = opened(path)
    scheduler = await manager.__aenter__()
    worker = await bring(scheduler, 0)
    await scheduler.start(0)
    await scheduler.start(1)
    await poison(scheduler)
    await asyncio.sleep(0.02)
    asked = ask(scheduler, 1)
    assert_true(await speak_until(worker, asked), first_prompt(1))
    await die(scheduler)
    async with opened(path) as again:
        assert [one.trajectory for one in again.trajectories()] == [0, 1]
        assert [len(one.turns) for one in again.trajectories()] == [0, 1]


CALLS = (
    lambda s: s.generate(0, turn=0, prompt=[1.5, 2], sampling=SAMPLING),
    lambda s: s.generate(0, turn=0, prompt=[1, None], sampling=SAMPLING),
    lambda s: s.generate(0, turn=0, prompt="ab", sampling=SAMPLING),
    lambda s: s.generate(0, turn=0, prompt=None, sampling=SAMPLING),
    lambda s: s.generate(0, turn=0, prompt=[1], sampling=None),
    lambda s: s.generate(0, turn=0.0, prompt=[1], sampling=SAMPLING),
    lambda s: s.generate("x", turn=0, prompt=[1], sampling=SAMPLING),
    lambda s: s.generate([], turn=0, prompt=[1], sampling=SAMPLING),
    lambda s: s.start("x"),
    lambda s: s.start(5, group=1.0),
    lambda s: s.start(5, job="a"),
    lambda s: s.start(5, seed=0.5),
    lambda s: s.finish("x"),
    lambda s: s.abort([]),
    lambda s: s.publish(None),
    lambda s: s.publish(1.5),
    lambda s: s.consumed(1.0),
    lambda s: s.add_job(1.0, batch_trajectories=8, max_staleness=1),
    lambda s: s.add_job(1, batch_trajectories="8", max_staleness=1),
    lambda s: s.add_job(1, batch_trajectories=8, max_staleness=1, weight="1"),
    lambda s: s.lose("x", "why"),
    lambda s: s.lose(9, None),
)


async def test_a_call_with_a_value_of_another_kind_is_refused_alone(tmp_path) -> None:
    async def poison(scheduler) -> None:
        for call in CALLS:
            with pytest.raises(InvalidArgument, match="must be"):
                await asyncio.wait_for(call(scheduler), 30)

    await nobody_is_harmed(tmp_path / "state", poison)


NEWS = (
    replace(LEASE, grant_epoch=2, kv_tokens=1e5),
    replace(LEASE, grant_epoch=2, ttl_ms=None),
    replace(COMMITTED, worker="0"),
    replace(COMMITTED, pause_ms=None),
    replace(COMMITTED, is_match="yes"),
    replace(OUTPUT, trajectory="1"),
    replace(OUTPUT, end="over"),
)


async def test_news_with_a_value_of_another_kind_is_counted_and_ignored(tmp_path) -> None:
    async def poison(scheduler) -> None:
        for event in NEWS:
            scheduler.receive(event)
        await until(lambda: scheduler._durable.invalid_events == len(NEWS))

    await nobody_is_harmed(tmp_path / "state", poison)


@pytest.mark.parametrize(
    "event",
    [
        replace(OUTPUT, tokens=(3.0,)),
        replace(OUTPUT, tokens=None),
        replace(OUTPUT, logprobs=("-0.5",)),
        replace(OUTPUT, versions=(None,)),
    ],
)
def test_an_output_whose_tokens_are_none_has_failed(event) -> None:
    valid = validated(event)
    assert (valid.tokens, valid.logprobs, valid.versions) == ((), (), ())
    assert (valid.end, valid.trajectory) == (TurnEnd.FAILED, 1)
    assert "are invalid, or differ in number" in valid.error


@pytest.mark.parametrize("end", TurnEnd)
def test_a_turn_that_ended_without_a_token_has_failed(end) -> None:
    empty = replace(OUTPUT, tokens=(), logprobs=(), versions=(), end=end)
    assert validated(empty) == empty  # it goes on elsewhere, or its last tokens came before
    valid = validated(replace(empty, first_token=0))
    assert valid.end is (TurnEnd.FAILED if end is TurnEnd.FINISHED else end)


def assert_exact(one: object, expected: object) -> None:
    """Equal in every field, and of Python's own types, or no journal could take it."""
    assert one == expected
    for name in one.__struct_fields__:
        mine, theirs = getattr(one, name), getattr(expected, name)
        assert type(mine) is type(theirs), name
        if isinstance(mine, tuple):
            assert [type(item) for item in mine] == [type(item) for item in theirs], name


def test_what_numpy_counts_is_what_python_counts() -> None:
    i, f = np.int64, np.float32
    said = TurnOutput(
        *(i(number) for number in range(5)), [i(5)], np.array([-0.5], f), [np.uint8(6)], OUTPUT.end
    )
    assert_exact(validated(said), replace(OUTPUT, error=None))
    assert_exact(validated(GrantChanged(i(0), i(1), np.int32(100), f(0))), LEASE)
    assert_exact(validated(VersionCommitted(i(0), i(1), np.True_, 0)), COMMITTED)
    assert_exact(validated(WorkerLost(i(3), "gone")), WorkerLost(3, "gone"))
    assert isinstance(validated(WorkerLost(3, None)).reason, str)
    sampling = Sampling(i(5), f(0.5), [i(7)])
    assert_exact(sampling, Sampling(5, 0.5, (7,)))
    assert_exact(checked(Begun(i(1), i(2), i(3), i(4))), Begun(1, 2, 3, 4))
    assert_exact(checked(Ended(i(1), is_wanted=True)), Ended(1, is_wanted=True))
    can = Capabilities(i(4), f(1000), 5, device=i(3))
    assert_exact(can, Capabilities(4, 1000.0, 5.0, device=3))
    assert_exact(checked(Registered(i(4), DEDICATED, can)), Registered(4, DEDICATED, can))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sampling(5.0),
        lambda: Sampling(5, "1"),
        lambda: Sampling(5, 1.0, 7),
        lambda: Capabilities(4.0, 1000.0, 5.0),
        lambda: Capabilities(4, None, 5.0),
        lambda: Capabilities(4, 1000.0, 5.0, device="a"),
        lambda: checked(Registered(0.0, DEDICATED, CAN)),
        lambda: checked(Registered(0, "borrower", CAN)),
        lambda: checked(Registered(0, DEDICATED, None)),
        lambda: checked(Begun(1 << 70, 0, 0, 0)),
        lambda: checked(Begun("x", 0, 0, 0)),
        lambda: checked(Ended("x", is_wanted=True)),
    ],
)
def test_what_is_no_number_is_refused_where_it_is_made(make) -> None:
    with pytest.raises(InvalidArgument):
        make()


class Foreign(Exception):
    """What some engine raises."""


@pytest.mark.parametrize("error", [ValueError, AssertionError, Foreign])
async def test_a_worker_that_raises_when_asked_is_lost_and_its_turns_go_on(tmp_path, error) -> None:
    async with opened(tmp_path / "state") as scheduler:
        broken = await bring(scheduler, 0)

        def start_turn(request) -> None:
            raise error("its engine said no")

        broken.start_turn = broken.stop_turn = start_turn
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: not scheduler._rollouts.is_here(0))
        worker = await bring(scheduler, 1)
        result = await speak_until(worker, asked)
        assert_true(result, first_prompt(0))
        assert result.workers[-1] == 1
        assert scheduler._rollouts.state.workers.keys() == {1}


async def test_a_worker_that_raises_as_it_is_stopped_is_lost_though_nothing_else_happens() -> None:
    async with opened() as scheduler:
        broken = await bring(scheduler, 0)
        other = await bring(scheduler, 1)
        stops = []

        def stop_turn(trajectory) -> None:
            stops.append(trajectory)
            raise Foreign("it cannot stop")

        broken.stop_turn = other.stop_turn = stop_turn
        await scheduler.start(0)
        asked = ask(scheduler, 0)
        await until(lambda: broken.running or other.running)
        lost = 0 if broken.running else 1
        await scheduler.abort(0)
        await until(lambda: not scheduler._rollouts.is_here(lost))
        assert scheduler._rollouts.is_here(1 - lost)
        assert stops == [0]
        await asyncio.gather(asked, return_exceptions=True)
        # Those that are stopped as it closes are all told, though each of them raises.
        await scheduler.start(1)
        waits = ask(scheduler, 1)
        await until(lambda: (broken, other)[1 - lost].running)
    await asyncio.gather(waits, return_exceptions=True)
    assert stops == [0, 1]
