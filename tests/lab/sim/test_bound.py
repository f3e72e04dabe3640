"""The core's inequality finds what trying every schedule finds: no more, and no less."""

import math

from hypothesis import given
from hypothesis import strategies as st

from rose._core import (
    CertificateLog,
    Creditor,
    HostGate,
    ManualClock,
    ServingState,
)
from tests.known_model import known_model
from tests.reference.slack import Situation, most_segments

EIGHTH_NS = 125_000
EIGHTHS = 8.0
CHUNK_TOKENS = 64
HEADS = 1


def granted(now: Situation, *, since_token: int) -> int:
    """Return how many segments the core offers; a token was given `since_token` eighths ago."""
    clock = ManualClock()
    gate = HostGate(clock=clock)
    log = CertificateLog(
        "",
        ttft_ms=now.ttft / EIGHTHS,
        tpot_ms=(now.deadline + since_token) / EIGHTHS,
        epsilon=0.01,
        signal_ms=now.signal / EIGHTHS,
        blocking_ms=now.blocking / EIGHTHS,
        heartbeat_ttl_ms=1e6,
        max_segments=now.most,
        slabs=0,
        partitions=2,
        blocks_per_slab=1,
        slowdown=math.inf,
        clock=clock,
    )
    # Exact in binary: a step takes `step`, and 63 tokens of a chunk bring it to `chunk`.
    per_token_ms = (now.chunk - now.step) / EIGHTHS / (CHUNK_TOKENS - HEADS)
    model = known_model(
        prior_ms=(now.step / EIGHTHS, 0.0, 0.0, per_token_ms, 0.0),
        margin=1.0,
        step_tokens=CHUNK_TOKENS,
    )
    state = ServingState(log, gate=gate)
    creditor = Creditor(
        gate,
        state,
        model,
        log,
        largest_step=(1.0, 1.0, 0.0),
        largest_chunk=(0.0, 0.0, float(CHUNK_TOKENS)),
        segment_prior_ms=now.segment / EIGHTHS,
        segment_share=0.99,
        poll_ms=1.0,
        retry_ms=1.0,
        clock=clock,
    )
    slots = [state.arrived(tokens=10)]
    state.emitted(slots)
    clock.advance(since_token * EIGHTH_NS)
    state.beat()
    gate.begin_step()
    batch = (1.0, 11.0, 0.0) if now.is_committed else None
    offer = creditor.offer(batch, slots)
    return 0 if offer is None else offer.segments


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    step = draw(st.integers(1, 60))
    return Situation(
        segment=draw(st.integers(1, 12)),
        signal=draw(st.integers(1, 5)),
        step=step,
        # Whole eighths for each token.
        chunk=step + draw(st.integers(0, 2)) * (CHUNK_TOKENS - HEADS),
        deadline=draw(st.integers(1, 300)),
        ttft=draw(st.integers(1, 400)),
        blocking=draw(st.integers(1, 200)),
        is_committed=draw(st.booleans()),
        most=draw(st.integers(1, 12)),
    )


@given(now=situations(), since_token=st.integers(0, 50))
def test_the_certificate_grants_what_no_schedule_can_break(now, since_token) -> None:
    assert granted(now, since_token=since_token) == most_segments(now)
