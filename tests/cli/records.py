"""A record of a run that is small enough to check by hand."""

from rose.cli.record import ARMS, RequestTiming, Revocation, RunRecord, Timeline, WindowRecord

# Latencies of the two windows; three requests each. TPOT of the second request is None.
TTFT_MS = {
    "alone": ((100.0, 200.0, 300.0), (10.0, 20.0, 30.0)),
    "alone_again": ((100.0, 204.0, 300.0), (10.0, 20.0, 30.0)),
    "share_all": ((200.0, 400.0, 600.0), (20.0, 80.0, 90.0)),
    "rose": ((100.0, 210.0, 300.0), (10.0, 20.0, 30.0)),
}
TPOT_MS = {
    "alone": ((10.0, None, 20.0), (10.0, None, 10.0)),
    "alone_again": ((10.0, None, 20.0), (10.0, None, 10.0)),
    "share_all": ((30.0, None, 60.0), (40.0, None, 40.0)),
    "rose": ((10.0, None, 20.0), (12.0, None, 12.0)),
}
ROLLOUT_TOKENS = {"alone": 0, "alone_again": 0, "share_all": 600, "rose": 300}


def window_of(arm, window):
    requests = tuple(
        RequestTiming(arm, window, 100.0 * window + i, ttft, tpot, 1 if tpot is None else 5)
        for i, (ttft, tpot) in enumerate(
            zip(TTFT_MS[arm][window], TPOT_MS[arm][window], strict=True)
        )
    )
    start_s = 100.0 * window
    return WindowRecord(arm, window, start_s, start_s + 10, requests, 4.0, ROLLOUT_TOKENS[arm])


def tiny_record(**changes):
    values = {
        "windows": tuple(window_of(arm, window) for window in (0, 1) for arm in ARMS),
        "rollout_alone_tokens_per_s": 60.0,
        "slo_ttft_ms": 250.0,
        "slo_tpot_ms": 15.0,
        "blocked_by_rollout_ms": (1.0,) * 100,
        "segment_ms": (2.0,) * 100,
        "certificates_granted": 40,
        "certificates_verified": 40,
        "certificate_violations": 0,
        "revocations": (Revocation(3.0, 2, 1.0, 1), Revocation(5.0, 1, 3.0, 2)),
        "pauses": 7,
        "timeline": Timeline(
            gate_open=((100.0, 101.5), (103.0, 104.0)),
            arrivals_s=(101.5, 102.0),
            slabs=((100.0, 2, 6, 2), (101.6, 5, 5, 0)),
        ),
        "machine": {"cpu": "<Acme & Sons>", "cores": 2},
        "settings": {"quick": True, "load": 0.5},
        "seed": 7,
        "command": "rose demo --quick",
        "complete": True,
    }
    return RunRecord(**(values | changes))
