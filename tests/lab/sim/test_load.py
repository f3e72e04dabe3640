"""A trace is stretched to a load, and nothing else of it changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.slo import SLO
from rose_lab.sim import DeviceModel, Request, at_load, simulate, stretched

DEVICE = DeviceModel()
TRACE = [Request(130.0 * n + n * n % 97, 20 + 31 * n % 400, 1 + 7 * n % 40) for n in range(80)]


@settings(max_examples=4)
@given(busy=st.floats(0.2, 0.95))
def test_serving_alone_is_as_busy_as_was_asked(busy) -> None:
    found = at_load(stretched(TRACE), DEVICE, busy=busy, seed=0)
    alone = simulate(found, DEVICE, "alone", slo=SLO(ttft_ms=500, tpot_ms=25), seed=0)
    assert alone.busy == pytest.approx(busy, abs=0.0051)
    factor = found[-1].arrival_ms / TRACE[-1].arrival_ms
    for before, after in zip(TRACE, found, strict=True):
        assert after.arrival_ms == pytest.approx(before.arrival_ms * factor)
        assert (after.prompt_tokens, after.output_tokens) == (
            before.prompt_tokens,
            before.output_tokens,
        )


@pytest.mark.parametrize(
    ("requests", "busy", "says"),
    [
        ([], 0.5, "the trace has none"),
        (TRACE, 0.0, "busy must be above 0 and below 1, got 0.0"),
        (TRACE, 1.0, "busy must be above 0 and below 1, got 1.0"),
    ],
)
def test_a_load_that_cannot_be_is_refused(requests, busy, says) -> None:
    with pytest.raises(InvalidArgument, match=says):
        at_load(stretched(requests), DEVICE, busy=busy, seed=0)
