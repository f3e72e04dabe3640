"""Every scheme on two real engines: what serving pays, and what rollouts get (`rose compare`)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from bench.conftest import Report
from bench.rows import CONTROL, CONTROL_BAR, Bar, Peer
from rose.errors import check

_SECONDS: Final = 30  # of traffic for each scheme
_BRIEF_SECONDS: Final = 18
_QUICK_SECONDS: Final = 1
# A model of this size takes 10 ms a step on a core, so targets are wider than a GPU's.
_TARGETS: Final = ("--tpot-ms", "50", "--ttft-ms", "500")
_RATIOS: Final = ("ttft_p50", "tpot_p50")
_BARS: Final = {
    ("rose_idle", "ttft_p50"): Bar(at_most=1.10),
    ("rose_idle", "tpot_p50"): Bar(at_most=1.10),
}


def compare(folder: Path, *, seconds: int) -> dict[str, Any]:
    """Run the command that users run; return what it measured at its one load."""
    command = ("compare", "--seconds", str(seconds), *_TARGETS, "--out", str(folder))
    program = (sys.executable, "-c", "from rose.cli.main import main; raise SystemExit(main())")
    subprocess.run([*program, *command], check=True, stdout=sys.stderr)
    document = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    check(bool(document["complete"]), "a comparison that was interrupted says nothing")
    load: dict[str, Any] = document["loads"][0]
    return load


def test_arms(report: Report, tmp_path: Path) -> None:
    seconds = report.count(_SECONDS, at_least=_QUICK_SECONDS, brief=_BRIEF_SECONDS)
    loads: list[dict[str, Any]] = []
    report.once(lambda: loads.append(compare(tmp_path / "compare", seconds=seconds)))
    arms, ratios = loads[0]["arms"], loads[0]["ratios"]
    requests = float(arms["alone"]["requests"])
    if any(one[key] is None for one in ratios.values() for key in _RATIOS):
        pytest.skip("all slices of an arm had foreign CPU time: run on a quieter machine")
    control = ratios.pop("aa")
    for name, of_alone in ratios.items():
        for ratio in _RATIOS:
            report.add(
                f"{name}_{ratio}",
                of_alone[ratio],
                "ratio",
                peer=Peer("serving alone, paired by slice", requests, "requests"),
                bar=_BARS.get((name, ratio)),
                is_void=not CONTROL_BAR.is_met(control[ratio]),
            )
        harvest = arms[name]["harvested_tokens_share"]
        report.add(f"{name}_harvest", harvest, "share of the rollouts' rate alone")
        report.add(f"{name}_slo_attainment", arms[name]["slo_attainment"], "share of requests")
        late = loads[0]["late_token_share"][name]
        report.add(f"{name}_late_tokens", late, "share of tokens")
    for ratio in _RATIOS:
        report.add(f"{CONTROL}arms_{ratio}", control[ratio], "ratio", bar=CONTROL_BAR)
