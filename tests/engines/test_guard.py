"""What the connector relies on in transformers, and what is refused."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BloomConfig, BloomForCausalLM
from transformers.generation.continuous_batching.requests import RequestState

from rose.engines.transformers import Model, check_version, guard, load_model
from rose.engines.versions import TRANSFORMERS
from rose.errors import InvalidArgument, RoseError, Unavailable
from tests.engines.pair import Client, Pair
from tests.engines.policies import engine_of, policy


def sentence_of(error: type[RoseError], call) -> str:
    with pytest.raises(error) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("found", ["5.22.9", "5.25.0", "5.230.0", "6.0.0", "4.57.1"])
def test_other_version_is_unavailable(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(guard, "version", lambda _: found)
    sentence = sentence_of(Unavailable, check_version)
    assert found in sentence
    assert f"transformers=={TRANSFORMERS[-1]}.*" in sentence


@pytest.mark.parametrize("name", sorted(guard._SIGNATURES))
def test_other_signature_is_unavailable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(guard._SIGNATURES, name, "self surprise")
    sentence = sentence_of(Unavailable, check_version)
    assert name in sentence
    assert "surprise" in sentence


def test_engine_checks_the_version_first(monkeypatch, models: tuple[Model, Model]) -> None:
    monkeypatch.setattr(guard, "version", lambda _: "9.9.9")
    with pytest.raises(Unavailable, match=r"9\.9\.9"):
        Pair(models)


def test_substitution_points_are_what_they_were(models: tuple[Model, Model]) -> None:
    """The canary: a change here breaks rose in ways that signatures do not show."""
    pair = Pair(models)
    engine, space = pair.rollout, pair.rollout_lane.kv
    manager, processor, cache = engine.manager, engine.processor, engine.processor.cache
    scheduler = processor.scheduler
    # The cache is addressed through our bytes only.
    assert cache.cache_tensor.data_ptr() == space.flat().ctypes.data
    assert cache.bytes_per_sector == space.geometry.block_bytes
    first, size = cache.cache_tensor.data_ptr(), cache.cache_tensor.numel()
    for holder in (cache, *cache.cache_allocators.values()):
        for one in vars(holder).values():
            for tensor in one if isinstance(one, list) else [one]:
                if isinstance(tensor, torch.Tensor) and tensor.numel() > cache.bytes_per_sector:
                    assert first <= tensor.data_ptr() < first + size
    assert cache.num_blocks > 0
    assert cache.max_tokens_read > 0
    for allocator in cache.cache_allocators.values():
        assert allocator.block_table == {}
        assert allocator.read_trash_index == 0
        assert allocator.sentinel_index == 1
        assert allocator.blocks_per_sector >= 1
        for name in ("cached_blocks", "block_to_hash", "hash_to_block"):
            assert len(getattr(allocator.ledger, name)) == 0
    # The first sectors are our null blocks: padding is read from and written to them alone.
    assert len(space.null_blocks) >= 2
    # Scheduler and requests.
    for name in ("active_requests", "waiting_requests", "waiting_requests_order"):
        assert len(getattr(scheduler, name)) == 0
    assert scheduler.block_new_requests is False
    assert scheduler._requests_to_fork == []
    assert len(scheduler.schedule_batch(64, 64)) == 4
    state = RequestState(request_id="x", initial_tokens=[1, 2], max_new_tokens=5)
    state.generated_tokens = [3]
    again = state.create_equivalent_initial_request()
    assert (again.initial_tokens, again.max_new_tokens) == ([1, 2, 3], 4)
    assert again._true_initial_tokens == 2
    for name in ("_status", "_timestamps", "created_time", "position_offset", "tokens_to_process"):
        assert hasattr(again, name)
    assert again.remaining_prefill_tokens == [1, 2, 3]
    # The manager keeps the processor it was given, and calls it in this order.
    assert manager._create_batch_processor() is processor
    assert manager.output_router is processor.output_router
    prepare = inspect.getsource(type(processor).__mro__[2].prepare_next_batch)
    order = [
        "_update_tp_group_state()",
        "clear_cancelled_requests()",
        "schedule_batch(",
        "prepare_batch_tensors(",
    ]
    places = [prepare.index(call) for call in order]
    assert places == sorted(places)
    loop = inspect.getsource(type(manager)._generation_loop_body)
    assert loop.index("_generation_step()") < loop.index("update_batch()")
    pair.device.close()


def test_the_next_engine_of_a_model_has_settings_of_its_own() -> None:
    model = policy(seed=1)
    for prefix_cache in (False, True):
        engine = engine_of(model, prefix_cache=prefix_cache)
        engine.start()
        engine.stop()
        assert engine.processor.cache.use_prefix_sharing is prefix_cache


def test_what_sampling_relies_on_is_what_it_was() -> None:
    """The canary of `SamplingRunner`: which row is whose, and how far a prepared request is."""
    engine = engine_of(policy(seed=1))
    engine.manager.background_thread_status.clear()
    client = Client(engine, "canary", 1)
    stop = client.send(prompt=[1, 2, 3], new_tokens=4, stop_tokens=(5, 6))
    long = client.send(prompt=list(range(80)), new_tokens=4)  # two steps of prefill
    processor = engine.processor
    assert processor.prepare_next_batch()
    io = processor.inputs_and_outputs
    futures = {future.state.request_id: future for future in io.requests_in_batch}
    assert list(futures) == [stop, long]
    assert [future.has_new_token for future in futures.values()] == [True, False]
    # The offset has the batch counted in: it is the place of the next token.
    assert [future.state.position_offset for future in futures.values()] == [3, 61]
    assert futures[stop].state._eos_token_ids == {5, 6}
    assert processor.model_runner.return_logprobs
    assert io.output_ids.shape[0] == 2
    assert io.output_ids.dtype == torch.int32
    processor._generation_step(engine.manager.model)
    _, tokens, logprobs = io.prepare_batch_update()
    assert len(tokens) == len(logprobs) == 2
    processor.update_batch()
    assert client.streamed == {stop: [1]}


# ---- models --------------------------------------------------------------------------------------


def test_unknown_model_names_the_presets() -> None:
    sentence = sentence_of(InvalidArgument, lambda: load_model("gpt-17", seed=0))
    assert "gpt-17" in sentence
    assert "tiny-qwen2" in sentence


@pytest.mark.parametrize("content", ["{not json", "{}", json.dumps({"model_type": "teapot"})])
def test_directory_without_a_model_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert str(tmp_path) in sentence_of(InvalidArgument, lambda: load_model(str(tmp_path), seed=0))


def test_model_without_its_weights_is_refused(tmp_path: Path, models) -> None:
    models[0].config.save_pretrained(tmp_path)
    sentence_of(InvalidArgument, lambda: load_model(str(tmp_path), seed=0))
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    sentence_of(InvalidArgument, lambda: load_model(str(tmp_path), seed=0))


def test_model_that_cannot_be_batched_is_refused(tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32}
    BloomForCausalLM(BloomConfig(**sizes, n_layer=1, n_head=2)).save_pretrained(tmp_path / "bloom")
    encoder = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(encoder).save_pretrained(tmp_path / "bert")
    for name, says in (("bloom", "cannot be batched"), ("bert", "has no weights for")):
        path = str(tmp_path / name)
        assert says in sentence_of(InvalidArgument, lambda path=path: load_model(path, seed=0))


def test_saved_model_is_the_same_model(tmp_path: Path, models: tuple[Model, Model]) -> None:
    models[0].save_pretrained(tmp_path)
    again = load_model(str(tmp_path), seed=0)
    tokens = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, models[0](tokens).logits)
