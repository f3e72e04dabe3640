"""`make gpu` where there is no GPU: its order, its limits, its document. No device is touched."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import parts, run, suite_codec, suite_codec_large
from bench.gpu.children import Deadline, Ending, last_line, python, run_child, shorten
from bench.gpu.parts import Findings, GpuTests, Suite
from bench.gpu.report import Cannot, Report, read_rows
from bench.rows import faults

SOUND = Suite("tests.bench.gpu_suite_sound", limit_s=30)
BROKEN = Suite("tests.bench.gpu_suite_broken", limit_s=3)
# Also where there is a GPU, these tests see none.
NO_GPU = os.environ | {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each pytest that is started here the import of Hypothesis."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def command(repo: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu.run", *arguments],
        cwd=repo,
        env=NO_GPU,
        capture_output=True,
        text=True,
        check=False,
    )


def test_tensors_of_a_model_are_aligned_and_large_bars_are_shares() -> None:
    assert suite_codec.tensor_size(suite_codec.COUNT) % suite_codec.BLOCK_ELEMENTS == 0
    assert {name: bar.at_least for name, bar in suite_codec_large.BARS.items()} == {
        "pack_gap_7p6b_share_of_copy": 0.75,
        "apply_gap_7p6b_share_of_copy": 0.6,
    }
    assert set(suite_codec_large.BARS) <= set(suite_codec_large.ROWS)


# ---- the command


def test_without_a_gpu_it_says_so_and_writes_nothing(repo: Path, tmp_path: Path) -> None:
    done = command(repo, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpu: no GPU: ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--out"),
        (["--out", "setup.py"], "setup.py"),
        (["--out", "x", "--fast"], "--fast"),
        *((["--out", "x", "--part", part], part) for part in ("0/3", "4/3", "2", "1/0", "a/b", "")),
    ],
)
def test_bad_usage_is_one_sentence_and_status_2(
    repo: Path, arguments: list[str], named: str
) -> None:
    done = command(repo, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpu: ")
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr


@pytest.mark.parametrize("out", ["", "OUT="])
def test_make_asks_for_a_folder(repo: Path, out: str) -> None:
    make = ["make", "gpu", f"PYTHON={sys.executable}", *([out] if out else [])]
    done = subprocess.run(make, cwd=repo, env=NO_GPU, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "OUT=gpu-results" in done.stderr


# ---- the packages of this checkout


def test_package_of_another_place_is_refused_in_one_sentence(
    whole: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run.shadowed() is None
    (tmp_path / "probing").mkdir()
    (tmp_path / "probing" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    why = run.shadowed(["probing"])
    assert why is not None
    assert f"is found in: {tmp_path / 'probing'}; mend PYTHONPATH" in why
    assert "is found in: nowhere" in (run.shadowed(["no_such_package"]) or "")
    monkeypatch.setattr(run, "shadowed", lambda: why)
    assert whole(SOUND) == 2
    assert capsys.readouterr().err == f"gpu: {why}\n"
    assert not (tmp_path / "out").exists()


def test_package_of_the_same_name_elsewhere_does_not_come_first(repo: Path, tmp_path: Path) -> None:
    for name in ("bench", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "import bench.gpu.run, tests; print(bench.gpu.run.shadowed())"],
        cwd=repo,
        env=os.environ | {"PYTHONPATH": f"{repo}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


# ---- the whole run


def document_in(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "out" / "gpu.json").read_text())
    assert faults(document) == []
    return document


def test_a_complete_run_is_status_0(
    whole: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whole(SOUND) == 0
    document = document_in(tmp_path)
    assert document["suite"] == "gpu"
    assert document["machine"]["gpu"] == "a GPU"
    assert document["unmeasured"] == []
    names = {one["name"] for one in document["rows"]}
    assert {"length_m", "weight_kg", "length_over_peer", "aa_length_over_peer"} <= names
    assert "gpu_tests_failed" in names
    table = capsys.readouterr().out
    # A bar that is missed is said, and no failure.
    assert "weight_kg" in table
    assert "no" in table
    assert max(map(len, table.splitlines())) <= run.LOG_WIDTH


def test_what_is_unmeasured_is_said_with_its_reason_and_is_status_1(
    whole: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = time.monotonic()
    assert whole(BROKEN, SOUND) == 1
    assert time.monotonic() - began_s < 30  # it hangs for a minute
    document = document_in(tmp_path)
    reasons = {one["name"]: one["reason"] for one in document["unmeasured"]}
    assert reasons["second_us"] == "ValueError: it fell over"
    assert reasons["third_us"] == "there is too little of it"
    assert reasons["fourth_us"].startswith("stopped after ")
    assert "first_us" in {one["name"] for one in document["rows"]}
    assert "length_m" in {one["name"] for one in document["rows"]}
    assert "not measured" in capsys.readouterr().out
    log = (tmp_path / "out" / "suites.log").read_text()
    assert "it fell" in log
    assert "measure" in log[log.index("Current thread") :]  # where it hung


def test_no_more_files_than_a_machine_returns(whole: Callable[..., int], tmp_path: Path) -> None:
    whole(SOUND)
    files = list((tmp_path / "out").iterdir())
    assert {file.name for file in files} <= {"gpu.json", "demo.json", *run.LOGS}
    assert 2 + len(run.LOGS) <= 8
    assert all(file.is_file() for file in files)


def test_what_an_earlier_run_left_is_not_taken_for_this_one(
    whole: Callable[..., int], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "demo.json").write_text("{}")
    (tmp_path / "out" / "suites.log").write_text("of yesterday")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    whole(SOUND)
    assert not (tmp_path / "out" / "demo.json").exists()
    assert "of yesterday" not in (tmp_path / "out" / "suites.log").read_text()
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_run_whose_time_is_over_still_writes_its_document(
    whole: Callable[..., int], tmp_path: Path
) -> None:
    assert whole(SOUND, BROKEN, total_s=0.0) == 1
    document = document_in(tmp_path)
    assert {one["name"] for one in document["unmeasured"]} == {
        *SOUND.promised,
        *BROKEN.promised,
    }
    assert {one["reason"] for one in document["unmeasured"]} == {"no time was left for it"}


def test_the_demo_has_its_time_whatever_comes_before(
    whole: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[float] = []

    def demo(_out: Path, deadline: Deadline) -> Findings:
        left_s.append(deadline.left_s())
        return Findings()

    monkeypatch.setattr(parts, "demo", demo)
    monkeypatch.setattr(parts, "DEMO_S", 50.0)
    hanging = Suite(BROKEN.module, limit_s=100.0)
    monkeypatch.setattr(parts, "why_no_demo", lambda: None)
    assert whole(hanging, total_s=54.0) == 1
    assert left_s[0] > 40.0
    # Where it cannot run, the suites have that time.
    monkeypatch.setattr(parts, "why_no_demo", lambda: "no transformers")
    assert whole(SOUND, total_s=50.0) == 0


def test_without_a_build_nothing_else_is_tried(
    whole: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "build", lambda _out, _deadline: "the build failed: status 1")
    assert whole(SOUND) == 1
    document = document_in(tmp_path)
    assert document["rows"] == []
    expected = {*SOUND.promised, *parts.TEST_ROWS, *parts.DEMO_ROWS, *parts.SANITIZER_ROWS}
    assert {one["name"] for one in document["unmeasured"]} == expected
    assert {one["reason"] for one in document["unmeasured"]} == {"the build failed: status 1"}


def test_a_failed_test_is_status_1(
    whole: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Findings(tests=[("a::test_b[c]", "failed", "assert [red] == 1")])
    monkeypatch.setattr(parts, "tests", lambda *_: found)
    assert whole(SOUND) == 1
    assert "assert [red] == 1" in capsys.readouterr().out
    monkeypatch.setattr(
        parts, "tests", lambda *_: Findings(tests=[("a::test_b", "skipped", "no cupy")])
    )
    assert whole(SOUND) == 0


def test_a_folder_that_cannot_be_made_is_one_sentence(
    whole: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run.main(["--out", str(tmp_path / "file" / "out")], suites=[], test_files=[]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# ---- children


def test_a_child_that_ignores_to_be_ended_is_killed_with_all_it_started(tmp_path: Path) -> None:
    program = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']); "
        "print(one.pid, flush=True); time.sleep(100)"
    )
    log = tmp_path / "log"
    ending = run_child(python("-c", program), log=log, limit_s=3)
    assert ending.status is None
    assert not ending.is_good
    assert ending.reason().startswith("stopped after ")
    grandchild = int(last_line(log))
    wait_gone(grandchild)


def wait_gone(pid: int) -> None:
    """Whoever adopted it has to notice: it may be a zombie for a moment."""
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} still runs")


def test_a_child_says_how_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_child(python("-c", "print('fine')"), log=log, limit_s=30).is_good
    assert last_line(log) == "fine"
    failed = run_child(python("-c", "import sys; sys.exit('too bad')"), log=log, limit_s=30)
    assert failed.reason(last_line(log)) == "status 1: too bad"
    killed = run_child(python("-c", "import os; os.abort()"), log=log, limit_s=30)
    assert killed.reason() == "signal 6"
    late = run_child(python("-c", ""), log=log, limit_s=0)
    assert late == Ending(None, 0.0)
    assert late.reason() == "no time was left for it"


def test_this_checkout_comes_first_in_a_child(tmp_path: Path, repo: Path) -> None:
    """Also for a program that lies elsewhere, and where another rose is installed."""
    log, program = tmp_path / "log", tmp_path / "program.py"
    program.write_text("import rose, pathlib; print(pathlib.Path(rose.__file__).parents[1])")
    assert run_child(python(str(program)), log=log, limit_s=30).is_good
    assert last_line(log) == str(repo)


def test_the_deadline_shortens_what_is_left() -> None:
    clock = [100.0]
    deadline = Deadline(10.0, now=lambda: clock[0])
    assert deadline.at_most(45.0) == 10.0
    clock[0] = 107.0
    assert deadline.at_most(45.0) == 3.0
    assert deadline.at_most(2.0) == 2.0
    assert deadline.less(2.0).at_most(45.0) == 1.0
    clock[0] = 200.0
    assert deadline.left_s() == 0.0
    assert deadline.less(2.0).left_s() == 0.0


def test_a_long_log_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"head\n" + b"x" * 100_000 + b"\ntail")
    shorten(log, bytes_max=10_000)
    text = log.read_bytes()
    assert len(text) <= 10_000
    assert text.startswith(b"head")
    assert text.endswith(b"tail")
    assert b"are left out" in text
    shorten(log, bytes_max=10_000)
    assert log.read_bytes() == text


# ---- reports


def test_a_suite_keeps_to_what_it_promised(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows", ["a", "b"])
    report.add("a", 1.0, "us")
    with pytest.raises(Exception, match="twice"):
        report.add("a", 1.0, "us")
    with pytest.raises(Exception, match="not in ROWS"):
        report.add("c", 1.0, "us")
    with pytest.raises(Exception, match="finite"):
        report.add("b", float("nan"), "us")
    rows, unmeasured = read_rows(tmp_path / "rows")
    assert [one["name"] for one in rows] == ["a"]
    assert unmeasured == []


def test_a_failure_costs_the_rows_that_were_not_reported(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows", ["a", "b", "c"])
    with report.rows("a", "b", "c"):
        report.add("a", 1.0, "us")
        with report.rows("b"):
            raise Cannot("no b")
        raise RuntimeError("no c")
    rows, unmeasured = read_rows(tmp_path / "rows")
    assert [one["name"] for one in rows] == ["a"]
    assert unmeasured == [
        {"name": "b", "reason": "no b"},
        {"name": "c", "reason": "RuntimeError: no c"},
    ]


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows", ["a", "b"])
    report.add("a", 1.0, "us")
    with (tmp_path / "rows").open("a") as file:
        file.write('{"row": {"name": "b"')
    assert [one["name"] for one in read_rows(tmp_path / "rows")[0]] == ["a"]
    assert read_rows(tmp_path / "nothing") == ([], [])


# ---- the tests' own processes

TESTS = """
import os, time
import pytest
pytestmark = pytest.mark.gpu
def test_passes(): pass
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("not here")
def test_ends_its_process(): os._exit(3)
@pytest.fixture
def broken():
    yield
    raise OSError("at its end")
