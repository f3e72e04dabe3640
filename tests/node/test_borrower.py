"""Rollouts in a process of their own, as the demo runs them."""

import threading
from pathlib import Path

import pytest

from rose.cli.remote_rollouts import RemoteRollouts
from rose.engines.transformers import EngineConfig, kv_geometry, load_model
from rose.errors import Unavailable
from rose.executor import SLO, CoServing, Policy
from rose.memory import choose_slab_bytes
from rose.rl.borrower_settings import BorrowerSettings
from rose.units import MIB
from tests.known_model import confirm

CALM = Policy(
    latency_prior_ms=(500.0, 0.0, 0.0, 0.0, 0.0),
    blocking_ms=60_000,
    revoke_ms=2000.0,
    lease_ttl_ms=600_000.0,
)


def settings(path: str) -> BorrowerSettings:
    return BorrowerSettings(
        socket=path,
        model="tiny-policy",
        seed=0,
        cores=(),
        limit_bytes=16 * MIB,
        max_batch_tokens=32,
        spare_share=0.1,
        layers_per_segment=1,
        rollouts=2,
        prompt_tokens=8,
        output_tokens=8,
    )


def wait_for_tokens(load: RemoteRollouts, more_than: int) -> int:
    pause = threading.Event()
    for _ in range(3000):
        tokens = load.tokens
        if tokens > more_than or load.failures:
            break
        pause.wait(0.02)
    assert load.failures == []
    assert tokens > more_than
    return tokens


@pytest.mark.timeout(600)
def test_rollouts_of_another_process_run_pause_and_end(tmp_path: Path) -> None:
    model = load_model("tiny-policy", seed=0)
    geometry = kv_geometry(model, EngineConfig(max_batch_tokens=32))
    path = str(tmp_path / "device.sock")
    with CoServing.open(
        "cpu", pool_bytes=32 * MIB, slab_bytes=choose_slab_bytes(geometry), policy=CALM
    ) as device:
        serving = device.serving(
            geometry,
            slo=SLO(ttft_ms=120_000, tpot_ms=60_000),
            reserve_bytes=2 * MIB,
            step_tokens=64,
            request_tokens=128,
        )
        confirm(device._model, 64)
        device.listen(path)
        load = RemoteRollouts(settings(path))
        load.start()
        try:
            load.resume()
            first = wait_for_tokens(load, 0)
            wait_for_tokens(load, first)
            load.pause()
            paused = load.tokens
            # A request of serving closes the gate; a borrower at its gate can still be paused.
            load.resume()
            serving.arrived("urgent", prompt_tokens=8)
            load.pause()
            serving.finished("urgent")
            load.resume()
            wait_for_tokens(load, paused)
            assert device.gate.stats().segments > 0
        finally:
            load.stop()
        assert device.gave_back is None


def test_a_borrower_without_a_device_says_so(tmp_path: Path) -> None:
    load = RemoteRollouts(settings(str(tmp_path / "nobody.sock")))
    with pytest.raises(Unavailable, match="no device can be reached"):
        load.start()
    load.stop()
