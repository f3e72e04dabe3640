"""Devices and readings for the tests of the broker, and strategies that draw them."""

from hypothesis import strategies as st

from rose.slo import SLO
from rose.units import GIB, MIB
from rose_lab.broker import Observation, ServingDevice, Unread

TARGETS = SLO(ttft_ms=500, tpot_ms=50)


def device(name="d0", *, kv_gib=40, reserve_gib=4, slab_mib=32):
    return ServingDevice(
        name=name,
        kv_bytes=int(kv_gib * GIB),
        reserve_bytes=int(reserve_gib * GIB),
        slab_bytes=slab_mib * MIB,
        slo=TARGETS,
    )


def calm(at_ms, of=None, **changes):
    values = {
        "kv_used": 0.2,
        "running": 4,
        "waiting": 0,
        "ttft_ms_p99": 120.0,
        "tpot_ms_p99": 18.0,
        **changes,
    }
    return Observation(device=of or device(), at_ms=at_ms, **values)


def late(at_ms, of=None, **changes):
    return calm(at_ms, of, ttft_ms_p99=900.0, **changes)


FLEET = tuple(
    device(
        f"d{n}",
        kv_gib=(40, 24, 7.3, 60, 2)[n],
        reserve_gib=(4, 0, 1.5, 30, 1)[n],
        slab_mib=(32, 16, 30, 128, 2)[n],
    )
    for n in range(5)
)


@st.composite
def readings(draw, at_ms, fleet=FLEET):
    """What a poll of the fleet may give: any mixture of calm, pressed, silent and missing."""
    found = []
    for one in fleet:
        kind = draw(st.sampled_from(("calm", "calm", "calm", "any", "stale", "unread", "missing")))
        if kind == "unread":
            found.append(Unread(one, "it does not answer"))
        elif kind == "calm":
            found.append(calm(at_ms, one, kv_used=draw(st.floats(0, 0.4))))
        elif kind == "stale":
            found.append(calm(at_ms - 20e3, one))
        elif kind == "any":
            found.append(draw(observations(at_ms, one)))
    return draw(st.permutations(found))


@st.composite
def observations(draw, at_ms, of):
    tails = st.none() | st.floats(0, 2000)
    return Observation(
        device=of,
        at_ms=at_ms - draw(st.sampled_from((0.0, 0.0, 5e3, 2e4))),
        kv_used=draw(st.floats(0, 1)),
        running=draw(st.integers(0, 64)),
        waiting=draw(st.sampled_from((0, 0, 0, 1, 9))),
        ttft_ms_p99=draw(tails),
        tpot_ms_p99=draw(tails),
        lent_bytes=draw(st.none() | st.integers(0, 60 * GIB)),
        revocations=draw(st.integers(0, 3)),
    )


@st.composite
def histories(draw, polls=12):
    """Polls as (time, readings)."""
    now_ms, found = 0.0, []
    for _ in range(draw(st.integers(1, polls))):
        now_ms += draw(st.sampled_from((0.0, 1e3, 5e3, 5e3, 12e3, 70e3, 700e3)))
        found.append((now_ms, draw(readings(now_ms))))
    return found
