"""Virtual time and real threads: one trace, one log."""

import dataclasses
from pathlib import Path

import pytest

from rose.sim import DeviceModel, Request, simulate
from rose.sim.simulation import default_policy
from rose.slo import SLO
from rose.slo.log_file import read_log
from rose.slo.verify import verify_log
from tests.sim.threads import Rig

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


@pytest.mark.parametrize("mode", ["idle", "slack"])
# All slack at once, and offer after offer.
@pytest.mark.parametrize("max_segments", [30, 2])
def test_real_threads_write_the_log_that_virtual_time_writes(mode, max_segments, tmp_path) -> None:
    policy = dataclasses.replace(default_policy(DEVICE), mode=mode, max_segments=max_segments)
    virtual, threads = tmp_path / "virtual.log", tmp_path / "threads.log"
    outcome = simulate(
        TRACE,
        DEVICE,
        f"rose_{mode}",
        slo=SLO_TIGHT,
        policy=policy,
        seed=0,
        log_path=str(virtual),
    )
    rig = Rig(TRACE, DEVICE, SLO_TIGHT, policy, threads)
    rig.run()
    assert verify_log(threads).violations == []
    assert outcome.violations == ()
    assert events(threads) == events(virtual)
