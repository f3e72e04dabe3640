"""Targets and knobs say no to values without a meaning."""

import dataclasses
import math

import pytest

from rose.errors import InvalidArgument
from rose.slo import SLO, Policy


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_target_nobody_can_meet_is_refused(bad: float) -> None:
    with pytest.raises(InvalidArgument, match="ttft_ms"):
        SLO(ttft_ms=bad, tpot_ms=50)
    with pytest.raises(InvalidArgument, match="tpot_ms"):
        SLO(ttft_ms=500, tpot_ms=bad)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Policy)])
def test_every_knob_is_checked_and_explained(field: str) -> None:
    bad = (1.0,) if field == "latency_prior_ms" else -1
    with pytest.raises(InvalidArgument, match=field):
        Policy(**{field: bad})
    assert f"    {field}: " in (Policy.__doc__ or "")
