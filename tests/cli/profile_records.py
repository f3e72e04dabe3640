"""A profile that was made up, small enough to follow by hand."""

from rose.cli.profile_report import Compute, Measured, Pool
from rose.scheduler.broker import Observation
from rose.slo import SLO
from rose.units import GIB, MIB

POOL = Pool(kv_bytes=40 * GIB, reserve_bytes=4 * GIB, slab_bytes=32 * MIB)
SLOS = (SLO(200, 25), SLO(500, 50))


def seen(at_s, *, kv=0.2, ttft=100.0, tpot=20.0, running=4):
    return Observation(
        device=POOL.device(SLOS[0]),
        at_ms=at_s * 1e3,
        kv_used=kv,
        running=running,
        waiting=0,
        ttft_ms_p99=ttft,
        tpot_ms_p99=tpot,
    )


def measured(observations=None, **changes):
    """An hour of calm, but for a minute of slow first tokens in the middle."""
    if observations is None:
        observations = tuple(
            seen(at_s, ttft=300.0 if 1800 <= at_s < 1860 else 100.0) for at_s in range(0, 3605, 5)
        )
    values = {
        "source": "made [up]",
        "kind": "trace",
        "how": "By hand.",
        "pool": POOL,
        "observations": observations,
        "compute": (Compute(0.4, 0.9, 0.001), Compute(0.7, 1.0, 0.0)),
        "slos": SLOS,
        "every_ms": 5e3,
        "failures": (),
        "settings": {"seed": 0},
        "is_complete": True,
        **changes,
    }
    return Measured(**values)
