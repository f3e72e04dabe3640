"""Opening a device for two models."""

import json
from types import SimpleNamespace

import pytest

import rose
from rose._core import CudaDevice
from rose.api import device as device_module
from rose.api.models import needs_of
from rose.executor import KVGeometry
from rose.memory import choose_slab_bytes
from rose.units import GIB
from tests.api.conftest import CONFIG, ROLLOUT_KV, SERVING_KV, SLO

LIMITS = {"step_tokens": 64, "request_tokens": 256}


def open_device(**knobs) -> rose.Device:
    return rose.open("cpu", **{"slo": SLO, "pool_bytes": 64 << 20, **knobs})


def test_a_model_is_a_preset_a_file_a_folder_its_fields_a_config_or_a_layout(tmp_path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    config = SimpleNamespace(to_dict=lambda: CONFIG)
    forms = [needs_of(form) for form in (str(file), file, tmp_path, CONFIG, config)]
    assert forms == [forms[0]] * 5
    assert forms[0].geometry == KVGeometry(
        layers=4, block_tokens=16, bytes_per_token=4 * 2 * 2 * 16 * 4
    )
    assert forms[0].cost is not None
    preset = needs_of("Qwen2.5-7B")
    assert preset.geometry.bytes_per_token == 28 * 2 * 4 * 128 * 2
    assert preset.weight_bytes == pytest.approx(15.2e9, rel=0.01)
    assert needs_of(SERVING_KV).geometry is SERVING_KV
    with pytest.raises(rose.InvalidArgument, match="no model 'nothing'"):
        needs_of("nothing")


def test_slabs_suit_both_models() -> None:
    big = KVGeometry(layers=8, block_tokens=16, bytes_per_token=96 << 10)
    with open_device() as device:
        device.serving(SERVING_KV, **LIMITS)
        borrower = device.borrower(big)
        assert borrower.kv.slab_bytes == choose_slab_bytes(SERVING_KV, big) > 2 << 20


def test_serving_alone_lays_the_pool_out_at_its_first_use() -> None:
    with open_device(pool_bytes=GIB) as device:
        serving = device.serving(SERVING_KV, **LIMITS)
        with serving.request(prompt_tokens=8) as request, serving.step(decode=[request]):
            pass
        # Blocks of 1.5 MiB fit it although it was not known.
        big = KVGeometry(layers=8, block_tokens=16, bytes_per_token=96 << 10)
        assert device.borrower(big).kv.slab_bytes == 32 << 20


def test_one_serving_engine_comes_first_then_one_borrower() -> None:
    with open_device() as device:
        with pytest.raises(rose.InvalidArgument, match="serving engine first"):
            device.borrower(ROLLOUT_KV)
        device.serving(SERVING_KV, **LIMITS)
        with pytest.raises(rose.InvalidArgument, match="already has a serving engine"):
            device.serving(SERVING_KV, **LIMITS)
        device.borrower(ROLLOUT_KV)
        with pytest.raises(rose.InvalidArgument, match="a device can have one borrower"):
            device.borrower(ROLLOUT_KV)


def test_a_pool_too_small_for_the_longest_request_is_refused_when_it_is_laid_out() -> None:
    device = open_device()
    device.serving(SERVING_KV)
    with pytest.raises(rose.InvalidArgument, match="raise pool_bytes"):
        device.borrower(ROLLOUT_KV)
    device.close()


def test_limit_and_reserve_bound_what_is_lent() -> None:
    with open_device() as device:
        device.serving(SERVING_KV, reserve_bytes=20 << 20, **LIMITS)
        assert device.borrower(ROLLOUT_KV).lane.slabs_max() == 20  # of 30
    with open_device() as device:
        device.serving(SERVING_KV, reserve_bytes=0, **LIMITS)
        assert device.borrower(ROLLOUT_KV, limit_bytes=8 << 20).lane.slabs_max() == 4


def test_close_writes_the_certificates_and_ends_the_device(tmp_path) -> None:
    device = open_device(log_path=tmp_path / "log")
    serving = device.serving(SERVING_KV, **LIMITS)
    device.borrower(ROLLOUT_KV)
    assert device.gave_back is None
    device.close()
    device.close()
    assert (tmp_path / "log").stat().st_size > 0
    with serving.request(prompt_tokens=8) as request, serving.step(decode=[request]):
        pass  # serving goes on without rose
    unused = open_device()
    unused.serving(SERVING_KV, **LIMITS)
    unused.close()
    with pytest.raises(rose.InvalidArgument, match="closed"):
        unused.borrower(ROLLOUT_KV)


def test_the_host_pool_is_a_quarter_of_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_AVPHYS_PAGES": 1 << 16, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(device_module.os, "sysconf", sizes.__getitem__)
    with rose.open("cpu", slo=SLO) as device:
        device.serving(SERVING_KV, **LIMITS)
        assert device.executor.arbiter.pool_bytes == 64 << 20


def test_the_pool_of_a_gpu_is_what_both_models_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = [140 * GIB, 141 * GIB]
    monkeypatch.setattr(
        CudaDevice, "open", lambda _: SimpleNamespace(memory_info=lambda: tuple(memory))
    )
    device = rose.open("cuda:0", slo=SLO)
    serving, borrower = needs_of("Qwen2.5-7B"), needs_of("Qwen3-8B")
    weights = serving.weight_bytes + borrower.weight_bytes
    assert device._pool_left_by(serving, borrower) == int(0.9 * (133 * GIB - weights))
    memory[0] = 50 * GIB  # Both models and somebody else's are loaded already.
    assert device._pool_left_by(serving, borrower) == int(0.9 * 50 * GIB)
    memory[1] = 24 * GIB
    with pytest.raises(rose.InvalidArgument, match="no memory is left"):
        device._pool_left_by(serving, borrower)
