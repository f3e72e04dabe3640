"""Which misses are an arm's own."""

import pytest

from rose.errors import InternalError
from rose.slo import SLO
from rose_lab.sim import ArmOutcome, RequestOutcome, excess_misses, missed

TARGETS = SLO(ttft_ms=100.0, tpot_ms=10.0)


def arm(*requests: RequestOutcome) -> ArmOutcome:
    return ArmOutcome(
        scheme="any",
        requests=requests,
        wall_ms=200.0,
        serving_busy_ms=150.0,
        harvest_ms=50.0,
        segments=1,
        pauses_ms=(),
        blocked_ms=(),
        lent_ms=0.0,
        grants=1,
        refusals=0,
    )


def request(ttft_ms: float, longest_gap_ms: float) -> RequestOutcome:
    return RequestOutcome(ttft_ms, longest_gap_ms, 5.0, output_tokens=10)


def test_a_request_is_missed_for_its_first_token_or_one_long_gap() -> None:
    outcome = arm(
        request(100.0, 10.0), request(100.1, 1.0), request(1.0, 10.1), request(101.0, 11.0)
    )
    assert missed(outcome, slo=TARGETS) == {1, 2, 3}


def test_requests_that_serving_alone_misses_are_no_excess() -> None:
    alone = arm(request(1.0, 1.0), request(200.0, 1.0), request(1.0, 20.0))
    beside = arm(request(200.0, 1.0), request(300.0, 1.0), request(1.0, 5.0))
    assert excess_misses(beside, alone, slo=TARGETS) == {0}
    assert excess_misses(alone, alone, slo=TARGETS) == frozenset()


def test_arms_of_different_traces_are_not_compared() -> None:
    with pytest.raises(InternalError, match="different traces"):
        excess_misses(arm(request(1.0, 1.0)), arm(), slo=TARGETS)


def test_shares_are_of_the_whole_time() -> None:
    assert (arm().harvest, arm().busy) == (0.25, 0.75)
