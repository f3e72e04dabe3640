"""What the lane tells the demand of."""

from rose._core import AdmissionTerms
from rose.executor import StepBatch
from tests.executor.conftest import Rig


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
