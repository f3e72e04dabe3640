"""What the setup suite reads from the commands that it times."""

from pathlib import Path

import pytest

from bench.bench_setup import TESTS, run_in


def test_a_command_is_timed_with_its_phases(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "echo 'rose: C++ core: 12 s'; echo \"rose: $ROSE_CUDA: 3 s\"; echo other; sleep 0.3"
    ran = run_in(tmp_path, ("sh", "-c", script), cuda="off")
    assert [(one.name, one.value) for one in ran.phases()] == [("C++ core", 12.0), ("off", 3.0)]
    assert ran.took_s >= 0.3
    assert "rose: C++ core: 12 s\n" in capfd.readouterr().err  # passed on as it came


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with status 3"):
        run_in(tmp_path, ("sh", "-c", "exit 3"), cuda="off")


def test_the_time_of_the_tests_is_read_from_the_log_of_ci() -> None:
    log = "rose: ready after 99 s\n==== 2310 passed, 12 skipped in 512.34s (0:08:32) ====\n"
    assert TESTS.findall(log) == ["512.34"]
    assert TESTS.findall("==== 1 failed, 9 passed in 7.00s ====\n") == ["7.00"]
    assert TESTS.findall("12 passed in 7.00s\n") == []
