"""A capacity grant as its worker keeps it: renewed in time, or over for good."""

from rose.engines.transformers.grants import CapacityGrants

TTL_MS = 300.0


def test_a_grant_that_was_not_reported_for_its_ttl_has_run_out() -> None:
    grants = CapacityGrants(1, TTL_MS)
    assert not grants.has_run_out(now_ms=1e9), "one that was never open"
    grants.open(64, now_ms=0.0)
    assert not grants.has_run_out(now_ms=TTL_MS - 1)
    assert grants.has_run_out(now_ms=TTL_MS)
    assert grants.renew(now_ms=TTL_MS / 2) is not None
    assert not grants.has_run_out(now_ms=TTL_MS)
    grants.close(now_ms=TTL_MS)
    assert not grants.has_run_out(now_ms=1e9), "one that is over"
    assert grants.open(64, now_ms=1e9).grant_epoch == 2


def test_a_grant_without_a_ttl_never_runs_out() -> None:
    grants = CapacityGrants(1, 0.0)
    grants.open(64, now_ms=0.0)
    assert not grants.has_run_out(now_ms=1e12)
    assert grants.renew(now_ms=1e12) is None
