"""Metrics and observers of the asyncio driver, held against what its callers saw."""

import asyncio
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rose.scheduler import ElasticRolloutScheduler
from rose.scheduler.metrics import SchedulerMetrics
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import WorkerKind
from tests.scheduler.elastic_rig import (
    Voices,
    bring,
    opened,
    play,
    run,
)

BORROWED = WorkerKind.BORROWED


def scrape(scheduler: ElasticRolloutScheduler) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(SchedulerMetrics(scheduler))
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_are_what_the_scheduler_did() -> None:
    async with opened() as scheduler:
        workers = [await bring(scheduler, 0), await bring(scheduler, 1, BORROWED)]
        with Voices(*workers):
            await asyncio.gather(*(play(scheduler, number) for number in range(20)))
        await scheduler.start(20)
        stats, counts = scheduler.stats(), scheduler.counts()
        seen = scrape(scheduler)
    prefix = "rose_scheduler_"
    assert seen[prefix + "trajectories_total", "finished"] == counts.finished == 20
    assert seen[prefix + "num_trajectories", "environment"] == 1
    assert seen[prefix + "tokens_delivered_total",] == stats.tokens_delivered > 0
    assert seen[prefix + "used_kv_tokens", "1"] == 0
    assert seen[prefix + "length_bias",] == 1
    turns = {kind: seen[prefix + "turns_total", kind.value] for kind in WorkerKind}
    assert turns == dict(stats.turns_by_kind)
    assert sum(turns.values()) == counts.turns


CALLS = ("opened", "received", "begin", "add", "end", "end_all", "stepped", "close")


class BrokenWatch(DriverWatch):
    def __init__(self, name: str) -> None:
        self.calls: Counter[str] = Counter()
        for call in CALLS:
            setattr(self, call, lambda *_, call=call: self.take(call, is_broken=call == name))

    def take(self, call: str, *, is_broken: bool) -> None:
        self.calls[call] += 1
        if is_broken:
            raise KeyError("a bug of whoever watches")


@pytest.mark.parametrize("name", CALLS)
def test_a_watch_that_fails_sees_nothing_more_and_all_else_goes_on(name, caplog) -> None:
    broken, whole = BrokenWatch(name), BrokenWatch("none")

    async def program() -> None:
        async with opened(watches=[broken, whole]) as scheduler:
            worker = await bring(scheduler, 0)
            with Voices(worker):
                await asyncio.gather(*(play(scheduler, number) for number in range(3)))
            await scheduler.lose(0, "it goes")

    run(program())
    assert broken.calls[name] == 1
    assert set(whole.calls) == set(CALLS)
    assert [one.message for one in caplog.records] == [
        "observer BrokenWatch failed and was removed"
    ]
    assert "a bug of whoever watches" in caplog.text
