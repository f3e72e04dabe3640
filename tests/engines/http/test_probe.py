"""What an engine is, as its own routes and its model's folder tell."""

import json
from pathlib import Path

import pytest
from aiohttp import web

from rose.engines.http import (
    FEATURES,
    SGLANG_FEATURES,
    Dialect,
    EngineFacts,
    EngineSpeed,
    open_session,
    probe,
)
from rose.engines.http.link import BadStatus, Disconnected
from rose.errors import Unavailable
from rose.scheduler.worker import WorkerKind
from tests.engines.http.fake import BLOCK, CONTEXT, KV_BLOCKS, VOCABULARY, FakeEngine, engine


async def facts_of(one: FakeEngine, token: str | None = None) -> EngineFacts:
    async with open_session() as session:
        return await probe(session, one.url, token)


async def test_stock_vllm() -> None:
    async with engine() as one:
        one.label = "12"
        assert await facts_of(one) == EngineFacts(
            Dialect.VLLM,
            WorkerKind.DEDICATED,
            "tiny",
            "tiny",
            context_tokens=CONTEXT,
            kv_tokens=KV_BLOCKS * BLOCK,
            version=12,
            features=FEATURES,
        )


async def test_sglang() -> None:
    async with engine("sglang") as one:
        one.is_incremental = True
        assert await facts_of(one) == EngineFacts(
            Dialect.SGLANG,
            WorkerKind.DEDICATED,
            "tiny",
            "tiny",
            context_tokens=CONTEXT,
            kv_tokens=KV_BLOCKS * BLOCK,
            seats=32,
            features=SGLANG_FEATURES,
        )
        one.is_incremental = False
        assert not (await facts_of(one)).is_incremental


async def test_engine_under_rose() -> None:
    async with engine("rose") as one:
        one.version = 3
        assert await facts_of(one) == EngineFacts(
            Dialect.ROSE,
            WorkerKind.BORROWED,
            "tiny",
            "tiny",
            vocabulary=VOCABULARY,
            context_tokens=CONTEXT,
            kv_tokens=KV_BLOCKS * BLOCK,
            seats=64,
            eos_token_ids=(2,),
            version=3,
            features=frozenset({"top_p"}),
            speed=EngineSpeed(50_000.0, 2.0, 0.1),
            instance="one",
            has_position_seeds=True,
            follows=True,
        )


async def test_half_done_update_leaves_the_version_unknown() -> None:
    async with engine() as one:
        one.label = "unknown"
        assert (await facts_of(one)).version is None


async def test_folder_of_the_model_tells_what_the_engine_does_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 512, "eos_token_id": 2, "max_position_embeddings": 64})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    async with engine() as one:
        one.root = str(tmp_path)
        facts = await facts_of(one)
        assert (facts.vocabulary, facts.eos_token_ids) == (512, (2, 7))
        assert facts.context_tokens == CONTEXT  # The engine's own limit counts.
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 300}}))
    (tmp_path / "generation_config.json").write_text("no JSON")
    async with engine("sglang") as one:
        one.root = str(tmp_path)
        facts = await facts_of(one)
        assert (facts.vocabulary, facts.eos_token_ids) == (300, ())


async def test_unknown_facts_stay_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_self: object, _request: web.Request) -> web.Response:
        return web.Response(status=404)

    for name in ("_metrics", "_weight_info", "_server_info"):
        monkeypatch.setattr(FakeEngine, name, none)
    async with engine() as one:
        facts = await facts_of(one)
        assert (facts.kv_tokens, facts.seats, facts.vocabulary, facts.speed) == (None,) * 4
        assert facts.eos_token_ids == ()
        assert facts.version == 0
    async with engine("sglang") as one:
        facts = await facts_of(one)
        assert (facts.kv_tokens, facts.seats) == (None, None)


async def test_kv_tokens_of_all_engines_behind_one_server_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def metrics(_self: object, _request: web.Request) -> web.Response:
        name, sizes = "vllm:cache_config_info", [(16, 10), (32, 5), (16, "None")]
        lines = [
            f'{name}{{block_size="{size}",engine="{n}",num_gpu_blocks="{blocks}"}} 1.0'
            for n, (size, blocks) in enumerate(sizes)
        ]
        return web.Response(text="\n".join(["# HELP", *lines, "vllm:other 1.0"]))

    monkeypatch.setattr(FakeEngine, "_metrics", metrics)
    async with engine() as one:
        assert (await facts_of(one)).kv_tokens == 320


async def test_an_engine_that_cannot_be_probed_raises_one_sentence() -> None:
    async with engine() as one:
        one.token = "secret"
        with pytest.raises(BadStatus, match="401"):
            await facts_of(one, "wrong")
        assert (await facts_of(one, "secret")).model == "tiny"
        await one.kill()
        with pytest.raises(Disconnected, match="refuses connections"):
            await facts_of(one)


async def test_an_engine_that_has_not_told_its_state_is_asked_again_later() -> None:
    async with engine("rose") as one:
        one.state = dict
        with pytest.raises(Unavailable, match="has not told its state yet"):
            await facts_of(one)


async def test_server_that_is_no_engine_is_named_so() -> None:
    async with engine() as one:
        one.model = ""
        with pytest.raises(Unavailable, match="routes are those of no engine"):
            await facts_of(one)
