"""The broker of the demo, on a real device."""

import threading
from pathlib import Path

from rose._core import ManualClock
from rose.clock import BootClock
from rose.executor import Reason
from rose.units import NS_PER_MS
from rose_lab.broker import LoanChange
from rose_lab.demo.rose_device import Brokered
from tests.executor.conftest import SLAB, SLABS, Rig
from tests.lab.broker.test_lending import Time
from tests.waiting import wait_for


def test_nothing_is_lent_before_the_broker_has_decided_and_what_it_says_is_kept(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path / "certificates.log", lends=False)
    try:
        with Brokered(rig.device, BootClock()) as broker:
            assert rig.device.reading().cap_bytes == 0
            rig.device.rollout(rig.serving.kv.geometry, limit_bytes=SLABS * SLAB)
            assert rig.device.lender.grow(1).reason is Reason.OVER_LIMIT
            broker.start()
            wait_for(lambda: len(broker.record().decisions) > 2)
        record = broker.record()
        assert record.pool_bytes == SLABS * SLAB
        # Calm has to be seen.
        assert [one.move for one, _ in record.decisions[:3]] == [LoanChange.REFUSE] * 3
        assert {lent for _, lent in record.decisions} == {0}
        assert "rose-lending" not in {thread.name for thread in threading.enumerate()}
    finally:
        rig.close()


def test_a_slab_of_a_pool_smaller_than_production_lends_is_a_loan(tmp_path: Path) -> None:
    clock = ManualClock()
    rig = Rig(tmp_path / "certificates.log", clock=clock)
    rig.stop_keeper()
    try:
        with Brokered(rig.device, Time(clock)) as broker:
            clock.advance(10_000 * NS_PER_MS)  # calm has been seen by then
            (decision,) = broker._loop.poll()
            assert (decision.move, decision.lend_bytes) == (LoanChange.LEND, 2 * SLAB)
    finally:
        rig.close()
