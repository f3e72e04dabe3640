"""Metrics and spans of the asyncio front, held against what its callers saw."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rose.clock import BootClock
from rose.scheduler import spans
from rose.scheduler.metrics import SchedulerMetrics
from rose.scheduler.spans import Spans, open_spans
from rose.scheduler.watching import FrontWatch
from rose.scheduler.worker import LeaseChanged, TurnEnd, WorkerKind
from tests.rl.saying_worker import SayingWorker
from tests.scheduler.elastic_rig import WIDE, Voices, bring, opened, play, run, speak, until
from tests.scheduler.front_world import (
    CAPABILITIES,
    SAMPLING,
    ManualClock,
    first_prompt,
    truth,
    turns_of,
)
from tests.scheduler.tuned import tuned

BORROWED = WorkerKind.BORROWED


@dataclass(eq=False)
class NotedSpan:
    name: str
    parent: "NotedSpan | None"
    traceparent: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    ends: int = 0

    def set_attribute(self, key: str, value: Any) -> None:
        assert not self.ends
        self.attributes[key] = value

    def add_event(self, name: str, attributes=None) -> None:
        assert not self.ends
        self.events.append((name, dict(attributes or {})))

    def end(self) -> None:
        self.ends += 1


class NotedSpans:
    def __init__(self) -> None:
        self.all: list[NotedSpan] = []
        self.watch = Spans(self.start)

    def start(self, name, parent, traceparent, attributes) -> NotedSpan:
        self.all.append(NotedSpan(name, parent, traceparent, dict(attributes)))
        return self.all[-1]

    def named(self, name: str) -> list[NotedSpan]:
        return [span for span in self.all if span.name == name]


def scrape(metrics: SchedulerMetrics) -> dict[tuple[str, ...], float]:
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_what_the_scheduler_did() -> None:
    async def program() -> None:
        clock = ManualClock()
        metrics = SchedulerMetrics(clock)
        async with opened(watches=[metrics]) as scheduler:
            workers = [await bring(scheduler, 0), await bring(scheduler, 1, BORROWED)]
            with Voices(*workers):
                await asyncio.gather(*(play(scheduler, number) for number in range(20)))
            await scheduler.start(20)
            workers[1].revoke()
            clock.now_ms += 2000
            await scheduler.publish(1)
            stats, counts = scheduler.stats(), scheduler.counts()
            seen = scrape(metrics)
        prefix = "rose_scheduler_"
        assert seen[prefix + "trajectories_total", "finished"] == counts.finished == 20
        assert seen[prefix + "num_trajectories", "environment"] == 1
        assert seen[prefix + "tokens_delivered_total",] == stats.tokens_delivered > 0
        turns = {kind: seen.get((prefix + "turns_total", kind.value), 0) for kind in WorkerKind}
        assert turns == dict(stats.turns_by_kind)
        assert sum(turns.values()) == counts.turns
        assert seen[prefix + "lease_kv_tokens", "0", "dedicated"] == workers[0].kv_tokens
        assert seen[prefix + "lease_kv_tokens", "1", "borrowed"] == 0
        assert seen[prefix + "lease_revocations_total", "revoked"] == 1
        assert seen[prefix + "staleness_versions_count",] == 20
        assert seen[prefix + "decision_seconds_count",] > 0  # a step may decide much at once

    run(program())


def test_what_is_said_again_or_comes_late_of_a_lease_is_counted_once() -> None:
    async def program() -> None:
        metrics = SchedulerMetrics(BootClock())
        async with opened(watches=[metrics]) as scheduler:
            worker = await bring(scheduler, 0, BORROWED)
            held, epoch = worker.kv_tokens, worker.epoch
            worker.revoke()
            scheduler.hear(LeaseChanged(0, epoch, 0, 0.0))  # Again,
            scheduler.hear(LeaseChanged(0, epoch, held, 0.0))  # and a renewal that was overtaken.
            await scheduler.publish(0)
            over = scrape(metrics)
            worker.grant()
            scheduler.hear(LeaseChanged(0, epoch, 0, 0.0))
            await scheduler.publish(0)
            seen = scrape(metrics)
        lease = ("rose_scheduler_lease_kv_tokens", "0", "borrowed")
        assert (over[lease], seen[lease]) == (0, held)
        assert seen["rose_scheduler_lease_revocations_total", "revoked"] == 1

    run(program())


def test_tokens_that_a_turn_keeps_are_counted_as_salvaged() -> None:
    async def program() -> None:
        metrics = SchedulerMetrics(BootClock())
        async with opened(watches=[metrics]) as scheduler:
            first = await bring(scheduler, 0, BORROWED)
            await scheduler.start(3)
            asked = asyncio.create_task(
                scheduler.generate(3, turn=0, prompt=first_prompt(3), sampling=SAMPLING)
            )
            await until(lambda: first.running)
            first.say(3, 5)
            first.revoke()
            second = await bring(scheduler, 1)
            while not asked.done():
                speak(second)
                await asyncio.sleep(0)
            await scheduler.lose(0, "gone")
            await scheduler.register(SayingWorker(2, BORROWED, scheduler.hear), CAPABILITIES)
            await scheduler.lose(2, "it never had a lease")
            seen = scrape(metrics)
        assert seen["rose_scheduler_tokens_salvaged_total",] == 5
        assert seen["rose_scheduler_turn_parts_total", "borrowed"] == 1
        assert seen["rose_scheduler_turn_parts_total", "dedicated"] == 1
        assert seen["rose_scheduler_lease_revocations_total", "lost"] == 2
        assert ("rose_scheduler_lease_kv_tokens", "0", "borrowed") not in seen

    run(program())


def test_each_turn_has_a_span_within_that_of_its_trajectory() -> None:
    async def program() -> None:
        noted = NotedSpans()
        async with opened(watches=[noted.watch]) as scheduler:
            workers = [await bring(scheduler, 0), await bring(scheduler, 1, BORROWED)]
            with Voices(*workers):
                await asyncio.gather(*(play(scheduler, number) for number in range(12)))
        whole = {one.attributes["rose.trajectory"]: one for one in noted.named("rose.trajectory")}
        assert set(whole) == set(range(12))
        turns = noted.named("rose.turn")
        of = Counter(span.attributes["rose.trajectory"] for span in turns)
        assert of == {number: turns_of(number) for number in range(12)}
        for span in turns:
            number = span.attributes["rose.trajectory"]
            assert span.parent is whole[number]
            if span.attributes["rose.turn"] == 0:
                said = truth(number, first_prompt(number), 0)
                assert span.attributes["gen_ai.usage.output_tokens"] == len(said.tokens)
                assert span.attributes["gen_ai.usage.input_tokens"] == len(first_prompt(number))
                assert span.attributes["rose.version.min"] == min(said.versions)
                assert span.attributes["rose.version.max"] == max(said.versions)
        assert {span.ends for span in noted.all} == {1}
        assert {span.attributes["rose.fate"] for span in whole.values()} == {"finished"}

    run(program())


def test_a_span_tells_who_lost_a_turn_and_who_went_on() -> None:
    async def program() -> None:
        noted = NotedSpans()
        async with opened(watches=[noted.watch], settings=tuned(WIDE, retry_ms=0.0)) as scheduler:
            worker = await bring(scheduler, 0, BORROWED)
            await scheduler.start(3, group=5, traceparent="00-1-2-01")
            asked = asyncio.create_task(
                scheduler.generate(3, turn=0, prompt=first_prompt(3), sampling=SAMPLING)
            )
            await until(lambda: worker.running)
            worker.say(3, 2)
            epoch = worker.epoch
            for _ in range(2):  # Said twice, it was revoked once.
                scheduler.hear(LeaseChanged(0, epoch, 0, 0.0))
            worker.leave(3, TurnEnd.INTERRUPTED)
            worker.grant()
            await until(lambda: worker.running)
            await scheduler.abort(3)
            with pytest.raises(Exception, match="dropped"):
                await asked
        (trajectory,) = noted.named("rose.trajectory")
        (turn,) = noted.named("rose.turn")
        assert trajectory.traceparent == "00-1-2-01"
        assert trajectory.attributes["rose.group"] == 5
        assert trajectory.attributes["rose.fate"] == "given_up"
        assert [name for name, _ in turn.events] == ["start", "lease.revoked", "migrate"]
        assert turn.events[1][1] == {"rose.worker": 0, "rose.lease_epoch": epoch}
        assert turn.events[2][1]["rose.first_token"] == 2
        assert (trajectory.ends, turn.ends) == (1, 1)

    run(program())


def test_without_opentelemetry_there_are_no_spans(monkeypatch) -> None:
    monkeypatch.setattr(spans, "trace", None)
    assert type(open_spans()) is FrontWatch


def test_with_opentelemetry_spans_go_to_its_provider() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def program() -> None:
        async with opened(watches=[open_spans(provider)]) as scheduler:
            worker = await bring(scheduler, 0)
            with Voices(worker):
                await play(scheduler, 1, traceparent=caller)

    run(program())
    by_id = {span.context.span_id: span for span in exported.get_finished_spans()}
    (whole,) = [span for span in by_id.values() if span.name == "rose.trajectory"]
    assert f"00-{whole.parent.trace_id:032x}-{whole.parent.span_id:016x}-01" == caller
    turns = [span for span in by_id.values() if span.name == "rose.turn"]
    assert len(turns) == turns_of(1)
    assert all(by_id[span.parent.span_id] is whole for span in turns)
    assert {span.context.trace_id for span in by_id.values()} == {whole.parent.trace_id}
    assert whole.attributes["rose.fate"] == "finished"


CALLS = ("opened", "heard", "begin", "add", "end", "end_all", "stepped", "close")


class BrokenWatch(FrontWatch):
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
        "BrokenWatch has failed, and sees nothing more"
    ]
    assert "a bug of whoever watches" in caplog.text
