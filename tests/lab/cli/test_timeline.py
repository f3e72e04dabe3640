"""Timelines of several processes lie side by side in one file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.cli.main import main
from rose.errors import InvalidArgument
from rose.transfer.observing.timeline import Timeline
from rose_lab.cli.timeline import merged
from tests.transfer.test_timeline import SteppingClock, spans_of


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_a_merged_file_has_every_span_under_its_own_process(pids: list[int]) -> None:
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
def test_a_file_that_is_no_timeline_is_refused_in_one_sentence(content: bytes) -> None:
    with pytest.raises(InvalidArgument, match="a file"):
        merged([("a file", content)])


def test_the_command_merges_files(tmp_path, capsys) -> None:
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
