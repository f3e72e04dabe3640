"""A record of a run that is small enough to check by hand."""

from rose.slo import SLO
from rose_lab.broker import Decision, LoanChange
from rose_lab.demo.record import (
    ARMS,
    Answered,
    Audit,
    BrokerRecord,
    CommitRecord,
    LendingRecord,
    RevocationRecord,
    RlLoopRecord,
    RunPlan,
    RunRecord,
    Slice,
    SliceCounts,
    SliceTimeline,
    StepSamples,
    TrajectoryCounts,
    TurnRecord,
    VersionRecord,
)
from rose_lab.demo.schemes import demo_schemes

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
        Answered(100.0 * window + i, ttft, tpot, 1 if tpot is None else 5)
        for i, (ttft, tpot) in enumerate(
            zip(TTFT_MS[arm][window], TPOT_MS[arm][window], strict=True)
        )
    )
    start_s = 100.0 * window
    is_rose = arm == "rose"
    return Slice(
        arm,
        window,
        start_s,
        start_s + 10,
        requests,
        4.0,
        ROLLOUT_TOKENS[arm],
        segment_ms=(2.0,) * 2500 if is_rose else None,
        blocked_ms=(1.0,) * 50 if is_rose else (),
        pauses=3 if is_rose else 0,
        chunk_ms=(40.0,) * 20,
        decode_ms=(8.0,) * 20,
    )


def solo(arm, seconds, tokens, segments_s=None):
    """Rollouts with the device to themselves."""
    segment_ms = None if segments_s is None else (1000.0 * segments_s,)
    return Slice(arm, -1, 0.0, seconds, (), 0.0, tokens, segment_ms=segment_ms)


def tiny_record(**changes):
    plan = {
        "schemes": demo_schemes(0.05),
        "loads": (0.5,),
        "machine": {"cpu": "<Acme & Sons>", "cores": 2},
        "settings": {"load": 0.5, "slowdown": 0.05},
        "seed": 7,
        "command": "rose demo",
    }
    plan["settings"] |= changes.pop("settings", {})
    plan |= {name: changes.pop(name) for name in tuple(changes) if name in plan}
    values = {
        "plan": RunPlan(**plan),
        "slices": tuple(window_of(arm, window) for window in (0, 1) for arm in ARMS),
        # 60 tokens/s alone: of turns, in the time of their segments.
        "solo": (solo("share_all", 2.0, 120), solo("rose", 4.0, 120, 2.0)),
        "calibration": StepSamples((40.0,) * 60, (8.0,) * 60),
        "slo": SLO(ttft_ms=250.0, tpot_ms=15.0),
        "slo_from": "calibration",
        "signal_ms": 1.0,
        "lending": LendingRecord({"slo_at_risk": 4, "serving_busy": 90}, {}, 3.0, None),
        "slice_counts": SliceCounts(8, 1, 1),
        "setup_s": 60.0,
        "audits": (Audit("rose", granted=40, verified=40, violations=0),),
        "revocations": (RevocationRecord(1.0, 1), RevocationRecord(3.0, 2)),
        "timeline": SliceTimeline(
            gate_open=((100.0, 101.5), (103.0, 104.0)),
            arrivals_s=(101.5, 102.0),
            slabs=((100.0, 2, 6, 2), (101.6, 5, 5, 0)),
        ),
        "complete": True,
    }
    return RunRecord(**(values | changes))


def commit(worker, at_s, pause_ms, is_match=True):
    return CommitRecord(worker, at_s, pause_ms, is_match)


def tiny_rl_loop(**changes):
    """An RL loop of 50 s: it begins at 100 s with the first span."""
    values = {
        "versions": (
            VersionRecord(4, 110.0, 0.01, 1024, 102400, (commit("borrowed", 110.5, 2.0),)),
            VersionRecord(
                5,
                120.0,
                0.03,
                3072,
                102400,
                (commit("dedicated", 120.25, 4.0), commit("borrowed", 121.0, 8.0)),
            ),
            VersionRecord(6, 130.0, 0.02, 2048, 102400, ()),
        ),
        "turns": (
            TurnRecord(0, 0, "borrowed", 101.0, 104.0, 30, is_resumed=False),
            TurnRecord(1, 0, "dedicated", 101.0, 102.0, 10, is_resumed=False),
            TurnRecord(0, 0, "dedicated", 104.5, 106.0, 12, is_resumed=True),
            TurnRecord(1, 1, "borrowed", 125.0, 140.0, 99, is_resumed=False),
        ),
        "trajectories": TrajectoryCounts(
            started=12,
            finished=10,
            in_flight=1,
            resumed=1,
            lost=0,
            stale=2,
            dropped=1,
            turns_borrowed=7,
            turns_dedicated=21,
        ),
        "staleness": (0, 1, 1, 1, 3, 0, 0, 10),
        "spans": ((100.0, 105.0), (124.0, 150.0)),
        "incidents": ((115.0, "The trainer <died> and came back as incarnation 2."),),
        "measured_s": 50.0,
        "published": 11,
        "committed_borrowed": 2,
        "committed_dedicated": 1,
    }
    return RlLoopRecord(**(values | changes))


EMPTY_RL_LOOP = RlLoopRecord(
    versions=(),
    turns=(),
    trajectories=TrajectoryCounts(0, 0, 0, 0, 0, 0),
    staleness=(),
    spans=(),
    incidents=(),
    measured_s=0.0,
)


def tiny_broker():
    """Of a pool of 64 MiB: a loan begins, grows, stays, shrinks and ends."""
    decided = (
        ("REFUSE", 0, 0, "calm must last 2 s more"),
        ("LEND", 16, 0, "serving has all it needs"),
        ("GROW", 32, 16, "serving has all it needs"),
        ("KEEP", 32, 30, "the loan has just grown"),
        ("SHRINK", 16, 30, "4 requests wait to be served"),
        ("END", 0, 16, "first tokens <are> late"),
    )
    return BrokerRecord(
        64 << 20,
        tuple(
            (Decision("demo", LoanChange[move], cap << 20, 0.0, 0.0, why), lent << 20)
            for move, cap, lent, why in decided
        ),
    )
