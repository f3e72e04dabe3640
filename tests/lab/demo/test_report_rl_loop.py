"""The RL loop in the report: numbers checked by hand, figures, and RL loops that ended early."""

import dataclasses
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rose_lab.demo import verdict as verdicts
from rose_lab.demo.plots import draw_rl_loop, running_turns
from rose_lab.demo.record import RlLoopRecord, TurnRecord
from rose_lab.demo.report import print_table, summarise, write_report
from rose_lab.demo.summary import rl_loop_row, start_s, version_rows
from tests.lab.demo.records import EMPTY_RL_LOOP, commit, tiny_record, tiny_rl_loop

NAN = float("nan")


def report_of(rl_loop=None, **changes):
    return summarise(tiny_record(rl_loop=rl_loop or tiny_rl_loop(), **changes))


def check_of(report, name):
    (found,) = [c for c in report["verdict"]["checks"] if c["name"] == name]
    return found


def table_of(report, width=100):
    out = io.StringIO()
    print_table(report, Console(file=out, width=width))
    return out.getvalue()


def with_commits(*commits):
    """The tiny RL loop, with these commits in its second version alone."""
    first, second, third = tiny_rl_loop().versions
    versions = (
        dataclasses.replace(first, commits=()),
        dataclasses.replace(second, commits=commits),
        third,
    )
    return tiny_rl_loop(versions=versions)


def with_counts(**changes):
    return tiny_rl_loop(trajectories=dataclasses.replace(tiny_rl_loop().trajectories, **changes))


def test_numbers_of_the_weights():
    assert report_of()["weights"] == {
        "versions": 3,
        "digests_matched": 3,
        "digests_compared": 3,
        "bytes_sent": 6144,
        "trainer_to_relay_bytes": None,
        "relay_to_workers_bytes": None,
        "dense_bytes": 307200,
        "sent_share": 0.02,
        "density_p50": 0.02,
        "pause_ms_p50": 4.0,
        "pause_ms_p99": pytest.approx(7.92),
        "rolled_back": 0,
    }


def test_numbers_of_the_trajectories():
    trajectories = report_of()["trajectories"]
    assert trajectories == {
        "started": 12,
        "finished": 10,
        "resumed": 1,
        "lost": 0,
        "stale": 2,
        "passed_over": 0,
        "dropped": 1,
        "in_flight": 1,
        "turns_borrowed": 7,
        "turns_dedicated": 21,
        "per_s": 0.2,
        "staleness": {"0": 3, "1": 3, "3": 1, "10": 1},
    }
    assert list(trajectories["staleness"]) == ["0", "1", "3", "10"]


def test_incidents_count_from_the_start_of_the_rl_loop_and_ascend():
    incidents = ((115.0, "second"), (107.5, "first"))
    report = report_of(tiny_rl_loop(incidents=incidents))
    assert report["incidents"] == [{"at_s": 7.5, "what": "first"}, {"at_s": 15.0, "what": "second"}]


@pytest.mark.parametrize(
    ("change", "starts"),
    [
        ({}, 100.0),
        ({"spans": ()}, 101.0),
        ({"spans": (), "turns": ()}, 110.0),
        ({"incidents": ((90.0, "early"),)}, 90.0),
        ({"spans": ((NAN, 105.0),)}, 101.0),
    ],
)
def test_rl_loop_starts_with_the_first_thing_it_does(change, starts):
    assert start_s(tiny_rl_loop(**change)) == starts


def test_run_without_an_rl_loop_says_so_with_null():
    report = summarise(tiny_record())
    assert (report["weights"], report["trajectories"], report["incidents"]) == (None, None, [])
    assert "staleness" not in table_of(report)
    assert not any("digest" in check["name"] for check in report["verdict"]["checks"])


def test_verdict_when_the_rl_loop_closes(monkeypatch):
    settings = {"quick": False, "lr": 1e-6}
    verdict = report_of(settings=settings)["verdict"]
    for name in (
        "digests that differ",
        "trajectories lost",
        "bytes sent / dense",
        "turns resumed elsewhere",
    ):
        assert check_of({"verdict": verdict}, name)["ok"] is True, name
    monkeypatch.setattr(verdicts, "REQUESTS_MIN", 6)
    assert report_of(settings=settings)["verdict"]["sentence"] == (
        "All 16 bars are met: serving kept its latency while rollouts ran, and every published "
        "version arrived unchanged."
    )


@pytest.mark.parametrize(
    ("rl_loop", "name", "value"),
    [
        (with_commits(commit("borrowed", 121.0, 1.0, False)), "digests that differ", 1),
        (with_counts(lost=2), "trajectories lost", 2),
        (
            tiny_rl_loop(
                versions=(dataclasses.replace(tiny_rl_loop().versions[0], bytes_sent=6000),)
            ),
            "bytes sent / dense",
            6000 / 102400,
        ),
        (with_counts(resumed=0), "turns resumed elsewhere", 0),
        (tiny_rl_loop(committed_borrowed=1), "versions taken by the borrowed worker", 1),
    ],
)
def test_missed_bar_of_the_rl_loop_is_named(rl_loop, name, value):
    report = report_of(rl_loop, settings={"lr": 1e-6})
    assert check_of(report, name)["ok"] is False
    assert check_of(report, name)["value"] == pytest.approx(value)
    assert f"{name} is" in report["verdict"]["sentence"]


