"""Virtual time and real threads: one trace, one log."""

import dataclasses
import math
from pathlib import Path

import pytest

from rose.slo import SLO
from rose.slo.log_file import read_log
from rose.slo.verify import verify_log
from rose_lab.sim import DeviceModel, Request, simulate
from rose_lab.sim.core import CoreGovernor
from rose_lab.sim.simulation import default_policy
from tests.lab.sim.threads import Rig

# A hand-over that takes time would be the simulator's word, not the core's.
DEVICE = DeviceModel(signal_ms=0.0, chunk_tokens=128, batch_max=8)
SLO_TIGHT = SLO(ttft_ms=500.0, tpot_ms=25.0)
# Bursts, idle time, and arrivals inside quanta; no two things happen at one time.
TRACE = [
    Request(7.003, 60, 9),
    Request(31.217, 200, 14),
    Request(32.119, 40, 5),
    Request(90.631, 300, 8),
    Request(151.877, 20, 20),
    Request(163.013, 100, 4),
    Request(400.507, 10, 3),
]


def events(path: Path) -> list[tuple[int, str, tuple[tuple[str, object], ...]]]:
    """Return the records with their times, from behind the date to where all is served."""
    records = read_log(path)[1]
    assert records[0].kind == "START"
    last = max(at for at, one in enumerate(records) if one.kind == "FINISHED")
    return [(one.time_ns, one.kind, tuple(one.fields.items())) for one in records[1 : last + 1]]


@pytest.mark.parametrize(("scheme", "slowdown"), [("rose_idle", 0.0), ("rose_slack", math.inf)])
# All slack at once, and offer after offer.
@pytest.mark.parametrize("max_segments", [30, 2])
def test_real_threads_write_the_log_that_virtual_time_writes(
    scheme, slowdown, max_segments, tmp_path, monkeypatch
) -> None:
    # The threads run no probes.
    monkeypatch.setattr(CoreGovernor, "probe_due", lambda *_: None)
    policy = dataclasses.replace(default_policy(DEVICE), max_segments=max_segments)
    slo = dataclasses.replace(SLO_TIGHT, slowdown=slowdown)
    virtual, threads = tmp_path / "virtual.log", tmp_path / "threads.log"
    outcome = simulate(
        TRACE,
        DEVICE,
        scheme,
        slo=SLO_TIGHT,
        policy=policy,
        seed=0,
        log_path=str(virtual),
    )
    rig = Rig(TRACE, DEVICE, slo, policy, threads)
    rig.run()
    assert verify_log(threads).violations == []
    assert outcome.violations == ()
    assert events(threads) == events(virtual)
