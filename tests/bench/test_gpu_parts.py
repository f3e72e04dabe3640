"""`make gpu` in several calls: what each does, what the next takes over, and what is refused."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import merge, parts, run
from bench.gpu.children import Deadline
from bench.gpu.parts import Findings, Suite
from bench.gpu.pieces import Part, Piece, pieces, split
from bench.rows import faults, row

SOUND = Suite("tests.bench.gpu_suite_sound", limit_s=30)
# With that one suite: the tests, then the suite and the demo, then the sanitizer.
PARTS = ("1/3", "2/3", "3/3")


@pytest.fixture(autouse=True)
def demo_and_sanitizer_report(whole: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("demo", parts.DEMO_ROWS), ("sanitizer", parts.SANITIZER_ROWS)):
        found = Findings([row(one, 1, "of it") for one in rows])
        monkeypatch.setattr(parts, name, lambda _out, _deadline, found=found: found)


def document_in(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / merge.NAME).read_text())
    assert faults(document) == []
    return document


def names_in(folder: Path) -> list[str]:
    return [one["name"] for one in document_in(folder)["rows"]]


def reasons_in(folder: Path) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in document_in(folder)["unmeasured"]}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- who does what


def test_each_piece_is_in_one_part_and_the_parts_follow_each_other() -> None:
    work = pieces(run.SUITES, [])
    for of in (1, 2, 3, 4, 7, len(work), 100):
        whose = split(work, of)
        assert list(whose) == work
        numbers = [part.number for part in whose.values()]
        assert numbers == sorted(numbers)
        assert 1 <= numbers[0] <= numbers[-1] <= of
        assert {part.of for part in whose.values()} == {of}
    assert set(split(work, 1).values()) == {Part(1, 1)}


def longest_s(work: list[Piece], of: int) -> float:
    whose = split(work, of)
    return max(
        sum(piece.limit_s for piece in work if whose[piece] == Part(number, of))
        for number in range(1, of + 1)
    )


@pytest.mark.parametrize(
    ("limits_s", "of", "expected"),
    [
        ((100, 10, 10, 10, 10, 10), 2, [1, 2, 2, 2, 2, 2]),
        ((10, 10, 10, 10, 10, 100), 2, [1, 1, 1, 1, 1, 2]),
        ((30, 30, 30, 30, 30, 30), 3, [1, 1, 2, 2, 3, 3]),
    ],
)
def test_parts_are_balanced_by_the_limits_of_their_pieces(
    limits_s: tuple[float, ...], of: int, expected: list[int]
) -> None:
    work = [
        Piece(str(number), "a.log", (), limit_s, lambda _out, _deadline: Findings())
        for number, limit_s in enumerate(limits_s)
    ]
    assert [part.number for part in split(work, of).values()] == expected


def test_the_limits_of_all_pieces_are_those_they_run_under() -> None:
    limits_s = [piece.limit_s for piece in pieces(run.SUITES, [])]
    first_s = [one.limit_s for one in run.SUITES if one.is_first]
    later_s = [one.limit_s for one in run.SUITES if not one.is_first]
    assert limits_s == [*first_s, parts.TESTS_S, *later_s, parts.DEMO_S, 3 * parts.SANITIZER_S]


def test_the_first_part_begins_with_the_rows_of_copy_codec_and_gate() -> None:
    whose = split(pieces(run.SUITES, []), 4)
    begins = [piece for piece, part in whose.items() if part == Part(1, 4)][:3]
    assert [piece.what.rpartition("_")[2] for piece in begins] == ["copy", "codec", "gate"]
    assert all(piece.is_first for piece in begins)
    assert sum(piece.limit_s for piece in begins) + parts.BUILD_S < run.TOTAL_S < 600


def test_documents_name_the_number_of_parts_in_which_everything_fits(repo: Path) -> None:
    """Also when every part has to build, and every piece takes all of its time."""
    work = pieces(run.SUITES, [])
    fits = next(of for of in count(1) if parts.BUILD_S + longest_s(work, of) <= run.TOTAL_S)
    named = {
        path: re.findall(r"PART=\d+/(\d+)", (repo / path).read_text())
        for path in ("docs/gpu.md", "README.md")
    }
    assert all(named.values())
    assert {int(of) for found in named.values() for of in found} == {fits}


def test_make_passes_the_part_on(repo: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "gpu", f"PYTHON={sys.executable}", f"OUT={tmp_path / 'out'}", "PART=5/4"],
        cwd=repo,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'5/4' is no part" in done.stderr
    assert not (tmp_path / "out").exists()


# ---- one after the other


def test_parts_one_after_the_other_leave_what_the_whole_leaves(
    whole: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whole(SOUND, out="at-once") == 0
    expected = document_in(tmp_path / "at-once")
    assert expected["unmeasured"] == []
    assert whole(SOUND, part="1/3") == 0
    assert names_in(tmp_path / "out") == list(parts.TEST_ROWS)
    waiting = dict.fromkeys((*SOUND.promised, *parts.DEMO_ROWS), "not run yet: PART=2/3")
    waiting |= dict.fromkeys(parts.SANITIZER_ROWS, "not run yet: PART=3/3")
    assert reasons_in(tmp_path / "out") == waiting
    assert whole(SOUND, part="2/3") == 0
    assert set(reasons_in(tmp_path / "out")) == set(parts.SANITIZER_ROWS)
    capsys.readouterr()
    assert whole(SOUND, part="3/3") == 0
    table = capsys.readouterr().out
    names = names_in(tmp_path / "out")
    assert sorted(names) == sorted(one["name"] for one in expected["rows"])
    assert names[0] == parts.TEST_ROWS[0]
    assert names[-1] == parts.SANITIZER_ROWS[-1]
    assert document_in(tmp_path / "out") | {"rows": expected["rows"]} == expected
    assert all(name in table for name in names)
    assert "not measured" not in table


def test_the_order_of_the_parts_does_not_matter(whole: Callable[..., int], tmp_path: Path) -> None:
    assert whole(SOUND, out="at-once") == 0
    for part in reversed(PARTS):
        assert whole(SOUND, part=part) == 0
    assert set(names_in(tmp_path / "out")) == set(names_in(tmp_path / "at-once"))
    assert reasons_in(tmp_path / "out") == {}


def test_build_that_fails_leaves_the_rows_that_need_none(
    whole: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "build", lambda _out, _deadline: "the build failed: no nvcc")
    assert whole(replace(SOUND, needs_build=False)) == 1
    assert set(SOUND.promised) <= set(names_in(tmp_path / "out"))
    assert reasons_in(tmp_path / "out") == dict.fromkeys(
        (*parts.TEST_ROWS, *parts.DEMO_ROWS, *parts.SANITIZER_ROWS), "the build failed: no nvcc"
    )


@pytest.mark.parametrize(("is_first", "expected_s"), [(True, 370.0), (False, parts.BUILD_S)])
def test_build_may_take_longer_where_that_costs_the_first_rows_nothing(
    whole: Callable[..., int], monkeypatch: pytest.MonkeyPatch, *, is_first: bool, expected_s: float
) -> None:
    given_s: list[float] = []

    def build(_out: Path, deadline: Deadline) -> str:
        given_s.append(deadline.left_s())
        return "not now"

    monkeypatch.setattr(parts, "build", build)
    whole(replace(SOUND, is_first=is_first), total_s=400.0)
    assert expected_s - 20 < given_s[0] <= expected_s


def test_every_part_builds_and_the_logs_of_all_are_kept(
    whole: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []
    monkeypatch.setattr(parts, "build", lambda out, _deadline: built.append(out))
    for part in (*PARTS, "2/3"):
        assert whole(SOUND, part=part) == 0
    assert built == [tmp_path / "out"] * 4
    log = (tmp_path / "out" / "build.log").read_text()
    assert re.findall(r"==== (PART=\d/\d), building", log) == [
        f"PART={part}" for part in (*PARTS, "2/3")
    ]
    measured = (tmp_path / "out" / "suites.log").read_text()
    assert measured.count("==== PART=2/3, measuring, tests.bench.gpu_suite_sound") == 2
    assert measured.count("bench.gpu.child") == 2
    files = set(contents(tmp_path / "out"))
    assert files <= {merge.NAME, "demo.json", *run.LOGS}


def test_a_part_that_runs_again_replaces_what_it_said(
    whole: Callable[..., int], tmp_path: Path
) -> None:
    for part in PARTS:
        assert whole(SOUND, part=part) == 0
    before = names_in(tmp_path / "out")
    assert whole(SOUND, part="2/3", total_s=0.0) == 1
    # The ratio takes its control with it.
    assert "aa_length_over_peer" not in names_in(tmp_path / "out")
    assert reasons_in(tmp_path / "out") == dict.fromkeys(SOUND.promised, "no time was left for it")
    # Another part is not to blame, and mends nothing.
    assert whole(SOUND, part="3/3") == 0
    assert set(reasons_in(tmp_path / "out")) == set(SOUND.promised)
    assert whole(SOUND, part="2/3") == 0
    assert reasons_in(tmp_path / "out") == {}
    assert set(names_in(tmp_path / "out")) == set(before)


def test_what_waits_is_said_in_the_parts_of_the_last_call(
    whole: Callable[..., int], tmp_path: Path
) -> None:
    assert whole(SOUND, part="1/3") == 0
    assert whole(SOUND, part="1/2") == 0
    assert set(reasons_in(tmp_path / "out").values()) == {"not run yet: PART=2/2"}


def test_a_part_that_is_cut_off_leaves_what_it_had_and_what_was_there(
    whole: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole(SOUND, part="3/3") == 0

    def interrupted(_out: Path, _deadline: Deadline) -> Findings:
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, "demo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        whole(SOUND, part="2/3")
    assert {*parts.SANITIZER_ROWS, "length_m"} <= set(names_in(tmp_path / "out"))
    assert reasons_in(tmp_path / "out")[parts.DEMO_ROWS[0]] == "not run yet: PART=2/3"


def test_tests_that_failed_in_another_part_are_shown_and_not_this_parts_failure(
    whole: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert whole(SOUND, part="1/3") == 0
    failed = {"test": "a::test_b", "outcome": "failed", "why": "assert 2 == 1"}
    text = f"{json.dumps(failed)}\n... 7 bytes are left out ...\n"
    (tmp_path / "out" / "tests.jsonl").write_text(text)
    capsys.readouterr()
    assert whole(SOUND, part="2/3") == 0
    assert "assert 2 == 1" in capsys.readouterr().out


def test_time_is_kept_for_the_demo_only_in_its_part(
    whole: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[float] = []

    def tests(_out: Path, deadline: Deadline, _files: list[str]) -> Findings:
        left_s.append(deadline.left_s())
        return Findings()

    monkeypatch.setattr(parts, "tests", tests)
    monkeypatch.setattr(parts, "why_no_demo", lambda: None)
    assert whole(SOUND, part="1/3", total_s=100.0) == 0
    assert left_s[0] > 100.0 - parts.DEMO_S


# ---- what is refused


def change(folder: Path, key: str, value: object) -> None:
    document = document_in(folder)
    (document if key in document else document["machine"])[key] = value
    (folder / merge.NAME).write_text(json.dumps(document))


@pytest.mark.parametrize("named", ["580.159.04", "580.159.04, 580.159.05"])
def test_drivers_that_differ_in_their_patch_level_go_together_and_are_named(
    whole: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    assert whole(SOUND, part="1/3") == 0
    change(tmp_path / "out", "driver", named)
    gpu = {**document_in(tmp_path / "out")["machine"], "driver": "580.159.03"}
    monkeypatch.setattr(run, "card", lambda: gpu)
    assert whole(SOUND, part="2/3") == 0
    assert document_in(tmp_path / "out")["machine"]["driver"] == f"{named}, 580.159.03"
    monkeypatch.setattr(run, "card", lambda: gpu | {"driver": "580.160.03"})
    assert whole(SOUND, part="3/3") == 2


OTHER = ["commit", "gpu", "driver", "torch", "triton", "cpu"]


@pytest.mark.parametrize("key", OTHER)
def test_another_commit_or_machine_is_refused_and_nothing_changes(
    whole: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    assert whole(SOUND, part="1/3") == 0
    change(tmp_path / "out", key, "of another")
    before = contents(tmp_path / "out")
    capsys.readouterr()
    assert whole(SOUND, part="2/3") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert f"{key} 'of another'" in said.err
    assert contents(tmp_path / "out") == before
    # All the work at once begins anew.
    assert whole(SOUND) == 0


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"suite": "memory"}'])
def test_what_is_no_document_is_refused_and_stays(
    whole: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / merge.NAME).write_text(text)
    assert whole(SOUND, part="2/3") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert contents(tmp_path / "out") == {merge.NAME: text.encode()}


def test_a_machine_that_is_warmer_is_the_same(whole: Callable[..., int], tmp_path: Path) -> None:
    assert whole(SOUND, part="1/3") == 0
    change(tmp_path / "out", "temperature_c", 80)
    assert whole(SOUND, part="2/3") == 0


# ---- from folders of their own


def merge_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu.merge", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_folders_of_their_own_are_merged_into_the_same_document(
    whole: Callable[..., int], tmp_path: Path
) -> None:
    assert whole(SOUND, out="at-once") == 0
    folders = [tmp_path / part[0] for part in PARTS]
    for folder, part in zip(folders, PARTS, strict=True):
        assert whole(SOUND, part=part, out=folder.name) == 0
    assert set(reasons_in(folders[2]).values()) == {
        "not run yet: PART=1/3",
        "not run yet: PART=2/3",
    }
    (tmp_path / "merged").mkdir()
    done = merge_command(*folders, "--out", tmp_path / "merged" / merge.NAME)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert document_in(tmp_path / "merged")["unmeasured"] == []
    assert set(names_in(tmp_path / "merged")) == set(names_in(tmp_path / "at-once"))


def test_folders_that_do_not_go_together_are_refused_in_one_sentence(
    whole: Callable[..., int], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        assert whole(SOUND, part="1/3", out=name) == 0
    change(tmp_path / "b", "commit", "0123abc")
    out = tmp_path / "merged.json"
    for folders, said in ((("a", "b"), "'0123abc'"), (("a", "none"), "cannot read")):
        done = merge_command(*(tmp_path / name for name in folders), "--out", out)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert str(tmp_path / folders[1]) in done.stderr
        assert said in done.stderr
        assert not out.exists()
    done = merge_command(tmp_path / "a", "--out", tmp_path / "none" / "gpu.json")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