def test_breaks_at_its_end(broken): pass
def test_runs_in_the_next_process(): pass
"""


def run_tests(tmp_path: Path, text: str, *, limit_s: float = 60.0) -> dict[str, tuple[str, str]]:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a GPU\n")
    (tmp_path / "test_it.py").write_text(text)
    file = GpuTests([str(tmp_path / "test_it.py")])
    file.run(tmp_path, Deadline(limit_s))
    return {test.split("::")[-1]: how for test, how in file.outcomes.items()}


def test_a_test_that_ends_its_process_costs_itself_only(tmp_path: Path) -> None:
    outcomes = run_tests(tmp_path, TESTS)
    assert {name: how[0] for name, how in outcomes.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
        "test_ends_its_process": "failed",
        "test_breaks_at_its_end": "failed",
        "test_runs_in_the_next_process": "passed",
    }
    assert outcomes["test_skips"][1] == "not here"
    assert "1 == 2" in outcomes["test_fails"][1]
    assert outcomes["test_ends_its_process"][1].startswith("its process ended here: status 3")
    assert "at its end" in outcomes["test_breaks_at_its_end"][1]


def test_a_file_that_cannot_be_collected_is_a_failure(tmp_path: Path) -> None:
    outcomes = run_tests(tmp_path, "import nowhere_at_all\n")
    assert [how[0] for how in outcomes.values()] == ["failed"]
    assert "not run" in next(iter(outcomes.values()))[1]


def test_when_time_is_over_the_tests_that_are_left_have_failed(tmp_path: Path) -> None:
    text = TESTS.replace("def test_passes(): pass", "def test_passes(): time.sleep(1000)")
    for limit_s in (6.0, 30.0, 100.0):  # where pytest takes as long to begin, it gets longer
        outcomes = run_tests(tmp_path, text, limit_s=limit_s)
        if len(outcomes) > 1:
            break
    assert set(Counter(how[0] for how in outcomes.values())) == {"failed"}
    assert len(outcomes) == 6


def test_all_files_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a GPU\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    found = parts.tests(tmp_path, Deadline(60), [str(tmp_path / "test_it.py")])
    values = {one["name"]: one["value"] for one in found.rows}
    assert values == {"gpu_tests_passed": 2, "gpu_tests_failed": 3, "gpu_tests_skipped": 1}
    assert not found.is_complete
    lines = [json.loads(line) for line in (tmp_path / "tests.jsonl").read_text().splitlines()]
    assert len(lines) == 6


@pytest.mark.parametrize(("is_broken", "processes"), [(False, 1), (True, 2)])
def test_files_share_a_process_until_something_fails(tmp_path: Path, is_broken, processes) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a GPU\n")
    head = "import pytest\npytestmark = pytest.mark.gpu\n"
    texts = {
        "test_a.py": "def test_one(): pass\ndef test_two(): pytest.skip('not here')\n",
        "test_b.py": f"def test_one(): assert {not is_broken}\ndef test_two(): pass\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(head + text)
    found = parts.tests(tmp_path, Deadline(60), [str(tmp_path / name) for name in texts])
    values = [one["value"] for one in found.rows]
    assert values == [3 - is_broken, int(is_broken), 1]
    log = (tmp_path / "tests.log").read_text()
    assert log.count("test session starts") == processes


def test_no_file_is_not_all_files(tmp_path: Path) -> None:
    found = parts.tests(tmp_path, Deadline(60), [])
    assert [one["value"] for one in found.rows] == [0, 0, 0]
    assert not (tmp_path / "tests.log").exists()


# ---- what is promised


def test_every_row_has_one_suite(repo: Path) -> None:
    names = [name for one in run.SUITES for name in one.promised]
    names += [*parts.TEST_ROWS, *parts.DEMO_ROWS, *parts.SANITIZER_ROWS]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    modules = {f"bench.gpu.{path.stem}" for path in repo.glob("bench/gpu/suite_*.py")}
    assert modules == {one.module for one in run.SUITES}
    for one in run.SUITES:
        assert callable(import_module(one.module).measure)


def test_the_document_names_rows_that_exist(repo: Path) -> None:
    """docs/gpu.md promises an answer for each unknown."""
    names = " ".join(name for one in run.SUITES for name in one.promised)
    for stem in (
        "gate_memop_us gate_kernel_us gate_wake_us parked_borrower_tax pause_p99_over_segment "
        "priority_residual_us graph_update_us vmm_create_us vmm_map_us vmm_unmap_us "
        "attention_over_dense pack_gap_ apply_gap_ digest_ topk_ copy_bandwidth_gb_s "
        "passed_after_close move_1gib_us triton_over_cuda_pack"
    ).split():
        assert stem in names


def test_the_parent_loads_no_framework_and_no_core(repo: Path) -> None:
    program = (
        "import sys; from bench.gpu import run; "
        "[one.promised for one in run.SUITES]; "
        "assert not {'torch', 'triton', 'rose._core'} & set(sys.modules), sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repo, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def collected(repo: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=repo,
        env=NO_GPU,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_every_gpu_test_is_skipped_for_one_reason(repo: Path) -> None:
    done = collected(repo, "-m", "gpu", "tests/gpu")
    assert done.returncode == 0, done.stdout
    summary = done.stdout.splitlines()[-1]
    assert "skipped" in summary
    assert "passed" not in summary
    reasons = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if "SKIPPED" in line]
    assert len(set(reasons)) == 1
    assert "NVIDIA driver" in reasons[0]


def test_every_file_of_gpu_tests_is_marked(repo: Path) -> None:
    for path in parts.files_of_tests(repo):
        assert "pytestmark = pytest.mark.gpu" in (repo / path).read_text(), path


def test_the_sanitized_tests_exist(repo: Path) -> None:
    done = collected(repo, "-m", "gpu", "--collect-only", *parts.SANITIZED_TESTS)
    assert done.returncode == 0, done.stdout
    assert all(test in done.stdout for test in parts.SANITIZED_TESTS)


# ---- the demo and the sanitizer


def demo_report() -> dict[str, Any]:
    ratios = {"ttft_p50": 1.02, "tpot_p50": 1.01}
    return {
        "ratios": {"rose": ratios, "aa": ratios, "share_all": {"ttft_p50": 3.0, "tpot_p50": None}},
        "arms": {"rose": {"harvested_share": 0.4}},
        "blocked_by_rollout_ms_p99": 0.5,
        "segment_ms_p99": 0.6,
        "certificates": {"granted": 10, "violations": 0},
        "pauses": 7,
    }


def test_a_report_of_the_demo_becomes_rows() -> None:
    found = parts.demo_rows(demo_report())
    assert found.unmeasured == []
    names = {one["name"] for one in found.rows}
    assert set(parts.DEMO_ROWS) <= names
    rows = {one["name"]: one for one in found.rows}
    assert rows["demo_ttft_p50_over_alone"]["peer"]["value"] == 3.0
    assert rows["demo_tpot_p50_over_alone"]["peer"] is None
    assert rows["demo_certificate_violations"]["ok"] is True


def test_a_restless_demo_is_void_and_a_silent_one_unmeasured() -> None:
    report = demo_report()
    report["ratios"]["aa"] = {"ttft_p50": 1.5, "tpot_p50": None}
    report["segment_ms_p99"] = None
    found = parts.demo_rows(report)
    rows = {one["name"]: one for one in found.rows}
    assert rows["demo_ttft_p50_over_alone"]["ok"] is None
    assert {one["name"] for one in found.unmeasured} == {
        "demo_tpot_p50_over_alone",
        "demo_segment_ms_p99",
    }


@pytest.mark.parametrize(
    ("found", "reason"),
    [("5.17.0", "5.17.0 is here"), (None, "not installed"), ("5.23.0", None), ("5.24.1", None)],
)
def test_the_demo_says_which_transformers_it_needs(
    monkeypatch: pytest.MonkeyPatch, found: str | None, reason: str | None
) -> None:
    def version(package: str) -> str:
        if package == "transformers" and found is None:
            raise parts.PackageNotFoundError(package)
        return found or "1.0"

    monkeypatch.setattr(parts, "version", version)
    why = parts.why_no_demo()
    assert (why is None) if reason is None else (why is not None and reason in why)


def test_the_demo_is_started_as_its_users_start_it(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without a GPU it is refused in one sentence, which becomes the reason."""
    monkeypatch.setattr(parts, "why_no_demo", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = parts.demo(tmp_path, Deadline(60))
    assert {one["name"] for one in found.unmeasured} == set(parts.DEMO_ROWS)
    reason = found.unmeasured[0]["reason"]
    assert reason.startswith("status ")
    assert "demo --device cuda:0 --quick" in (tmp_path / "demo.log").read_text()


def test_a_demo_that_does_not_run_leaves_no_report_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "why_no_demo", lambda: "no transformers")
    (tmp_path / "demo.json").write_text("{}")
    assert parts.demo(tmp_path, Deadline(1)).rows == []
    assert not (tmp_path / "demo.json").exists()


