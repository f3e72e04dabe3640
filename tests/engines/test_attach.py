"""rose.attach: engines of transformers on both sides of a device, by one name."""

import threading

import pytest

import rose
from rose.engines.transformers import EngineConfig
from tests.engines.pair import WAIT_S, would_generate
from tests.known_model import confirm

CONFIG = EngineConfig(max_batch_tokens=64)
SLO = rose.SLO(ttft_ms=20_000, tpot_ms=1000)
POLICY = rose.Policy(
    regrow_after_ms=5.0, revoke_ms=200.0, blocking_ms=2000.0, heartbeat_ttl_ms=5000.0
)


class Call:
    """One request and its end."""

    def __init__(self, engine, name: str, prompt: list[int], new_tokens: int) -> None:
        self.over = threading.Event()
        self.tokens: list[int] = []
        self.error: str | None = None
        engine.submit(name, prompt, max_new_tokens=new_tokens, on_output=self.note)

    def note(self, output) -> None:
        if output.is_finished():
            self.tokens, self.error = list(output.generated_tokens), output.error
            self.over.set()


@pytest.fixture
def engines(models):
    with rose.open("cpu", slo=SLO, pool_bytes=1 << 30, policy=POLICY) as device:
        pair = [
            rose.attach(model, device=device, role=role, config=CONFIG, request_tokens=256)
            for model, role in zip(models, ("serving", "borrower"), strict=True)
        ]
        confirm(device.executor._parts.model, 64)
        for engine in pair:
            engine.start()
        yield device, *pair
        for engine in pair:
            engine.stop()
        assert device.gave_back is None


def test_both_engines_say_what_their_models_say(engines, models) -> None:
    device, serving, borrower = engines
    rollouts = [Call(borrower, f"r{one}", [one, 7, 9], 24) for one in range(3)]
    for number in range(6):
        prompt = [number, 3, 5, 8]
        answer = Call(serving, f"s{number}", prompt, 4)
        assert answer.over.wait(WAIT_S)
        assert would_generate(models[0], prompt, answer.tokens)
    for number, rollout in enumerate(rollouts):
        assert rollout.over.wait(WAIT_S)
        assert rollout.error is None
        assert would_generate(models[1], [number, 7, 9], rollout.tokens)
    assert device.executor.reading().later_tokens[-1][1] == 6 * 3


def test_serving_announces_its_requests_from_submit_to_their_end(engines) -> None:
    device, serving, _ = engines
    lane = device._lay_out()[1]
    call = Call(serving, "a", [1, 2, 3], 4)
    assert call.over.wait(WAIT_S)
    assert not lane.has_requests
    serving.stop()
    with pytest.raises(rose.Unavailable):
        Call(serving, "b", [1, 2, 3], 4)
    assert not lane.has_requests


def test_an_unknown_role_is_refused(models) -> None:
    with (
        rose.open("cpu", slo=SLO, pool_bytes=1 << 30) as device,
        pytest.raises(rose.InvalidArgument, match="'guest'"),
    ):
        rose.attach(models[0], device=device, role="guest")
