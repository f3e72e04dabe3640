"""Grants, events, health and loss of a worker."""

import asyncio
from collections.abc import Iterator

import pytest

from rose.engines.http import events as events_module
from rose.engines.http import worker as module
from rose.scheduler.worker import TurnEnd, WorkerKind
from tests.engines.http.fake import CONTEXT, tokens_at
from tests.engines.http.rig import Rig, rigged, until

FULL = 65536  # tokens in the KV cache of the fake


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten the intervals of health checks."""
    monkeypatch.setattr(module, "_HEALTH_S", 0.02)
    monkeypatch.setattr(module, "_DEADLINE_ELSE_S", 0.05)
    return


async def running(rig: Rig, trajectory: int = 0) -> None:
    rig.start(trajectory, count=CONTEXT)
    await until(lambda: len(rig.outputs(trajectory)) > 2)


# ---- grants --------------------------------------------------------------------------------------


async def test_dedicated_engine_is_one_grant_of_its_kv_tokens() -> None:
    async with rigged() as rig:
        assert rig.grants == [(11, FULL)]
        assert rig.worker.kind is WorkerKind.DEDICATED


async def test_revocation_recalls_all_turns_and_closes_their_streams() -> None:
    async with rigged("rose") as rig:
        assert rig.worker.kind is WorkerKind.BORROWED
        for trajectory in range(3):
            await running(rig, trajectory)
        await rig.engine.tell(grant={"grant_epoch": 1, "kv_tokens": 0, "ttl_ms": 0.0})
        await until(lambda: len(rig.grants) == 2)
        assert rig.grants[-1] == (11, 0)
        # Every turn was returned before the grant.
        assert [rig.ends(trajectory) for trajectory in range(3)] == [[TurnEnd.INTERRUPTED]] * 3
        await until(lambda: rig.engine.running == 0)
        assert not rig.lost


async def test_epochs_rise_with_each_new_grant_and_stay_with_a_renewed_one() -> None:
    async with rigged("rose") as rig:
        for grant in (
            {"grant_epoch": 1, "kv_tokens": 900, "ttl_ms": 0.0},
            {"grant_epoch": 1, "kv_tokens": 900, "ttl_ms": 500.0},
            {"grant_epoch": 1, "kv_tokens": 0, "ttl_ms": 0.0},
            {"grant_epoch": 2, "kv_tokens": 700, "ttl_ms": 0.0},
            {"grant_epoch": 3, "kv_tokens": 800, "ttl_ms": 0.0},
        ):
            seen = len(rig.grants)
            await rig.engine.tell(grant=grant)
            await until(lambda seen=seen: len(rig.grants) > seen)
        assert rig.grants == [(11, FULL), (11, 900), (11, 900), (11, 0), (12, 700), (13, 800)]
        assert [one.ttl_ms for one in rig.of(module.GrantChanged)][2] == 500.0


async def test_broken_events_count_as_a_revocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "SILENCE_S", 0.3)
    async with rigged("rose") as rig:
        await running(rig)
        rig.engine.tells = False
        await until(lambda: rig.grants[-1] == (11, 0))
        assert rig.ends() == [TurnEnd.INTERRUPTED]
        assert "event" in rig.worker.wait["reason"]
        rig.engine.tells = True
        await until(lambda: rig.grants[-1] == (12, FULL))  # the same grant of the engine
        assert rig.worker.wait is None
        assert not rig.lost


async def test_versions_of_tokens_are_those_that_the_engine_names() -> None:
    async with rigged("rose") as rig:
        await running(rig)
        await rig.engine.tell(version=4)
        await until(lambda: rig.commits == [4])
        at = len(rig.tokens())
        await until(lambda: len(rig.tokens()) > at + 20)
        rig.worker.stop_turn(0)
        versions = [one for output in rig.outputs() for one in output.versions]
        changed = versions.index(4)
        assert versions == [0] * changed + [4] * (len(versions) - changed)
        tokens = rig.tokens()
        assert tokens[:changed] == tokens_at(3, changed)
        assert tokens[changed:] == tokens_at(3 + changed, len(tokens) - changed, 4)


@pytest.mark.parametrize("what", ["restart", "lost", "invalid"])
async def test_event_that_ends_the_worker(what: str) -> None:
    async with rigged("rose") as rig:
        await running(rig)
        if what == "restart":
            await rig.engine.tell(instance="two")
        elif what == "lost":
            rig.worker._on_event("lost", {"reason": "serving is gone"})
        else:
            await rig.engine.tell(grant={"grant_epoch": 2})
        await until(lambda: rig.lost)
        reason = {"restart": "restarted", "lost": "serving is gone", "invalid": "grant"}[what]
        assert reason in rig.lost[0].reason
        assert rig.events[-1] is rig.lost[0]
        # A turn may have ended the process, but not the loan.
        assert rig.ends() == ([] if what == "restart" else [TurnEnd.INTERRUPTED])
        rig.start(1)
        assert rig.events[-1] is rig.lost[0]  # A lost worker is silent.


# ---- health --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "rose"])
async def test_death_of_the_engine_loses_the_worker_and_no_token(dialect: str) -> None:
    async with rigged(dialect) as rig:
        await running(rig)
        await rig.engine.kill()
        await until(lambda: rig.lost)
        assert rig.tokens() == tokens_at(3, len(rig.tokens()))
        assert not rig.ends()  # The loss ends the turn.
        assert len(rig.lost) == 1


async def test_failed_checks_lose_the_worker_only_if_three_follow_one_another(quick: None) -> None:
    async with rigged() as rig:
        checks = 0
        ask, rig.engine.health = rig.worker._check, 503

        async def check() -> None:
            nonlocal checks
            checks += 1
            rig.engine.health = 200 if checks == 3 else 503
            await ask()

        rig.worker._check = check
        await until(lambda: rig.lost)
        assert checks == 6
        assert "3 health checks" in rig.lost[0].reason


async def test_engine_that_does_not_answer_loses_the_worker(quick: None) -> None:
    async with rigged() as rig:
        await running(rig)
        rig.engine.can_run.clear()
        await until(lambda: rig.lost)
        assert "did not answer" in rig.lost[0].reason


async def test_broken_stream_of_a_healthy_engine_gives_back_the_turn() -> None:
    async with rigged() as rig:
        await running(rig)
        await running(rig, 1)
        for connection in list(rig.engine._runner.server.connections):
            connection.transport.abort()
        await until(lambda: rig.ends() and rig.ends(1))
        assert rig.ends() == rig.ends(1) == [TurnEnd.INTERRUPTED]
        assert not rig.lost


async def test_engine_that_drops_a_turn_twice_before_its_first_token_fails_it() -> None:
    async def drop(request):
        request.transport.abort()
        await asyncio.sleep(1)

    async with rigged() as rig:
        rig.engine.answers = [drop, drop]
        last = await rig.play()
        assert last.end is TurnEnd.FAILED
        assert rig.engine.url in last.error
        rig.engine.answers = [drop]
        assert (await rig.play(1)).end is TurnEnd.FINISHED
        assert not rig.lost
