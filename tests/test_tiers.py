"""A run that holds no test is not green."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_run_without_tests_fails_and_its_summary_says_so(repo: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    options = ["-p", "no:cacheprovider", "-k", "no_such_test", f"--summary={summary}"]
    command = [sys.executable, "-m", "pytest", "tests/test_tiers.py", *options]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    said = json.loads(summary.read_text())
    assert (said["passed"], said["exit_status"], said["failures"]) == (0, 5, [])
