"""Two transformers engines on one GPU: every token is what the model says alone."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from rose.engines.versions import TRANSFORMERS, is_among
from tests.known_model import confirm

pytestmark = pytest.mark.gpu

POOL_BYTES: Final = 64 << 20


@pytest.fixture(scope="module")
def engines(gpu: None) -> Any:
    """Return rose's connector, where a supported version of transformers is installed."""
    transformers = pytest.importorskip("transformers")
    found = transformers.__version__
    if not is_among(found, TRANSFORMERS):
        pytest.skip(f"the engines need transformers {' or '.join(TRANSFORMERS)}, {found} is here")
    pytest.importorskip("psutil")
    import rose.engines.transformers

    return rose.engines.transformers


def test_live_weights_are_changed_on_the_gpu(engines: Any) -> None:
    import numpy as np
    import torch

    from rose.transfer import delta_pack
    from rose.transfer.codec.operations import digest
    from tests.engines.intact import flat_bits, is_intact

    model = engines.load_model("tiny-qwen2", seed=1, device="cuda:0")
    weights = engines.LiveWeights(model)
    base = weights.row
    fresh = base.copy()
    fresh[::97] += 1
    packed = [delta_pack(fresh[one.where], base[one.where].copy()) for one in weights.cut]
    for undo, expected in ((False, fresh), (True, base)):
        for tile, delta in enumerate(packed):
            weights.apply(tile, delta, undo=undo)
            assert weights.digest(tile) == digest(expected[weights.cut[tile].where])
        assert np.array_equal(weights.row, expected)
        assert np.array_equal(flat_bits(model), expected)
        assert is_intact(weights)
    first = next(model.parameters())
    first.data.view(torch.int32).view(-1)[0] ^= 1
    assert not is_intact(weights)
    assert weights.repair(0)
    assert is_intact(weights)


class Pair:
    """Serving and a borrower on one GPU, with copies of both models on the CPU to compare with."""

    def __init__(self, engines: Any) -> None:
        from rose.executor import SLO, CoServing, Policy
        from rose.memory import choose_slab_bytes

        names = ("tiny-qwen2", "tiny-qwen3")
        self.alone = [engines.load_model(name, seed=1) for name in names]
        on_gpu = [engines.load_model(name, seed=1, device="cuda:0") for name in names]
        config = engines.EngineConfig(max_batch_tokens=64)
        geometries = [engines.kv_geometry(model, config) for model in on_gpu]
        self.device = CoServing.open(
            "cuda:0",
            pool_bytes=POOL_BYTES,
            slab_bytes=choose_slab_bytes(*geometries),
            policy=Policy(
                regrow_after_ms=5.0, revoke_ms=500.0, blocking_ms=2000.0, heartbeat_ttl_ms=5000.0
            ),
        )
        self.serving_lane = self.device.serving(
            geometries[0],
            slo=SLO(ttft_ms=20_000.0, tpot_ms=1000.0),
            reserve_bytes=4 << 20,
            step_tokens=64,
            request_tokens=256,
        )
        confirm(self.device._parts.model, 64)
        rollout_lane = self.device.rollout(geometries[1], limit_bytes=POOL_BYTES)
        self.serving = engines.serving_engine(on_gpu[0], self.serving_lane, config)
        self.rollout = engines.rollout_engine(on_gpu[1], rollout_lane, config, layers_per_segment=1)


@pytest.fixture
def pair(engines: Any) -> Iterator[Pair]:
    made = Pair(engines)
    made.serving.start()
    made.rollout.start()
    yield made
    made.rollout.stop()
    made.serving.stop()
    made.device.close()
    assert made.device.gave_back is None
    made.device.arbiter.check_invariants()


def test_rollouts_alone_say_what_the_model_says(pair: Pair) -> None:
    from tests.engines.pair import Client

    client = Client(pair.rollout, "rollout", seed=3)
    for _ in range(4):
        client.send(prompt_tokens=40, new_tokens=16)
    client.wait()
    assert client.errors() == []
    assert client.wrong(pair.alone[1]) == []


def test_interrupted_rollouts_say_the_same(pair: Pair) -> None:
    from tests.engines.pair import Client

    rollouts = Client(pair.rollout, "rollout", seed=4)
    serving = Client(pair.serving, "serving", seed=5)
    for _ in range(6):
        rollouts.send(prompt_tokens=48, new_tokens=48)
    for _ in range(8):
        serving.send(prompt_tokens=60, new_tokens=8)
        serving.wait()
    rollouts.wait()
    for client, model in ((rollouts, pair.alone[1]), (serving, pair.alone[0])):
        assert client.errors() == []
        assert client.wrong(model) == []
    assert pair.device.gate.stats().pauses > 0
