"""`rose verify`: what it remarks of a log, and the table of misses."""

import os

import pytest

from rose.cli.main import main
from tests.reference.log_bytes import MS, LogBytes
from tests.reference.slo import RECORD


@pytest.fixture
def verify(tmp_path, capsys, monkeypatch):
    """Return a function that saves a log, verifies it and gives (status, output, errors)."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(log: LogBytes, *options: str) -> tuple[int, str, str]:
        status = main(["verify", str(log.save(tmp_path / "log")), *options])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def late(log: LogBytes, *, host_ms: float, tokens: int = 1) -> LogBytes:
    """Let tokens of one request come late, because the host slept."""
    log.arrived(0, prefilled=1)
    for _ in range(tokens):
        log.wait(host_ms)
        log.tokens(0)
    return log


def test_a_log_of_everything_switched_on_is_shown_without_remarks(verify):
    log = LogBytes()
    log.quantum(0)
    status, out, _ = verify(log)
    assert status == 0
    assert "Every certificate holds." in out
    assert "no proof" not in out
    assert "watchdog" not in out
    assert "missed" not in out


@pytest.mark.parametrize("is_audited", [False, True])
def test_a_log_without_an_end_is_judged_with_a_status_of_its_own(tmp_path, capsys, is_audited):
    log = LogBytes()
    log.quantum(0)
    path = log.save(tmp_path / "log")
    os.truncate(path, path.stat().st_size - RECORD)
    command = ["verify", str(path), *(["--audit"] if is_audited else [])]
    assert main(command) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "The first 2 records hold; the log has no end." in out
    assert "Every certificate holds" not in out
    broken = LogBytes()
    broken.quantum(0, pending=7)
    path = broken.save(tmp_path / "log")
    os.truncate(path, path.stat().st_size - RECORD)
    assert main(command) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "The log has no end: its writer still runs, or was killed." in out
    os.truncate(path, path.stat().st_size - 1)
    assert main(command) == 2
    assert "is cut off" in capsys.readouterr().err


def test_a_log_made_without_a_mechanism_is_no_proof(verify):
    log = LogBytes(without=0b10010)
    log.quantum(0)
    status, out, _ = verify(log)
    assert status == 1
    assert "Every certificate holds" not in out
    assert "This log was made without credit and margin" in out
    assert "it is no proof." in out


def test_segments_of_the_watchdog_are_counted(verify):
    log = LogBytes()
    log.forced(passed=0)
    log.forced(passed=1)
    _, out, _ = verify(log)
    assert "The watchdog let 2 segments through a closed gate." in out


def test_the_audit_is_a_table_with_one_cause_for_each_miss(verify):
    log = late(LogBytes(), host_ms=60.25)
    log.wait(57)
    log.tokens(0)
    log.step(57, upper_ms=12.0)
    status, out, _ = verify(log, "--audit")
    assert status == 0
    assert "2 missed, by cause: 1 estimator, 1 host." in out
    rows = [line.strip("│ \n").split("│") for line in out.splitlines() if " 50.0 " in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0", "1", "60.2", "50.0", "host", "host 60.2"],
        ["0", "2", "57.0", "50.0", "estimator", "estimator 45.0, promised 12.0"],
    ]


def test_an_audit_that_finds_nothing_says_so_and_violations_still_count(verify):
    log = LogBytes()
    log.arrived(0)
    log.quantum(0, deadline_ns=5 * MS)
    status, out, _ = verify(log, "--audit")
    assert status == 1
    assert "No token was missed." in out
    assert "- record 3: QUANTUM: granted while 1 requests were pending" in out


def test_a_log_of_another_version_is_refused_in_one_sentence(verify):
    status, out, errors = verify(LogBytes(version=3))
    assert (status, out) == (2, "")
    assert errors.endswith(
        "has version 3 with records of 128 bytes; this rose reads version 7 with 128\n"
    )


def test_audit_shows_the_waits_beyond_certificates_of_each_ten_minutes(verify):
    log = LogBytes()
    log.quantum(0)
    log.waited(106 * MS, certified_ns=6 * MS)
    log.wait(700_000)
    log.left_ns += 100 * MS  # The first excess is forgotten.
    log.waited(900 * MS)
    status, out, _ = verify(log, "--audit")
    assert status == 0
    assert (
        "Serving's waits for segments: 2; beyond their certificates at most 900.0 ms in ten "
        "minutes, within the budget of 1000 ms."
    ) in out
    assert "From 1.0 s: 100.0 ms in ten minutes (waits: 1)." in out
    assert "From 701.0 s: 900.0 ms in ten minutes (waits: 1)." in out


def test_audit_says_that_waits_exceeded_the_budget(verify):
    log = LogBytes()
    log.waited(700 * MS)
    log.waited(700 * MS, left_ns=-400 * MS)
    status, out, _ = verify(log, "--audit")
    assert status == 1
    assert "at most 1400.0 ms in ten minutes, BEYOND the budget of 1000 ms" in out
    assert "record 3: WAITED: serving waited 700000000 ns beyond the certificate" in out
