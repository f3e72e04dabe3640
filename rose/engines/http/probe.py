"""Learn what an engine is, from its own routes."""

import asyncio
import re
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from rose.engines.http.facts import (
    FEATURES,
    SGLANG_FEATURES,
    TORN,
    Dialect,
    EngineFacts,
    speed_of,
)
from rose.engines.http.link import BadStatus, Link
from rose.engines.http.model_folder import read_model
from rose.errors import Unavailable
from rose.scheduler.worker import WorkerKind

PROBE_S: Final = 5.0
_CACHE: Final = re.compile(rb"^vllm:cache_config_info\{(.*)\} 1", re.MULTILINE)
_LABEL: Final = re.compile(rb'(\w+)="([^"]*)"')
_UNAUTHORISED: Final = frozenset({401, 403})

T = TypeVar("T")


async def probe(
    session: aiohttp.ClientSession,
    url: str,
    token: str | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> EngineFacts:
    """Return the facts of a running engine.

    Args:
        session: session of `open_session`.
        url: URL of the engine.
        token: its bearer token.
        tls: context for https; None: the system's authorities.

    Raises:
        Unavailable: the engine does not answer, refuses the token, or speaks none of the dialects.
        DeadlineExceeded: an answer did not arrive within `PROBE_S`.
    """
    link = Link(session, url, token, tls)
    status = await _object(link, "/rose/status")
    card = _first((await _object(link, "/v1/models")).get("data"))
    engine = status.get("engine")
    if isinstance(engine, dict):
        if "status" not in engine:
            raise Unavailable(f"the engine at {url} has not told its state yet")
        facts = _rose_facts(engine, card)
    elif info := await _object(link, "/model_info") or await _object(link, "/get_model_info"):
        facts = await _sglang_facts(link, card, info)
    else:
        facts = await _vllm_facts(link, card)
    if not facts.model:
        raise Unavailable(
            f"{url} answers, but its routes are those of no engine: expected /v1/models, "
            "/get_model_info or /rose/status"
        )
    return await _with_files(facts)


async def _weight_version(link: Link) -> int | None:
    """Return the version of a stock engine's weights.

    It is 0 if the weights have no name or no number, and None if an update broke off.
    """
    told = await _object(link, "/weight_info") or await _object(link, "/get_weight_version")
    version = told.get("weight_version")
    if version == TORN:
        return None
    return int(version) if isinstance(version, str) and version.isdecimal() else 0


async def _with_files(facts: EngineFacts) -> EngineFacts:
    """Fill unknown facts from the model's folder, if it is on this machine."""
    folder = facts.root or facts.model
    if not Path(folder).is_absolute():
        return facts
    model = await asyncio.to_thread(read_model, folder)
    return replace(
        facts,
        vocabulary=facts.vocabulary or model.vocabulary,
        context_tokens=facts.context_tokens or model.positions,
        eos_token_ids=facts.eos_token_ids or model.eos_token_ids,
    )


async def _object(link: Link, path: str) -> dict[str, Any]:
    """Return the JSON object of a route; empty if the engine has no such route."""
    try:
        found = msgspec.json.decode(await link.ask(path, deadline_s=PROBE_S))
    except BadStatus as error:
        if error.status in _UNAUTHORISED:
            raise
        return {}
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _rose_facts(engine: dict[str, Any], card: dict[str, Any]) -> EngineFacts:
    status, version = _part(engine, "status"), _part(engine, "version")
    features = [one for one in _typed(status, "features", list) or () if isinstance(one, str)]
    return EngineFacts(
        Dialect.ROSE,
        WorkerKind.BORROWED if status.get("kind") == "borrowed" else WorkerKind.DEDICATED,
        model=_typed(card, "id", str) or _typed(status, "model", str) or "",
        root=_typed(card, "root", str),
        vocabulary=_count(status, "vocabulary"),
        context_tokens=_count(status, "context_tokens") or _count(card, "max_model_len"),
        kv_tokens=_count(status, "kv_tokens"),
        seats=_count(status, "seats"),
        eos_token_ids=tuple(
            one for one in _typed(status, "eos_token_ids", list) or () if type(one) is int
        ),
        version=_count(version, "version") or _count(status, "version") or 0,
        features=frozenset(features) & FEATURES,
        speed=speed_of(status),
        instance=_typed(status, "instance", str),
        has_position_seeds="seeds" in features,
        follows=status.get("weights") != "routes",  # a borrower under vLLM
    )


async def _vllm_facts(link: Link, card: dict[str, Any]) -> EngineFacts:
    try:
        metrics = await link.ask("/metrics", deadline_s=PROBE_S)
    except BadStatus:
        metrics = b""
    return EngineFacts(
        Dialect.VLLM,
        WorkerKind.DEDICATED,
        model=_typed(card, "id", str) or "",
        root=_typed(card, "root", str),
        context_tokens=_count(card, "max_model_len"),
        kv_tokens=_kv_tokens(metrics),
        version=await _weight_version(link),
        features=FEATURES,
    )


def _kv_tokens(metrics: bytes) -> int | None:
    """Return the tokens in the KV caches of all engines behind one vLLM server."""
    total = 0
    for line in _CACHE.finditer(metrics):
        labels = dict(_LABEL.findall(line[1]))
        blocks, size = labels.get(b"num_gpu_blocks", b""), labels.get(b"block_size", b"")
        total += int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else 0
    return total or None


async def _sglang_facts(link: Link, card: dict[str, Any], info: dict[str, Any]) -> EngineFacts:
    server = await _object(link, "/server_info") or await _object(link, "/get_server_info")
    states = [one for one in server.get("internal_states") or () if isinstance(one, dict)]
    ranks = _count(server, "dp_size") or 1
    tokens = _count(server, "max_total_num_tokens") or _count(
        _part(_first(states), "memory_usage"), "token_capacity"
    )
    seats = _count(_first(states), "effective_max_running_requests_per_dp") or _count(
        server, "max_running_requests"
    )
    path = _typed(info, "model_path", str)
    return EngineFacts(
        Dialect.SGLANG,
        WorkerKind.DEDICATED,
        model=_typed(card, "id", str) or path or "",
        root=path,
        context_tokens=_count(card, "max_model_len") or _count(server, "context_length"),
        kv_tokens=None if tokens is None else tokens * ranks,
        seats=None if seats is None else seats * ranks,
        version=await _weight_version(link),
        features=SGLANG_FEATURES,
        has_position_seeds=bool(server.get("enable_deterministic_inference")),
        is_incremental=bool(
            server.get("incremental_streaming_output") or server.get("stream_output")
        ),
    )


# ---- fields of foreign objects: a field of another type counts as absent -------------------------


def _first(items: Any) -> dict[str, Any]:
    found = items[0] if isinstance(items, list) and items else {}
    return found if isinstance(found, dict) else {}


def _part(of: dict[str, Any], key: str) -> dict[str, Any]:
    return _typed(of, key, dict) or {}


def _typed(of: dict[str, Any], key: str, kind: type[T]) -> T | None:
    value = of.get(key)
    return value if isinstance(value, kind) else None


def _count(of: dict[str, Any], key: str) -> int | None:
    value = of.get(key)
    return value if type(value) is int and value >= 0 else None
