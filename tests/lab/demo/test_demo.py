"""The main job, run for real: briefly, and with every kind of wrong input."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rose.cli.main import main
from rose.slo.verify import verify_log
from tests.warm import Start

ARMS = {"alone", "alone_again", "share_all", "rose"}
SCRIPT = "from rose.cli.main import main; raise SystemExit(main())"
COMMAND = (sys.executable, "-P", "-c", SCRIPT)


@pytest.mark.slow
def test_quick_demo_runs_every_arm_and_every_certificate_verifies(tmp_path: Path) -> None:
    out = tmp_path / "report"
    done = subprocess.run(
        [*COMMAND, "demo", "--quick", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 3}, done.stderr  # 3: what else ran here made it void.
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert set(report["arms"]) == ARMS
    assert report["complete"] is True
    for name, arm in report["arms"].items():
        # In some seconds a borrower that comes back may get no further than its prompts.
        if name != "rose" and arm["requests"]:
            assert (arm["rollout_tokens_per_s"] > 0) is (name == "share_all")
    assert report["trajectories"]["started"] > report["trajectories"]["lost"] == 0
    assert report["weights"]["digests_matched"] == report["weights"]["digests_compared"]
    certificates = report["certificates"]
    assert certificates["granted"] == certificates["verified"] > 0
    assert certificates["violations"] == 0
    verification = verify_log(out / "certificates.log")
    assert verification.is_complete
    assert {"ARRIVED", "QUANTUM", "MOVE", "STEP"} <= set(verification.kinds)
    if report["arms"]["rose"]["rollout_tokens_per_s"]:
        assert "ADMISSION" in verification.kinds
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "rose" in done.stdout


@pytest.mark.timeout(600)
def test_interrupted_demo_reports_what_there_is(tmp_path: Path, warm: Start) -> None:
    out = tmp_path / "report"
    process = warm(
        [
            *(sys.executable, "-m", "tests.lab.demo.brief_demo"),
            *("demo", "--quick", "--broker", "--out", str(out)),
            *("--serving-model", "micro-policy", "--rollout-model", "micro-policy"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = b""
    for line in process.stdout:
        output += line
        if b"round 1 of" in line:
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output += process.stdout.read()
    assert process.wait(timeout=60) == 130, output.decode()
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["complete"] is False
    assert report["broker"]["decisions"] > 1
    assert verify_log(out / "certificates.log").violations == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--trace", "nowhere.csv"), "nowhere.csv does not exist"),
        (("--trace", "t.csv", "--profile", "code"), "--trace and --profile both define"),
        (("--profile", "video"), "'video' is not one of 'chat', 'code', 'steady'"),
        (("--serving-model", "gpt-9"), "unknown model 'gpt-9'"),
        (("--rollout-model", "."), "unknown model '.'"),
        (("--device", "cuda:99"), "CUDA d"),
        (("--device", "tpu"), "device must be 'cpu', 'cuda' or 'cuda:<n>', got 'tpu'"),
        (("--load", "0"), "--load must be > 0, not 0"),
        (("--ttft-ms", "-1"), "ttft_ms must be above 0 and at most 9e12, got -1.0"),
        (("--slowdown", "-1"), "-1.0 is not in the range 0<=x<=10"),
        (("--broker=often",), "--broker' does not take a value"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    arguments: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    threads, descriptors = set(threading.enumerate()), len(list(Path("/proc/self/fd").iterdir()))
    cores = os.sched_getaffinity(0)
    assert main(["demo", "--quick", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("rose: ")
    assert named in error
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) == threads
    gc.collect()  # Engines of transformers are in reference cycles.
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
    assert os.sched_getaffinity(0) == cores
