"""Every scheme on two real engines: what serving pays, and what rollouts get (`rose compare`)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from bench.conftest import Report
from bench.rows import CONTROL, CONTROL_BAR, Bar, Peer
from rose.errors import check

_SECONDS: Final = 30  # of traffic for each scheme
_QUICK_SECONDS: Final = 1
# A model of this size takes 10 ms a step on a core, so targets are wider than a GPU's.
_TARGETS: Final = ("--tpot-ms", "50", "--ttft-ms", "500")
_BARS: Final = {
    ("rose_idle", "ttft_p50"): Bar(at_most=1.10),
    ("rose_idle", "tpot_p50"): Bar(at_most=1.10),
}


def compare(folder: Path, *, seconds: int) -> dict[str, Any]:
    """Run the command that users run; return what it says of its one load."""
    command = ("compare", "--seconds", str(seconds), *_TARGETS, "--out", str(folder))
    program = (sys.executable, "-c", "from rose.cli.main import main; raise SystemExit(main())")
    subprocess.run([*program, *command], check=True, stdout=sys.stderr)
    document = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    check(bool(document["complete"]), "a comparison that was interrupted says nothing")
    load: dict[str, Any] = document["loads"][0]
    return load


def test_arms(report: Report, tmp_path: Path) -> None:
    seconds = report.count(_SECONDS, at_least=_QUICK_SECONDS)
    loads: list[dict[str, Any]] = []
    report.once(lambda: loads.append(compare(tmp_path / "compare", seconds=seconds)))
    schemes = loads[0]["schemes"]
    requests = float(loads[0]["requests"])
    control = schemes["alone_again"]["ratios"]
    for name, scheme in schemes.items():
        if name in ("alone", "alone_again"):
            continue
        for ratio in ("ttft_p50", "tpot_p50"):
            report.add(
                f"{name}_{ratio}",
                scheme["ratios"][ratio],
                "ratio",
                peer=Peer("serving alone, paired by window", requests, "requests"),
                bar=_BARS.get((name, ratio)),
                is_void=not CONTROL_BAR.is_met(control[ratio]),
            )
        report.add(f"{name}_harvest", scheme["harvest"], "share of a device")
        report.add(f"{name}_excess_misses", scheme["excess_misses"], "requests")
        if scheme["blocked_ms_p99"] is not None:
            report.add(f"{name}_blocked_by_rollout_ms_p99", scheme["blocked_ms_p99"], "ms")
    for ratio in ("ttft_p50", "tpot_p50"):
        report.add(f"{CONTROL}arms_{ratio}", control[ratio], "ratio", bar=CONTROL_BAR)
