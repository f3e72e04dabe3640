"""The bench: its document, its arithmetic, its manners. No figure is judged here."""

import json
import os
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from bench import run as bench_run
from bench.document import NOT_REACHED, UNFINISHED
from bench.paired import PairedRatio, Pairs, median_interval, paired_ratio, quantile
from bench.rows import CONTROL_BAR, Bar, Peer, Term, faults, row, void_reason
from bench.run import begin, measure, parse, summary_of, unfinished, verdict
from bench.suites import files_of, suites
from tests.warm import Start


def bench(repo: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repo / "bench" / "run.py"), *map(str, arguments)]
    return run(command, repo)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it as from a shell: in a process of a shared run of tests, nothing would be measured."""
    outside = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    return subprocess.run(
        command, cwd=folder, env=outside, capture_output=True, text=True, check=False
    )


# ---- the command


def test_every_suite_can_be_collected(repo: Path, warm: Start) -> None:
    files = sorted({file for suite in suites() for file in files_of(suite)})
    command = [sys.executable, "-m", "pytest", *files, "--collect-only", "-q"]
    process = warm(command, cwd=repo, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process.stdout:
        output = process.stdout.read().decode()
    assert process.wait() == 0, output
    assert [file for file in files if f"{file}::" not in output] == []


def test_the_transfer_suite_measures_the_codec_too() -> None:
    assert files_of("transfer") == [
        f"bench/bench_{name}.py" for name in ("chunks", "codec", "crossing", "update", "weights")
    ]
    assert files_of("codec") == ["bench/bench_codec.py"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--suite", "nowhere", "--json", "x.json"], "nowhere"),
        (["--suite", "memory", "--json", "nowhere/x.json"], "nowhere/x.json"),
        (["--suite", "memory", "--json", "bench"], "bench"),
        (["--suite", "memory"], "--json"),
        (["--suite", "memory", "--json", "x.json", "--slow"], "--slow"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    repo: Path, arguments: list[str], named: str
) -> None:
    done = bench(repo, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bench: ")
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr


# ---- pairs


class Scripted:
    """A measure that answers from a list."""

    def __init__(self, *answers: float) -> None:
        self._answers = iter(answers)

    def __call__(self) -> float:
        return next(self._answers)


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    # Rounds of (subject, peer, subject): one wild round changes nothing.
    subject = Scripted(1.0, 1.0, 1.0, 1.0, 900.0, 1.0)
    pairs = Pairs(subject, Scripted(2.0, 4.0, 2.0))
    for _ in range(3):
        pairs.round()
    result = pairs.result()
    assert result.ratio == 0.5
    assert result.control == 1.0
    assert not result.is_void


def test_drift_cancels_in_the_control() -> None:
    # Every call takes longer than the one before. In every other round the control comes first.
    calls = [1.1**number for number in range(12)]
    pairs = Pairs(Scripted(*calls), Scripted(*[1.0] * 6))
    for _ in range(6):
        pairs.round()
    assert pairs.result().control == pytest.approx(statistics.median([1.1, 1 / 1.1]))


def test_a_restless_machine_voids_the_ratio() -> None:
    assert PairedRatio(ratio=0.5, control=1.11, subject=1.0, peer=2.0).is_void
    assert PairedRatio(ratio=0.5, control=0.89, subject=1.0, peer=2.0).is_void
    assert not PairedRatio(ratio=0.5, control=0.9, subject=1.0, peer=2.0).is_void


def test_subject_and_peer_take_turns() -> None:
    calls: list[str] = []
    result = paired_ratio(lambda: calls.append("s"), lambda: calls.append("p"), rounds=5)
    assert "".join(calls) == "sps" * 5
    assert result.subject > 0
    assert result.peer > 0


def test_quantile_is_a_sample() -> None:
    samples = [float(one) for one in range(1, 101)]
    assert quantile(samples, 0.99) == 99.0
    assert quantile(samples, 0.5) == 50.0
    assert quantile([7.0], 0.99) == 7.0


def test_the_interval_of_a_median_leaves_out_what_is_rare() -> None:
    # Fewer than 7 of 25 tosses are heads with a probability of 0.7 %, fewer than 8 with 2.2 %.
    assert median_interval([float(one) for one in range(25)]) == (7.0, 17.0)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([1.0]) == (1.0, 1.0)


def test_a_ratio_says_how_far_it_is_spread() -> None:
    pairs = Pairs(Scripted(1.0, 1.0, 2.0, 2.0, 6.0, 6.0), Scripted(1.0, 1.0, 1.0))
    for _ in range(3):
        pairs.round()
    assert pairs.result().interval == (1.0, 6.0)
    assert row("x", 2.0, "ratio", interval=(1.0, 6.0))["interval"] == [1.0, 6.0]
    assert faults(document_of(row("x", 2.0, "ratio", interval=(1.0, 6.0)))) == []


# ---- rows


def document_of(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"machine": {"cpu": "x"}, "commit": "", "suite": "s", "rows": list(rows)}


def test_a_bar_has_a_direction() -> None:
    assert row("x", 0.4, "ratio", bar=Bar(at_most=0.4))["ok"] is True
    assert row("x", 0.5, "ratio", bar=Bar(at_most=0.4))["ok"] is False
    assert row("x", 0.95, "ratio", bar=Bar(at_least=0.95))["ok"] is True
    assert row("x", 0.94, "ratio", bar=Bar(at_least=0.95))["ok"] is False
    assert row("x", 0.94, "ratio")["ok"] is None


def test_a_void_row_says_why() -> None:
    ratio = row("x", 0.3, "ratio", bar=Bar(at_most=0.4), is_void=True)
    control = row("aa_x", 1.3, "ratio", bar=CONTROL_BAR)
    assert ratio["ok"] is None
    assert void_reason(ratio, [ratio, control]) == "void: aa_x is 1.3"
    assert void_reason(control, [ratio, control]) is None
    assert faults(document_of(ratio, control)) == []


SOUND = row("x", 1.0, "us", peer=Peer("y", 2.0, "us"), bar=Bar(at_most=2.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": float("nan")},
        {"value": "1"},
        {"unit": ""},
        {"peer": {"name": "y"}},
        {"peer": {"name": "y", "value": float("inf"), "unit": "us"}},
        {"bar": {}},
        {"bar": 2.0},
        {"bar": {"under": 2.0}},
        {"bar": None},
        {"ok": False},
        {"note": "more"},
        {"terms": [{"name": "y"}]},
        {"terms": [{"name": "y", "value": float("nan"), "unit": "s"}]},
        {"terms": ["y"]},
        {"interval": [1.0]},
        {"interval": [2.0, 1.0]},
        {"interval": ["1", "2"]},
    ],
)
def test_a_faulty_row_is_found(wrong: dict[str, Any]) -> None:
    assert faults(document_of(SOUND)) == []
    assert len(faults(document_of(SOUND | wrong))) == 1


def test_a_faulty_document_is_found() -> None:
    assert faults({**document_of(SOUND), "note": ""})
    assert faults({**document_of(SOUND), "machine": {}})
    assert faults(document_of())
    assert faults(document_of(SOUND, SOUND)) == ["two rows are called x"]


def test_a_document_says_what_is_unmeasured_and_why() -> None:
    missing = {"name": "y", "reason": "stopped after 45 s"}
    assert faults(document_of(SOUND) | {"unmeasured": [missing]}) == []
    assert faults(document_of() | {"unmeasured": [missing]}) == []
    assert faults(document_of(SOUND) | {"unmeasured": []}) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "y"},
        {"name": "y", "reason": ""},
        {"name": "", "reason": "z"},
        {"name": "y", "reason": "z", "ok": None},
        {"name": "x", "reason": "but it is"},
        "y",
    ],
)
def test_an_unmeasured_row_without_a_reason_is_found(wrong: Any) -> None:
    assert len(faults(document_of(SOUND) | {"unmeasured": [wrong]})) == 1


def test_a_computed_row_says_from_what() -> None:
    computed = row("x", 2.0, "s", terms=[Term("packing", 1.5, "s"), Term("wire", 0.5, "s")])
    assert computed["terms"][1] == {"name": "wire", "value": 0.5, "unit": "s"}
    assert faults(document_of(computed)) == []
    assert "terms" not in SOUND


def measured(folder: Path, program: str, *chosen: str) -> tuple[dict[str, Any], str]:
    """Run benchmarks; return the document they leave, and what they print."""
    suite, document = folder / "bench_some.py", folder / "some.json"
    suite.write_text(textwrap.dedent(program))
    document.write_text(json.dumps(document_of()))
    command = [sys.executable, "-m", "pytest", str(suite), "-p", "bench.conftest", "-v", "-s"]
    command += ["-p", "no:cacheprovider", f"--document={document}", "-c", "/dev/null", *chosen]
    done = run(command, Path(__file__).resolve().parents[2])
    return json.loads(document.read_text()), done.stdout + done.stderr


def test_what_cannot_be_measured_here_is_written_with_its_reason(tmp_path: Path) -> None:
    program = """
    import pytest

    def test_some(report):
        report.add("x", 1.0, "s")

    def test_none(report):
        report.leave_out(["y", "z"], "there is no wire")

    def test_skipped(report):
        pytest.skip("there is no peer")

    def test_failed(report):
        assert False

    @pytest.mark.slow
    def test_long(report):
        report.add("w", 1.0, "s")
    """
    document, said = measured(tmp_path, program, "-m", "not slow")
    assert [one["name"] for one in document["rows"]] == ["x"], said
    assert [(one["name"].rpartition("::")[2], one["reason"]) for one in document["unmeasured"]] == [
        ("test_long", "only FULL=1 measures it"),
        ("test_skipped", "there is no peer"),
        ("test_failed", "it failed in its call"),
        ("y", "there is no wire"),
        ("z", "there is no wire"),
    ]
    assert faults(document) == []


def test_a_killed_run_leaves_the_rows_that_were_finished(tmp_path: Path) -> None:
    program = """
    import os, signal

    def test_first(report):
        report.add("x", 1.0, "s")

    def test_second(report):
        report.add("y", 2.0, "s")
        os.kill(os.getpid(), signal.SIGKILL)

    def test_third(report):
        report.add("z", 3.0, "s")
    """
    document, said = measured(tmp_path, program)
    assert [one["name"] for one in document["rows"]] == ["x", "y"], said
    late = [(one["name"].rpartition("::")[2], one["reason"]) for one in document["unmeasured"]]
    assert late == [("test_second", UNFINISHED), ("test_third", NOT_REACHED)]
    assert faults(document) == []
    assert "  y: 2 s" in said


def test_a_suite_that_hangs_ends_at_its_limit_with_all_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_run, "_STOP_S", 0.2)
    suite, document, child = (tmp_path / name for name in ("bench_x.py", "x.json", "child"))
    program = f"""
    import pathlib, signal, subprocess, time

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asleep = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    pathlib.Path({str(child)!r}).write_text(str(asleep.pid))

    def test_endless(report):
        time.sleep(1000)
    """
    suite.write_text(textwrap.dedent(program))
    document.write_text(json.dumps(document_of()))
    further = ["-p", "bench.conftest", "-c", "/dev/null"]
    limit_s = 2.0
    while not child.exists():  # a busy machine may take longer to start Python
        assert limit_s < 200
        assert measure([str(suite)], document, further, limit_s=limit_s) is None
        limit_s *= 2
    asleep = Path(f"/proc/{child.read_text()}/stat")
    deadline_s = time.monotonic() + 60
    while asleep.exists() and ") Z " not in asleep.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def options_of(*arguments: str) -> Any:
    return parse(["--suite", "memory", "--json", "x.json", *arguments])


def test_a_suite_that_exceeds_its_limit_names_the_row() -> None:
    late = {"unmeasured": [{"name": "bench/bench_x.py::test_y", "reason": UNFINISHED}]}
    assert verdict(options_of(), None, document_of(SOUND) | late, 1800) == (
        "suite 'memory' had not ended after its limit of 1800 s: it was in test_y, after the row x",
        2,
    )
    assert unfinished(document_of() | late) == "test_y, before its first row"
    waiting = {"unmeasured": [{"name": "bench/bench_x.py", "reason": NOT_REACHED}]}
    assert unfinished(document_of() | waiting) == "its first import, before its first row"


def test_no_selected_benchmark_is_an_error_of_the_user() -> None:
    status = pytest.ExitCode.NO_TESTS_COLLECTED
    fault = "suite 'memory' has no benchmark that 'nothing' selects"
    assert verdict(options_of("--only", "nothing"), status, document_of(), 1800) == (fault, 2)


def test_rounds_end_with_the_time_of_the_suite(tmp_path: Path) -> None:
    program = """
    import time
    import bench.conftest

    bench.conftest._SUITE_S = 0.2

    def test_rounds(report):
        calls = []
        report.repeat(lambda: calls.append(time.sleep(0.01)), 10**9)
        report.add("many", len(calls), "rounds")

    def test_slow_rounds(report):
        calls = []
        report.repeat(lambda: calls.append(time.sleep(0.2)), 10**9)
        report.add("least", len(calls), "rounds")
    """
    document, said = measured(tmp_path, program)
    rounds = {one["name"]: one["value"] for one in document["rows"]}
    assert 6 <= rounds["many"] <= 11, said
    assert rounds["least"] == 6, said  # five, and one to warm up


def test_a_document_is_sound_before_anything_is_measured() -> None:
    assert faults(begin("memory")) == []


def test_the_end_says_which_bars_hold() -> None:
    rows = [
        row("x", 1.0, "us", bar=Bar(at_most=2.0)),
        row("y", 3.0, "us", bar=Bar(at_most=2.0)),
        row("z", 1.0, "ratio", bar=Bar(at_most=2.0), is_void=True),
        row("aa_z", 1.5, "ratio", bar=CONTROL_BAR),
        row("w", 9.0, "us"),
    ]
    missing = [{"name": f"bench/x.py::test_{one}", "reason": "no link"} for one in "ab"]
    assert summary_of(document_of(*rows) | {"unmeasured": missing}) == [
        "1 of 3 bars hold; missed: y; void: z",
        "unmeasured, no link: test_a, test_b",
    ]


def test_no_rows_and_nothing_unmeasured_is_a_fault() -> None:
    assert faults(document_of() | {"unmeasured": []}) == ["there are no rows"]


def test_what_is_judged_is_what_is_written() -> None:
    assert faults(document_of(row("x", 10.0000001, "ms", bar=Bar(at_most=10)))) == []
