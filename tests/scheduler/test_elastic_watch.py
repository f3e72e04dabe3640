"""Metrics and spans of the asyncio driver, held against what its callers saw."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rose.scheduler import ElasticRolloutScheduler
from rose.scheduler.metrics import SchedulerMetrics
from rose.scheduler.spans import TurnSpans
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import TurnEnd, WorkerKind
from tests.scheduler.driver_world import SAMPLING, first_prompt, truth, turns_of
from tests.scheduler.elastic_rig import (
    WIDE,
    Voices,
    bring,
    opened,
    play,
    run,
    until,
)
from tests.scheduler.tuned import tuned

BORROWED = WorkerKind.BORROWED
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class KeptSpans:
    """Spans that go to a provider of OpenTelemetry, and what came out of it."""

    def __init__(self) -> None:
        self._exported = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exported))
        self.watch = TurnSpans(provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exported.get_finished_spans() if span.name == name]


def said_of(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


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


def test_each_turn_has_a_span_within_that_of_its_trajectory() -> None:
    kept = KeptSpans()

    async def program() -> None:
        async with opened(watches=[kept.watch]) as scheduler:
            workers = [await bring(scheduler, 0), await bring(scheduler, 1, BORROWED)]
            with Voices(*workers):
                await asyncio.gather(
                    *(play(scheduler, number, traceparent=CALLER) for number in range(12))
                )

    run(program())
    whole = {said_of(one)["rose.trajectory"]: one for one in kept.named("rose.trajectory")}
    assert set(whole) == set(range(12))
    turns = kept.named("rose.turn")
    of = Counter(said_of(span)["rose.trajectory"] for span in turns)
    assert of == {number: turns_of(number) for number in range(12)}
    for span in turns:
        attributes = said_of(span)
        number = attributes["rose.trajectory"]
        assert span.parent == whole[number].context
        if attributes["rose.turn"] == 0:
            said = truth(number, first_prompt(number), 0)
            assert attributes["gen_ai.usage.output_tokens"] == len(said.tokens)
            assert attributes["gen_ai.usage.input_tokens"] == len(first_prompt(number))
            assert attributes["rose.version.min"] == min(said.versions)
            assert attributes["rose.version.max"] == max(said.versions)
    for span in whole.values():
        assert span.parent is not None
        assert f"00-{span.parent.trace_id:032x}-{span.parent.span_id:016x}-01" == CALLER
        assert said_of(span)["rose.fate"] == "finished"


def test_a_span_tells_who_lost_a_turn_and_who_went_on(tmp_path) -> None:
    kept = KeptSpans()

    async def program() -> None:
        settings, path = tuned(WIDE, retry_ms=0.0), tmp_path / "state"
        async with opened(path, watches=[kept.watch], settings=settings) as scheduler:
            worker = await bring(scheduler, 0, BORROWED)
            await scheduler.start(3, group=5)
            asked = asyncio.create_task(
                scheduler.generate(3, turn=0, prompt=first_prompt(3), sampling=SAMPLING)
            )
            await until(lambda: worker.running)
            worker.output(3, 2)
            worker.leave(3, TurnEnd.INTERRUPTED)
            worker.grant()
            await until(lambda: worker.running)
        with pytest.raises(Exception, match="closed"):
            await asked
        async with opened(path, watches=[kept.watch], settings=settings) as scheduler:
            await scheduler.abort(3)

    run(program())
    before, after = kept.named("rose.trajectory")
    turn, again = kept.named("rose.turn")
    assert said_of(before)["rose.group"] == said_of(after)["rose.group"] == 5
    assert (said_of(before)["rose.restarted"], said_of(after)["rose.restarted"]) == (False, True)
    assert (said_of(before)["rose.fate"], said_of(after)["rose.fate"]) == ("under way", "given_up")
    assert [event.name for event in turn.events] == ["start", "migrate"]
    assert turn.events[1].attributes["rose.first_token"] == 2
    assert again.parent == after.context


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
