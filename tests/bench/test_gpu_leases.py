"""The device suite of leases: what of it needs no torch runs on the fake driver, in small."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.gpu import suite_leases, suite_memory
from bench.gpu.exporter import exporter
from bench.gpu.report import Report, read_rows
from rose._core import CudaDevice, Pool
from tests.fake_driver import Fake, in_child

PAGE = 2 << 20


def make_small() -> None:
    """In this process alone: the fake's device memory is memory of the host."""
    for suite in (suite_leases, suite_memory):
        suite.SLAB_BYTES = PAGE  # type: ignore[misc]
    suite_leases.GIB = PAGE  # type: ignore[misc]
    suite_leases.MOVES = suite_leases.CALLS = suite_leases.LOANS = 3  # type: ignore[misc]
    suite_leases.EXPORT_MIB = (32,)  # type: ignore[misc]
    suite_leases.MappedLoan.__init__.__defaults__ = (4,)


def measured(
    device: CudaDevice, *parts: Callable[[Report, CudaDevice], None]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        report = Report(path, suite_leases.ROWS)
        for part in parts:
            part(report, device)
        return read_rows(path)


@in_child()
def test_rows_without_kernels_are_measured(fake: Fake) -> None:
    make_small()
    device = CudaDevice.open(0)
    rows, unmeasured = measured(
        device, suite_leases.moves, suite_leases.descriptors, suite_leases.mapped_loans
    )
    assert unmeasured == []
    expected = {*suite_leases.MOVED, *suite_leases.MAPPED}
    expected |= {f"fd_{verb}_us_32mib" for verb in ("export", "attach")}
    assert {one["name"] for one in rows} == expected
    assert all(one["value"] > 0 for one in rows)
    del device
    assert (fake.live(), fake.faults()) == ([], [])


@in_child()
def test_memory_outlives_the_process_that_made_it(fake: Fake) -> None:
    device = CudaDevice.open(0)
    with exporter(slab_bytes=PAGE, slabs=3) as other:
        pool = Pool.attach(other.export, device=device)
        ctypes.memset(pool.pool_address, 7, pool.pool_bytes)
        other.kill()
        assert set(ctypes.string_at(pool.pool_address, pool.pool_bytes)) == {7}
    assert pool.pool_bytes == 3 * PAGE
    del pool, other
    assert fake.live() == ["contexts 1"]
    assert fake.faults() == []


@in_child()
def test_a_failed_driver_call_costs_its_rows(fake: Fake) -> None:
    make_small()
    device = CudaDevice.open(0)
    fake.fail("cuMemImportFromShareableHandle", nth=3, code=2)
    rows, unmeasured = measured(device, suite_leases.mapped_loans)
    assert rows == []
    assert {one["name"] for one in unmeasured} == set(suite_leases.MAPPED)
    assert "cuMemImportFromShareableHandle" in unmeasured[0]["reason"]
