"""Timelines load, their spans nest, and those of several processes can be merged."""

import json
import threading
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.cli.main import main
from rose.errors import InvalidArgument
from rose.transfer.manifest import Subscription, Version
from rose.transfer.observing.timed import TimedContributor, TimedLog, TimedSource
from rose.transfer.observing.timeline import Timeline, merged
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.tiles import Row
from tests.transfer.worker import LONG_S, NAMELESS, TILES, changed, weights


class SteppingClock:
    """Goes on by one each time that it is looked at."""

    def __init__(self) -> None:
        self._now_ns = 10**15
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        with self._lock:
            self._now_ns += 1000
            return self._now_ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps")


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


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_merged_timelines_keep_every_span_and_tell_processes_apart(pids: list[int]) -> None:
    contents = []
    for at, pid in enumerate(pids):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.getpid", lambda pid=pid: pid)
            timeline = Timeline(f"process {at}", clock=SteppingClock())
        with timeline.span(f"span {at}"):
            pass
        contents.append((f"file {at}", timeline.as_json()))
    events = json.loads(merged(contents))["traceEvents"]
    assert {one["name"] for one in events if one["ph"] == "X"} == {
        f"span {at}" for at in range(len(pids))
    }
    names = {one["pid"]: one["args"]["name"] for one in events if one["ph"] == "M"}
    assert sorted(names.values()) == sorted(f"process {at}" for at in range(len(pids)))
    for one in events:
        if one["ph"] == "X":
            assert names[one["pid"]].removeprefix("process ") == one["name"].removeprefix("span ")
    again = merged([("merged", merged(contents)), contents[0]])
    assert len(json.loads(again)["traceEvents"]) == 2 * (len(pids) + 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"traceEvents": []}',
        b'{"otherData": {"clock": "CLOCK_BOOTTIME"}}',
        b'{"otherData": {"clock": "CLOCK_BOOTTIME"}, "traceEvents": [1]}',
        b'{"otherData": {"clock": "CLOCK_BOOTTIME"}, "traceEvents": [{"ph": "X", "pid": 1}]}',
        b"\xff",
    ],
)
def test_invalid_timeline_file_gives_one_sentence(content: bytes) -> None:
    with pytest.raises(InvalidArgument, match="a file"):
        merged([("a file", content)])


def test_timelines_are_merged_on_the_command_line(tmp_path, capsys) -> None:
    for name in "ab":
        timeline = Timeline(name, clock=SteppingClock())
        with timeline.span("work"):
            pass
        (tmp_path / f"{name}.json").write_bytes(timeline.as_json())
    files = [str(tmp_path / f"{name}.json") for name in "ab"]
    assert main(["transfer", "timeline", *files, "-o", str(tmp_path / "out.json")]) == 0
    assert len(spans_of((tmp_path / "out.json").read_bytes())) == 2
    for arguments in (
        [str(tmp_path / "no.json"), "-o", str(tmp_path / "x")],
        [*files, "-o", str(tmp_path / "no" / "out")],
    ):
        capsys.readouterr()
        assert main(["transfer", "timeline", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1
