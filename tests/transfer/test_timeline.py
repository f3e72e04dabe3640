"""A timeline has the spans of an update, and they nest."""

import json
import threading
from itertools import combinations

import pytest

from rose.transfer.manifest import Subscription, Version
from rose.transfer.observing.timed import TimedContributor, TimedLog, TimedSource
from rose.transfer.observing.timeline import Timeline
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.tiles import Row
from tests.transfer.worker import LONG_S, NAMELESS, TILES, changed, weights


class SteppingClock:
    """Advances by 1,000 ns at each reading."""

    def __init__(self) -> None:
        self._now_ns = 10**15
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        with self._lock:
            self._now_ns += 1000
            return self._now_ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a timeline must not sleep")


def spans_of(content: bytes) -> list[dict]:
    return [one for one in json.loads(content)["traceEvents"] if one["ph"] == "X"]


def nest(one: dict, other: dict) -> bool:
    """Return whether two spans of a thread are disjoint or nested, as Chrome requires."""
    (a, b), (c, d) = ((span["ts"], span["ts"] + span["dur"]) for span in (one, other))
    return b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


def commit_next(receiver: Receiver, bell: threading.Event, row: Row) -> None:
    assert bell.wait(LONG_S), receiver.failure
    bell.clear()
    staged = receiver.take_staged()
    assert staged is not None
    commit = Commit(staged, row, receiver.digest)
    while commit.step():
        pass
    receiver.report(commit.outcome)


def test_spans_of_an_update_nest_and_name_their_work() -> None:
    timeline = Timeline("both", clock=SteppingClock())
    log = TimedLog()
    log.timeline = timeline
    bits = weights(1)
    contributor = TimedContributor(Row(bits.copy(), TILES), TILES)
    contributor.timeline = timeline
    assert isinstance(contributor, Contributor)
    publisher = Publisher([contributor], TILES, Version("run", 1, 1), log)
    source = TimedSource(log, timeline)
    row, bell = Row(bits.copy(), TILES), threading.Event()
    receiver = Receiver(
        source,
        "receiver",
        NAMELESS,
        row.digests().total,
        Subscription(TILES),
        source.staged(bell.set),
    )
    with receiver:
        for seed in (None, 1, 2):
            if seed is not None:
                with timeline.span("publish"):
                    publisher.publish(Row(bits := changed(bits, seed), TILES))
            commit_next(receiver, bell, row)
            assert receiver.held == publisher.version
            source.staleness.committed(publisher.version)
    assert source.staleness.lag().versions == 0
    found = spans_of(timeline.as_json())
    names = [one["name"] for one in found]
    assert [names.count(one) for one in ("publish", "pack", "append")] == [2, 2, 2]
    assert names.count("wire") == names.count("stage") == 2  # nothing crosses for the opening
    threads = {one["tid"] for one in found}
    for tid in threads:
        its = [one for one in found if one["tid"] == tid]
        assert all(nest(one, other) for one, other in combinations(its, 2))
    by_name = {name: [one for one in found if one["name"] == name] for name in set(names)}
    for outer, inner in [("publish", "pack"), ("publish", "append"), ("stage", "wire")]:
        for one, other in zip(by_name[outer], by_name[inner], strict=True):
            assert one["ts"] <= other["ts"]
            assert other["ts"] + other["dur"] <= one["ts"] + one["dur"]


def test_span_that_fails_is_kept_and_the_oldest_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rose.transfer.observing.timeline.SPANS_MAX", 2)
    timeline = Timeline("x", clock=SteppingClock())
    with pytest.raises(KeyError), timeline.span("a"):
        raise KeyError
    assert [one.name for one in timeline.spans] == ["a"]
    for name in ("b", "c"):
        with timeline.span(name):
            pass
    assert [one.name for one in timeline.spans] == ["b", "c"]
