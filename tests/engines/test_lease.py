"""A lease as its worker keeps it: renewed in time, or over for good."""

from rose.engines.transformers.lease import WorkerLease

TTL_MS = 300.0


def test_a_lease_that_was_not_reported_for_its_ttl_has_run_out() -> None:
    lease = WorkerLease(1, TTL_MS)
    assert not lease.has_run_out(now_ms=1e9), "one that was never open"
    lease.open(64, now_ms=0.0)
    assert not lease.has_run_out(now_ms=TTL_MS - 1)
    assert lease.has_run_out(now_ms=TTL_MS)
    assert lease.renew(now_ms=TTL_MS / 2) is not None
    assert not lease.has_run_out(now_ms=TTL_MS)
    lease.close(now_ms=TTL_MS)
    assert not lease.has_run_out(now_ms=1e9), "one that is over"
    assert lease.open(64, now_ms=1e9).grant_epoch == 2


def test_a_lease_without_a_ttl_never_runs_out() -> None:
    lease = WorkerLease(1, 0.0)
    lease.open(64, now_ms=0.0)
    assert not lease.has_run_out(now_ms=1e12)
    assert lease.renew(now_ms=1e12) is None