@pytest.mark.parametrize(
    ("tool", "said", "value"),
    [
        ("memcheck", "4 passed in 2s\n========= ERROR SUMMARY: 0 errors\n", 0),
        ("memcheck", "1 failed, 3 passed\n========= ERROR SUMMARY: 17 errors\n", 17),
        ("racecheck", "4 passed\n==== RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n", 0),
        ("racecheck", "4 passed\n==== RACECHECK SUMMARY: 1 hazard displayed (1 error)\n", 1),
    ],
)
def test_what_a_sanitizer_found_becomes_a_row(tool: str, said: str, value: int) -> None:
    pattern = parts.SANITIZER_TOOLS[tool]
    found = parts.sanitizer_row("x", pattern, said, is_good=value == 0, why="status 1")
    assert [one["value"] for one in found.rows] == [value]
    assert found.rows[0]["ok"] is (value == 0)


@pytest.mark.parametrize(
    ("said", "is_good", "reason"),
    [
        ("========= Error: Device not supported\n", False, "Error: Device not supported"),
        ("1 failed\n========= ERROR SUMMARY: 0 errors\n", False, "why"),
        ("========= ERROR SUMMARY: 0 errors\n", True, "why"),
        ("4 passed\n", True, "why"),
    ],
)
def test_a_sanitizer_that_saw_nothing_run_says_nothing(
    said: str, is_good: bool, reason: str
) -> None:
    pattern = parts.SANITIZER_TOOLS["memcheck"]
    found = parts.sanitizer_row("x", pattern, said, is_good=is_good, why="why")
    assert found.rows == []
    assert found.unmeasured == [{"name": "x", "reason": reason}]


def test_without_a_sanitizer_its_rows_are_unmeasured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.shutil, "which", lambda _, **__: None)
    found = parts.sanitizer(tmp_path, Deadline(10))
    assert {one["name"] for one in found.unmeasured} == set(parts.SANITIZER_ROWS)


# ---- the machine card


def test_the_card_is_asked_in_a_child(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    answer = run.card()
    assert isinstance(answer, str)
    assert "NVIDIA driver" in answer


def test_a_driver_that_does_not_answer_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CARD_S", 0.01)
    assert "did not answer" in str(run.card())
