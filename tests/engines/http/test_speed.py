"""The speed by which turns are placed: measured at the start, then compared with the turns."""

from dataclasses import replace

import pytest

from rose.clock import BootClock
from rose.engines.http import EngineSpeed, measure, open_session, probe
from rose.engines.http import speed as module
from rose.engines.http import worker as worker_module
from rose.engines.http.link import Link
from rose.engines.http.speed import Pace
from rose.errors import DeadlineExceeded, Unavailable
from rose.units import NS_PER_S
from tests.engines.http.fake import FakeEngine, engine
from tests.engines.http.rig import rigged, until


class HandClock:
    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * NS_PER_S)


async def measured(one: FakeEngine, **changes: object) -> EngineSpeed:
    async with open_session() as session:
        facts = replace(await probe(session, one.url), **changes)
        return await measure(Link(session, one.url), facts, BootClock())


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "rose"])
async def test_requests_that_measure_fit_the_model(dialect: str) -> None:
    async with engine(dialect) as one:
        speed = await measured(one, vocabulary=9, context_tokens=40, kv_tokens=None)
        assert speed.decode_step_ms > 0
        assert speed.decode_ms_per_sequence >= 0
        assert speed.step_ms(1) >= 2  # the fake's step takes 2 ms
        prompts = [body.get("prompt", body.get("input_ids")) for body in one.bodies]
        assert max(map(max, prompts)) < 9
        assert max(map(len, prompts)) == 24
        long = [tuple(prompt) for prompt in prompts if len(prompt) > 1]
        assert len(set(long)) == len(long)  # so no prefix cache holds them


async def test_engine_that_is_slow_to_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MEASURE_S", 0.05)
    async with engine(step_s=1.0) as one:
        with pytest.raises(DeadlineExceeded, match="measure"):
            await measured(one)


async def test_engine_that_refuses_to_be_measured_is_named() -> None:
    async with engine() as one, open_session() as session:
        facts = await probe(session, one.url)
        one.token = "secret"
        with pytest.raises(Unavailable, match="401"):
            await measure(Link(session, one.url), facts, BootClock())


def test_pace_reports_a_large_difference_and_at_most_every_ten_seconds() -> None:
    clock = HandClock()
    pace = Pace(EngineSpeed(1000.0, 8.0, 1.0), clock)

    def run(tokens: int, ms_per_token: float) -> EngineSpeed | None:
        pace.add(tokens, tokens * ms_per_token, 2)  # expected: 10 ms
        return pace.changed()

    assert run(100, 30.0) is None  # too early
    clock.sleep(10)
    assert run(10, 30.0) == EngineSpeed(
        pytest.approx(1000 / 3), pytest.approx(24.0), pytest.approx(3.0)
    )
    assert run(100, 10.0) is None  # too early again
    clock.sleep(10)
    assert run(1, 10.0) == EngineSpeed(
        pytest.approx(1000.0), pytest.approx(8.0), pytest.approx(1.0)
    )
    clock.sleep(10)
    assert run(20, 50.0) is None  # too few tokens
    assert run(1000, 11.0) is None  # within a quarter
    assert pace.speed.step_ms(2) == pytest.approx(10.0)


async def test_worker_reports_the_speed_of_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_HEALTH_S", 0.01)
    monkeypatch.setattr(module, "_REPORT_S", 0.0)
    told: list[EngineSpeed] = []

    async def on_speed(speed: EngineSpeed) -> None:
        told.append(speed)

    async with rigged(step_s=0.005) as rig:
        rig.worker._on_speed = on_speed
        rig.worker._pace = Pace(EngineSpeed(1000.0, 0.5, 0.0), BootClock())
        for trajectory in range(3):
            rig.start(trajectory, count=60)
        await until(lambda: told)
        assert told[0].decode_step_ms > 4
        assert rig.worker.speed is told[-1]
