"""A comparison that is small enough to check by hand."""

from rose.cli.compare_record import Audit, CompareRecord
from rose.cli.compare_schemes import SCHEMES, ablation
from rose.demo.record import Answered, Slice

# Two windows of three requests each: (TTFT, mean TPOT, longest gap); targets 250 and 15.
REQUESTS = {
    "alone": (
        ((100.0, 10.0, 12.0), (200.0, None, None), (300.0, 20.0, 40.0)),
        ((10.0, 10.0, 12.0), (20.0, None, None), (30.0, 10.0, 16.0)),
    ),
    "alone_again": (
        ((100.0, 10.0, 12.0), (204.0, None, None), (300.0, 20.0, 40.0)),
        ((10.0, 10.0, 12.0), (20.0, None, None), (30.0, 10.0, 16.0)),
    ),
    "share_all": (
        ((200.0, 30.0, 60.0), (400.0, None, None), (600.0, 60.0, 90.0)),
        ((20.0, 40.0, 50.0), (80.0, None, None), (90.0, 40.0, 50.0)),
    ),
    "rose_slack": (
        ((100.0, 12.0, 15.0), (210.0, None, None), (300.0, 20.0, 40.0)),
        ((10.0, 14.0, 15.1), (20.0, None, None), (30.0, 12.0, 15.0)),
    ),
}
HARVEST = {"alone": (0.0, 0.0), "alone_again": (0.0, 0.0), "share_all": (0.9, 0.8)}
HARVEST["rose_slack"] = (0.5, 0.2)
SECONDS = (10.0, 30.0)


def answered(ttft_ms, tpot_ms, longest_gap_ms):
    late = 0 if longest_gap_ms is None else int(longest_gap_ms > 15.0)
    return Answered(0.0, ttft_ms, tpot_ms, 1 if tpot_ms is None else 5, longest_gap_ms, late)


def window_of(scheme, window, load=0.9):
    ours = scheme == "rose_slack"
    return Slice(
        arm=scheme,
        load=load,
        round=window,
        start_s=0.0,
        end_s=SECONDS[window],
        rollout_tokens=0,
        serving_busy_s=SECONDS[window] / 2,
        harvest=HARVEST[scheme][window],
        requests=tuple(answered(*one) for one in REQUESTS[scheme][window]),
        blocked_ms=(1.0, 3.0) if ours else (),
        pauses=2 if ours else 0,
        pauses_ms=(0.5, 1.5) if ours else (),
        segments=40 if ours else 0,
    )


def tiny_comparison(**changes):
    values = {
        "is_virtual": False,
        "schemes": tuple(SCHEMES[name] for name in REQUESTS),
        "windows": tuple(window_of(scheme, window) for window in (0, 1) for scheme in REQUESTS),
        "audits": (Audit("rose_slack", None, granted=7, verified=6, violations=1),),
        "left_out": ("Left out: <something> that needs two cores.",),
        "slo_ttft_ms": 250.0,
        "slo_tpot_ms": 15.0,
        "trace": "generated chat (seed 7)",
        "machine": {"cpu": "<Acme & Sons>", "cores": 2},
        "settings": {"virtual": False, "seconds": 20.0},
        "seed": 7,
        "command": "rose compare --seed 7",
        "complete": True,
    }
    return CompareRecord(**(values | changes))


def sweep(loads=(0.3, 0.9), schemes=("alone", "share_all", "rose_slack")):
    """The first window of each scheme at several loads, an ablation beside them."""
    windows = [window_of(scheme, 0, load) for load in loads for scheme in schemes]
    return tiny_comparison(
        schemes=(*(SCHEMES[name] for name in schemes), ablation("margin")),
        windows=tuple(windows),
        is_virtual=True,
    )
