"""One life of the asyncio driver after another: what it says it keeps, and when it keeps it not."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rose.errors import InvalidArgument, Unavailable
from rose.scheduler import PlacementPolicy, store_file
from rose.scheduler.driver_events import Begun, DriverStep
from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.store_file import FileStore
from rose.scheduler.worker import WorkerEvent, WorkerKind
from tests.lab.demo.rl.scripted_worker import ScriptedWorker
from tests.scheduler.driver_world import ManualClock, first_prompt, next_prompt, truth
from tests.scheduler.elastic_rig import (
    CAN,
    WIDE,
    ask,
    assert_true,
    bring,
    die,
    make,
    opened,
    run,
    speak_until,
    until,
)
from tests.scheduler.tuned import tuned

BORROWED = WorkerKind.BORROWED
PROMPT = first_prompt(3)


# ---- turns that were on their way ----------------------------------------------------------------


async def test_a_turn_goes_on_at_its_last_token_when_its_worker_is_back(tmp_path) -> None:
    """A worker says 3 tokens of a turn; then the scheduler is killed, and begins its next life."""
    path, box = tmp_path / "state", {}
    first = box["now"] = make(path)
    await first.__aenter__()
    worker = await bring(first, 0, BORROWED, lambda event: box["now"].receive(event))  # noqa: PLW0108
    await first.start(3, group=1)
    asked = ask(first, 3)
    await until(lambda: worker.running)
    worker.output(3, 3)
    await until(lambda: first.stats().tokens_delivered == 3)
    await die(first)
    with pytest.raises(Unavailable, match="has ended"):
        await asked
    worker.is_up = False
    worker.running.clear()  # What it says now, nobody hears.
    async with opened(path) as second:
        box["now"] = second
        worker.is_up = True
        (record,) = second.trajectories()
        assert (record.trajectory, record.group, record.has_turn) == (3, 1, True)
        await second.start(3, group=1)  # Said again, it says nothing.
        asked = ask(second, 3)
        await second.register(worker, CAN)
        worker.report_grant()
        result = await speak_until(worker, asked)
        assert [request.first_token for request in worker.asked] == [0, 3]
        assert_true(result, PROMPT)
        assert result.workers == (0, 0)
        assert second.stats().tokens_delivered == len(truth(3, PROMPT, 0).tokens)


async def test_a_turn_whose_worker_never_comes_back_goes_on_elsewhere(tmp_path) -> None:
    path = tmp_path / "state"
    async with opened(path) as first:
        worker = await bring(first, 0)
        await first.start(3)
        asked = ask(first, 3)
        await until(lambda: worker.running)
        worker.output(3, 3)
        await until(lambda: first.stats().tokens_delivered == 3)
    with pytest.raises(Unavailable, match="was closed"):
        await asked
    async with opened(path, limits={"REJOIN_S": 0.05}) as second:
        other = await bring(second, 1)
        asked = ask(second, 3)
        result = await speak_until(other, asked)
        assert_true(result, PROMPT)
        assert (result.workers, other.asked[0].first_token) == ((0, 1), 3)


async def test_turns_that_are_done_are_known_in_every_later_life(tmp_path) -> None:
    path = tmp_path / "state"
    async with opened(path) as first:
        worker = await bring(first, 0)
        await first.start(3)
        asked = ask(first, 3)
        said = await speak_until(worker, asked)
    for _ in range(2):
        async with opened(path) as later:
            assert await ask(later, 3) == said
    async with opened(path, limits={"REJOIN_S": 0.05}) as last:
        worker = await bring(last, 1)
        prompt = next_prompt(PROMPT, said)
        asked = ask(last, 3, 1, prompt=prompt)
        assert_true(await speak_until(worker, asked), prompt)
        await last.abort(3)
    async with opened(path) as after:
        await after.abort(3)
        with pytest.raises(InvalidArgument, match="was used before"):
            await after.start(3)
        assert after.counts().given_up == 1


async def test_what_a_worker_refused_is_remembered_too(tmp_path) -> None:
    path = tmp_path / "state"
    scheduler = make(path)
    await scheduler.__aenter__()
    sulking = await bring(scheduler, 0)

    def refuse(_request) -> None:
        raise Unavailable("it does not feel like it")

    sulking.start_turn = refuse
    await scheduler.start(3)
    asked = ask(scheduler, 3)
    await until(lambda: scheduler.trajectories()[0].has_turn)
    other = await bring(scheduler, 1)
    sulking.revoke()
    await until(lambda: other.running)
    other.output(3, 3)
    await until(lambda: scheduler.stats().tokens_delivered == 3)
    await die(scheduler)
    with pytest.raises(Unavailable):
        await asked
    async with opened(path, limits={"REJOIN_S": 0.02}) as later:
        assert later.stats().tokens_delivered == 3
        last = await bring(later, 2)
        asked = ask(later, 3)
        assert_true(await speak_until(last, asked), PROMPT)
        assert last.asked[0].first_token == 3


async def test_time_goes_on_though_the_machine_was_started_anew(tmp_path) -> None:
    path = tmp_path / "state"
    async with opened(path, clock=ManualClock(now_ms=1e7)) as first:
        await first.start(3)
    clock = ManualClock(now_ms=1.0)
    async with opened(path, clock=clock) as second:
        worker = await bring(second, 0)
        asked = ask(second, 3)
        assert_true(await speak_until(worker, asked), PROMPT)


# ---- checkpoints ---------------------------------------------------------------------------------


async def test_a_checkpoint_on_demand_takes_the_place_of_the_journal(tmp_path) -> None:
    path = tmp_path / "state"
    scheduler = make(path)
    await scheduler.__aenter__()
    for number in range(50):
        await scheduler.start(number)
    (before,) = tmp_path.glob("state.journal-*")
    await asyncio.gather(scheduler.checkpoint(), scheduler.checkpoint())
    (after,) = tmp_path.glob("state.journal-*")
    assert before != after
    await scheduler.start(50)
    await die(scheduler)
    store = FileStore(path)
    checkpoint, steps = store.load()
    store.close()
    assert len(checkpoint.trajectories) == 50
    assert sum(len(step.entries) for step in steps) == 1


async def test_checkpoints_are_written_now_and_then(tmp_path) -> None:
    async with opened(tmp_path / "s", limits={"CHECKPOINT_S": 0.01}) as scheduler:
        for number in range(3, 200):
            await scheduler.start(number)
            if (tmp_path / "s.journal-4").exists():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("no checkpoint was written")


def test_a_scheduler_that_is_cancelled_as_it_closes_lets_go_when_its_checkpoint_is_written(
    tmp_path, monkeypatch
) -> None:
    is_writing, may_end = threading.Event(), threading.Event()
    writes = store_file.write_whole

    def write_slowly(path: Path, *pieces: bytes) -> None:
        if threading.current_thread() is not threading.main_thread():
            is_writing.set()
            may_end.wait(5)  # One that waits with the loop's thread would wait forever.
        writes(path, *pieces)

    async def program() -> None:
        path = tmp_path / "state"
        scheduler = make(path)
        await scheduler.__aenter__()
        await scheduler.start(1)
        monkeypatch.setattr(store_file, "write_whole", write_slowly)
        saving = asyncio.create_task(scheduler.checkpoint())
        await until(is_writing.is_set)
        closing = asyncio.create_task(scheduler.__aexit__(None, None, None))
        for _ in range(3):
            await asyncio.sleep(0.02)
            closing.cancel()
        await asyncio.sleep(0.02)
        assert not closing.done()
        with pytest.raises(InvalidArgument, match="another scheduler writes"):
            FileStore(path)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await saving
        async with opened(path) as another:
            assert [one.trajectory for one in another.trajectories()] == [1]

    run(program())


async def test_other_settings_than_the_checkpoints_are_refused_by_name(tmp_path) -> None:
    path = tmp_path / "state"
    async with opened(path):
        pass
    with pytest.raises(InvalidArgument, match=r"stall_ms=200\.0, not 1\.0"):
        async with opened(path, settings=tuned(WIDE, stall_ms=1.0)):
            pass
    with pytest.raises(InvalidArgument, match="policy JOINT"):
        async with ElasticRolloutScheduler(
            WIDE, PlacementPolicy.ROSE_PUBLISHED, store=FileStore(path)
        ):
            pass
    async with opened(path):
        pass


class FullStore(FileStore):
    """A store whose disk becomes full."""

    is_full = False

    def append(self, step: DriverStep) -> None:
        if self.is_full:
            raise Unavailable("the disk is full")
        super().append(step)


def test_a_step_that_cannot_be_written_is_not_taken_and_ends_the_scheduler(tmp_path) -> None:
    async def life(path: Path) -> None:
        store = FullStore(path)
        async with ElasticRolloutScheduler(WIDE, store=store) as scheduler:
            await scheduler.start(1)
            store.is_full = True
            with pytest.raises(Unavailable, match="the disk is full"):
                await scheduler.start(2)

    async def program() -> None:
        path = tmp_path / "state"
        with pytest.raises(Unavailable, match="the disk is full"):
            await life(path)
        async with opened(path) as scheduler:
            assert [one.trajectory for one in scheduler.trajectories()] == [1]

    run(program())


@pytest.mark.parametrize("said", ["publish", "register", "finish"])
def test_nobody_waits_for_the_answer_of_a_step_that_failed(tmp_path, said) -> None:
    async def life() -> None:
        store = FullStore(tmp_path / "state")
        async with ElasticRolloutScheduler(WIDE, store=store) as scheduler:
            await scheduler.start(1)
            store.is_full = True
            words = {
                "publish": lambda: scheduler.publish(1),
                "register": lambda: scheduler.register(ScriptedWorker(0, BORROWED, print), CAN),
                "finish": lambda: scheduler.finish(1),
            }
            with pytest.raises(Unavailable, match="the disk is full"):
                await words[said]()

    async def program() -> None:
        with pytest.raises(Unavailable, match="the disk is full"):
            await life()

    run(program())


async def test_a_worker_that_registers_as_the_scheduler_closes_spoils_nothing(
    tmp_path,
) -> None:
    async with opened(tmp_path / "state") as scheduler:
        await scheduler.publish(3)
        late = asyncio.create_task(
            scheduler.register(ScriptedWorker(0, BORROWED, scheduler.receive), CAN)
        )
        await asyncio.sleep(0)  # It is said, and not yet heard.
    await asyncio.gather(late, return_exceptions=True)
    store = FileStore(tmp_path / "state")
    _, steps = store.load()
    store.close()
    assert not steps  # The last checkpoint was written.


def test_a_step_that_killed_a_life_does_not_kill_the_next(tmp_path) -> None:
    path = tmp_path / "state"
    contradiction = DriverStep(1 << 50, (Begun(1, 0, 0, 1),))

    def note(*steps: DriverStep) -> None:
        store = FileStore(path)
        store.load()
        store.rotate()
        for step in steps:
            store.append(step)
        store.close()

    async def program() -> None:
        async with opened(path) as scheduler:
            await scheduler.start(1)
        note(DriverStep(1 << 49, (Begun(2, 0, 0, 2),)), contradiction)
        async with opened(path) as scheduler:
            assert [one.trajectory for one in scheduler.trajectories()] == [1, 2]
            await scheduler.finish(2)
        note(contradiction, contradiction)  # The first one did not end anything: it is damage.
        with pytest.raises(InvalidArgument, match="was used before"):
            async with opened(path):
                pass

    run(program())


def test_scheduler_and_broker_need_neither_torch_nor_grpc_nor_prometheus() -> None:
    program = (
        "import sys, rose.scheduler, rose_lab.broker; "
        "heavy = {'grpc', 'torch', 'prometheus_client', 'numpy', 'opentelemetry'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


async def test_a_lease_outlasts_the_time_in_which_nobody_heard_it_renewed(tmp_path) -> None:
    clock, box = ManualClock(), {}
    made = {"clock": clock, "limits": {"REJOIN_S": 60.0}}

    def hear_now(event: WorkerEvent) -> None:
        box["now"].receive(event)

    worker = ScriptedWorker(0, BORROWED, hear_now, ttl_ms=100.0)
    async with opened(tmp_path / "state", **made) as first:
        box["now"] = first
        await first.register(worker, CAN)
        worker.grant()
        await first.start(3, group=1)
        asked = ask(first, 3)
        await speak_until(worker, asked)
    clock.now_ms += 1000.0  # It renews, and there is no scheduler.
    async with opened(tmp_path / "state", **made) as second:
        box["now"] = second
        clock.now_ms += 1000.0  # It has not found the new one yet.
        await asyncio.sleep(0.02)
        await second.register(worker, CAN)
        worker.report_grant()
        prompt = next_prompt(PROMPT, await asked)
        asked = ask(second, 3, 1, prompt=prompt)
        assert_true(await speak_until(worker, asked), prompt)
        assert worker.epoch == 1


async def test_a_lease_runs_out_while_every_turn_is_with_its_environment() -> None:
    clock = ManualClock()
    async with opened(clock=clock) as scheduler:
        worker = ScriptedWorker(0, BORROWED, scheduler.receive, ttl_ms=1500.0)
        await scheduler.register(worker, CAN)
        worker.grant()
        await scheduler.start(3)
        for _ in range(3):  # None of these is long, and nobody says anything.
            clock.now_ms += 600.0
            await asyncio.sleep(0.1)
        asked = ask(scheduler, 3)
        await asyncio.sleep(0.1)
        assert not worker.running
        asked.cancel()


async def test_what_a_time_without_steps_did_to_leases_is_done_again(tmp_path) -> None:
    clock, path = ManualClock(), tmp_path / "state"
    first = make(path, clock=clock)
    await first.__aenter__()
    worker = ScriptedWorker(0, BORROWED, first.receive, ttl_ms=1500.0)
    await first.register(worker, CAN)
    worker.grant()
    await first.start(3)
    asked = ask(first, 3)
    await until(lambda: worker.running)
    clock.now_ms += 60_000.0  # The process stands still.
    await first.publish(0)
    assert first.stats().running == 1
    worker.report_grant()
    await first.publish(0)
    await first.checkpoint()
    # None of these is long: the lease runs out in the third, for this life and the next.
    for running in (1, 1, 0):
        clock.now_ms += 600.0
        await first.publish(0)  # So that there is a step now.
        assert first.stats().running == running
    image = first._durable._core.snapshot()
    await die(first)
    asked.cancel()
    again = make(path, clock=clock)._durable
    again._restore(*again._store.load())
    assert again._core.snapshot() == image
    again.close()
