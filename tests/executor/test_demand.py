"""The terms of certificates: the prior while cold, then what serving was seen to do."""

import pytest

from rose._core import AdmissionTerms, LatencyModel, ManualClock
from rose.executor import KVGeometry, Policy, StepBatch
from rose.executor.demand import Demand, ServingLimits
from tests.executor.conftest import Rig

PRIOR_MS = (10.0, 0.0, 0.0, 0.5, 0.0)
STEP_TOKENS, REQUEST_TOKENS = 80, 1000
SECOND_NS = 1_000_000_000


class Seen:
    """A demand of its own, with its clock."""

    def __init__(self, **knobs) -> None:
        policy = Policy(
            **{"epsilon": 0.1, "latency_prior_ms": PRIOR_MS, "revoke_ms": 100.0, **knobs}
        )
        self.clock = ManualClock()
        self.model = LatencyModel(
            prior_ms=PRIOR_MS,
            epsilon=0.1,
            forgetting=1,
            adaptation=0.01,
            window=64,
            step_tokens=STEP_TOKENS,
        )
        self.demand = Demand(
            geometry=KVGeometry(layers=1, block_tokens=16, bytes_per_token=64),
            slab_bytes=4096,
            limits=ServingLimits(step_tokens=STEP_TOKENS, request_tokens=REQUEST_TOKENS),
            model=self.model,
            policy=policy,
            clock=self.clock,
        )

    def terms(self) -> AdmissionTerms:
        return self.demand.terms(running=0)

    def arrive(self, *prompts: int) -> None:
        for prompt in prompts:
            self.demand.arrived(prompt_tokens=prompt)

    def arriving(self) -> tuple[int, int]:
        terms = self.terms()
        return terms.burst_requests, terms.burst_request_tokens


def test_the_prior_is_doubled_and_one_more_request_is_a_largest_one() -> None:
    seen = Seen()
    terms = seen.terms()
    assert terms.decode_tokens_per_s == pytest.approx(200.0)
    assert terms.prefill_tokens_per_s == pytest.approx(2 * 80 * 1000 / 50)
    assert seen.arriving() == (1, REQUEST_TOKENS)
    # g = 21; P = min(2000, 80 + 320); 27 blocks for 421 tokens, and 3 for the second request.
    assert seen.demand.blocks(running=0) == 27 + 3
    assert seen.demand.blocks(running=5) == 27 + 3 + 5 * 2


def test_what_arrived_within_t_may_arrive_again_and_one_more_besides() -> None:
    seen = Seen()
    seen.arrive(10, 30, 20)
    # Three of them, and while few were seen, no less in all than one of the largest.
    assert seen.arriving() == (3, -(-REQUEST_TOKENS // 3))
    seen.clock.advance(SECOND_NS)
    seen.arrive(10)
    assert seen.arriving()[0] == 3
    seen.arrive(*[400] * 3)
    assert seen.arriving() == (4, 400)
    seen.arrive(*[10] * 40)
    assert seen.arriving() == (44, 30)  # 1 in 10 may be longer, and 3 of 47 were


def test_no_request_is_taken_to_be_longer_than_serving_accepts() -> None:
    seen = Seen()
    seen.arrive(5000)
    assert seen.arriving() == (1, REQUEST_TOKENS)


def test_the_burst_of_the_policy_is_the_least() -> None:
    seen = Seen(burst_requests=5)
    seen.arrive(10)
    assert seen.arriving() == (5, REQUEST_TOKENS)
    none = Seen(burst_requests=0)
    assert none.arriving() == (0, 0)


def test_a_storm_is_over_after_a_minute() -> None:
    seen = Seen()
    seen.arrive(*[10] * 30)
    seen.clock.advance(59 * SECOND_NS)
    assert seen.arriving()[0] == 30
    seen.clock.advance(2 * SECOND_NS)
    assert seen.arriving()[0] == 1


def test_the_lane_tells_of_every_arrival_and_every_step(open_rig) -> None:
    rig: Rig = open_rig(epsilon=0.2)

    def terms() -> AdmissionTerms:
        return rig.device.lender.demand.terms(running=0)

    for name in "abc":
        rig.serving.arrived(name, prompt_tokens=8)
    assert terms().burst_requests == 3
    for _ in range(10):
        with rig.serving.step(StepBatch(1, 8, 8)):
            pass
    # Faster than the model's mean by what was measured, not by the factor of two of a cold start.
    step = rig.serving._model.forecast(decode_sequences=1, context_tokens=0, prefill_tokens=0)
    assert terms().decode_tokens_per_s > 2.5 * 1000 / step.predicted_ms
    for name in "abc":
        rig.serving.finished(name)
    with rig.serving.step():  # a step that no request was announced for is no arrival
        pass
    assert terms().burst_requests == 3
