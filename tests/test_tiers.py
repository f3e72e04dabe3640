"""A run that holds no test is not green, and figures of campaigns are those of their tests."""

import json
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