def test_undone_commit_is_counted_and_marked():
    rl_loop = with_commits(commit("borrowed", 121.0, 5.0, False), commit("borrowed", 122.0, 6.0))
    weights = report_of(rl_loop)["weights"]
    assert (weights["rolled_back"], weights["digests_matched"]) == (1, 1)
    row = version_rows(rl_loop)[1]
    assert row[:5] == ["5", "20.0 s", "3 %", "3 KiB", "3 %"]
    assert row[5:] == ["+1.00 s, 5.00 ms ✗ undone, +2.00 s, 6.00 ms ✓", "-"]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_table_of_the_rl_loop_fits_and_nothing_is_cut(width):
    counts = {"finished": 12345, "turns_borrowed": 54321, "turns_dedicated": 12345}
    text = table_of(report_of(with_counts(**counts)), width)
    assert "…" not in text
    row = next(line for line in text.splitlines() if "54321/12345" in line)
    assert len(row.rstrip()) <= 100
    # 12345 in 50 s; staleness (3 x 0 + 3 x 1 + 3 + 10) / 8.
    assert row.split() == ("247 12345/0 54321/12345 1 11/2/1 2 % 4.00/7.92 2.00/10".split())


def partial_rl_loops():
    whole = tiny_rl_loop()
    yield EMPTY_RL_LOOP
    for column in dataclasses.fields(RlLoopRecord):
        if isinstance(getattr(whole, column.name), tuple):
            yield dataclasses.replace(EMPTY_RL_LOOP, **{column.name: getattr(whole, column.name)})
            yield dataclasses.replace(whole, **{column.name: ()})


def test_rl_loop_that_ended_early_is_reported():
    for rl_loop in partial_rl_loops():
        record = tiny_record(slices=(), rl_loop=rl_loop, complete=False)
        report = summarise(record)
        assert json.loads(json.dumps(report, allow_nan=False)) == report
        assert len(rl_loop_row(report)) == 8
        assert len(version_rows(rl_loop)) == len(rl_loop.versions)
        assert "staleness" in table_of(report)
    assert "nan" not in draw_rl_loop(record, rl_loop)


def test_empty_rl_loop_is_neither_met_nor_missed():
    report = report_of(EMPTY_RL_LOOP, settings={"lr": 1e-6})
    names = (
        "digests that differ",
        "trajectories lost",
        "bytes sent / dense",
        "turns resumed elsewhere",
    )
    assert [check_of(report, name)["ok"] for name in names] == [None] * 4
    assert rl_loop_row(report) == ["-", "0/0", "0/0", "0", "0/0/0", "-", "-/-", "-/-"]


def test_json_and_page_are_strict_whatever_the_rl_loop_holds(tmp_path):
    rl_loop = tiny_rl_loop(
        versions=(
            dataclasses.replace(
                tiny_rl_loop().versions[0],
                published_s=NAN,
                density=NAN,
                dense_bytes=0,
                commits=(commit("borrowed", NAN, NAN), commit("elsewhere", 1.0, 1.0)),
            ),
        ),
        turns=(
            TurnRecord(0, 0, "borrowed", NAN, 5.0, 1, is_resumed=False),
            TurnRecord(1, 0, "borrowed", 130.0, 120.0, 1, is_resumed=False),
            TurnRecord(2, 0, "elsewhere", 110.0, 120.0, 1, is_resumed=False),
        ),
        spans=((100.0, NAN),),
        incidents=((NAN, "when?"),),
        measured_s=NAN,
    )
    write_report(tiny_record(rl_loop=rl_loop), tmp_path)

    def forbid(constant):
        raise AssertionError(constant)

    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=forbid)
    assert report["incidents"] == [{"at_s": None, "what": "when?"}]
    assert report["weights"]["sent_share"] is None
    assert report["trajectories"]["per_s"] is None
    assert "nan" not in " ".join(version_rows(rl_loop)[0])


def test_turn_that_cannot_be_drawn_changes_nothing():
    odd = (
        TurnRecord(7, 0, "borrowed", NAN, 105.0, 1, is_resumed=False),
        TurnRecord(7, 0, "dedicated", 130.0, 120.0, 1, is_resumed=False),
        TurnRecord(7, 0, "elsewhere", 110.0, 120.0, 1, is_resumed=False),
    )
    rl_loop = tiny_rl_loop(turns=tiny_rl_loop().turns + odd)
    assert draw_rl_loop(tiny_record(), rl_loop) == draw_rl_loop(tiny_record(), tiny_rl_loop())


starts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=60).map(
    sorted
)


@given(starts.filter(lambda pairs: any(length for _, length in pairs)), st.integers(1, 40))
def test_running_turns_hold_every_second_of_every_turn(pairs, bins):
    turns = [
        TurnRecord(i, 0, "borrowed", float(at), float(at + length), 1, is_resumed=False)
        for i, (at, length) in enumerate(pairs)
    ]
    edges, running = running_turns(turns, bins)
    assert (edges.size, running.size) == (bins + 1, bins)
    assert running.min() >= -1e-9
    assert running.max() <= len(turns) + 1e-9
    assert (running * np.diff(edges)).sum() == pytest.approx(sum(length for _, length in pairs))


def test_turns_are_counted_where_they_run():
    pairs = ((0.0, 2.0), (1.0, 4.0), (1.0, 2.0))
    turns = [TurnRecord(0, 0, "borrowed", a, b, 1, is_resumed=False) for a, b in pairs]
    edges, running = running_turns(turns, 4)
    assert edges.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert running.tolist() == [1.0, 3.0, 1.0, 1.0]
