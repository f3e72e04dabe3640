"""A run that holds no test is not green, and figures of campaigns are those of their tests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import write_faults


def test_a_run_without_tests_fails_and_its_summary_says_so(repo: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    options = ["-p", "no:cacheprovider", "-k", "no_such_test", f"--summary={summary}"]
    command = [sys.executable, "-m", "pytest", "tests/test_tiers.py", *options]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    said = json.loads(summary.read_text())
    assert (said["passed"], said["exit_status"], said["failures"]) == (0, 5, [])


MAKEFILE = (Path(__file__).resolve().parents[1] / "Makefile").read_text()
RULE = re.compile(r"^([\w-]+):[^=\n]*\n((?:\t.*\n|#.*\n)+)", re.MULTILINE)
TESTING = [name for name, recipe in RULE.findall(MAKEFILE) if "/pytest" in recipe]


def test_the_targets_that_test_are_known() -> None:
    assert TESTING == ["test-vllm", "test-learn", "test", "check", "test-slow"]


@pytest.mark.parametrize("target", TESTING)
def test_a_target_whose_run_holds_no_test_fails(repo: Path, tmp_path: Path, target: str) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / ".rose-installed").touch()
    for name, status in (("python", 0), ("pytest", int(pytest.ExitCode.NO_TESTS_COLLECTED))):
        (tools / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tools / name).chmod(0o755)
    places = [f"{name}={tmp_path}" for name in ("VENV", "VLLM_VENV", "LEARN_VENV")]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", target, *places, f"PYTHON={tools / 'python'}", "ROOM=slo"],
        cwd=repo,
        env=outside,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith("Error 5\n"), done.stderr


def report(campaign: str, *, when: str = "call", outcome: str = "passed") -> pytest.TestReport:
    properties = [("tries", {campaign: 50})]
    return pytest.TestReport(
        "one", ("", 0, ""), {}, outcome, None, when, duration=1.5, user_properties=properties
    )


def test_a_campaign_is_the_sum_of_its_tests_and_those_that_did_not_run_stay(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    write_faults(path, [report("deaths")])
    lost = [report("kills", outcome="failed"), report("kills", when="teardown", outcome="failed")]
    write_faults(path, [report("kills"), *lost])
    written = {
        name: (one["tries"], one["losses"], one["seconds"])
        for name, one in json.loads(path.read_text()).items()
    }
    assert written == {"deaths": (50, 0, 1.5), "kills": (100, 2, 4.5)}
