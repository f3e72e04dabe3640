"""Measures an engine by polling its `/metrics`."""

from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult

from rose.clock import Clock
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.memory.model_shape import KVDtype
from rose.memory.presets import find_model
from rose.units import GIB, MIB, MS_PER_S, NS_PER_MS
from rose_lab.broker import ServingDevice
from rose_lab.broker.engine_reader import EngineMetrics, EngineReader
from rose_lab.cli.engine_metrics import read_metrics
from rose_lab.cli.engine_page import endpoint_of, fetch_text
from rose_lab.cli.profile_report import Measured, ProfileAsked
from rose_lab.demo.progress import Phases

# Small enough for negligible rounding; real slabs have 2 to 128 MiB.
_SLAB_BYTES: Final = 32 * MIB
# After this many failed readings in a row, the engine counts as gone.
_FAILURES_MAX: Final = 5
_BF16: Final = KVDtype(2)


def measure_engine(asked: ProfileAsked, clock: Clock, shown: Phases) -> Measured:
    """Poll the engine's metrics until the time is over or an interrupt comes.

    Raises:
        InvalidArgument: the URL is invalid, the pool size is unknown, or the reserve is not smaller
            than the pool.
        Unavailable: the first reading failed, or all of the `_FAILURES_MAX` readings after it.
        CorruptData: the first reading was invalid.
    """
    endpoint = endpoint_of(asked.url)
    first = read_metrics(fetch_text(endpoint, clock))
    measured = Measured(asked, _device(asked, first), first.engine, first.model or asked.model)
    with suppress(KeyboardInterrupt):
        measured.is_complete = _read_on(measured, endpoint, clock, shown)
    return measured


def _read_on(measured: Measured, endpoint: SplitResult, clock: Clock, shown: Phases) -> bool:
    """Read until the time is over and return True; return False if the engine disappears."""
    asked, reader = measured.asked, EngineReader(measured.device)
    began_ms, number, failed = clock.now_ns() / NS_PER_MS, 0, 0
    while (at_ms := clock.now_ns() / NS_PER_MS - began_ms) <= asked.seconds * MS_PER_S:
        try:
            found = read_metrics(fetch_text(endpoint, clock))
        except (Unavailable, CorruptData) as error:
            failed, line = failed + 1, str(error)
            measured.failures.append((at_ms, line))
        else:
            failed = 0
            measured.observations.append(reader.observe(found, at_ms))
            line = f"{found.running} running, {found.waiting} waiting, KV {found.kv_used:.0%}"
        shown.advance(line, done=at_ms / MS_PER_S, wanted=asked.seconds)
        if failed >= _FAILURES_MAX:
            if not measured.observations:
                raise Unavailable(line)
            return False
        number += 1
        rest_ms = number * asked.every_s * MS_PER_S - (clock.now_ns() / NS_PER_MS - began_ms)
        if rest_ms > 0:
            clock.sleep(rest_ms / MS_PER_S)
    return True


def _device(asked: ProfileAsked, found: EngineMetrics) -> ServingDevice:
    kv_bytes = asked.kv_bytes
    if kv_bytes is None:
        if found.kv_tokens is None:
            raise InvalidArgument(
                f"{asked.url} does not report how many tokens its KV pool holds; give --kv-gib"
            )
        kv_bytes = found.kv_tokens * token_bytes(asked.model or found.model)
    if asked.reserve_bytes >= kv_bytes:
        raise InvalidArgument(
            f"a reserve of {asked.reserve_bytes / GIB:.1f} GiB leaves nothing of a KV pool of "
            f"{kv_bytes / GIB:.1f} GiB; give a smaller --reserve-gib"
        )
    return ServingDevice("device", kv_bytes, asked.reserve_bytes, _SLAB_BYTES, asked.slos[0])


def token_bytes(model: str) -> int:
    """Return the KV bytes of a token in bf16.

    Args:
        model: a known model name, with or without its publisher; or a config.json.

    Raises:
        InvalidArgument: the model is unknown.
    """
    try:
        shape = find_model(model)
    except InvalidArgument:
        try:
            shape = find_model(model.rsplit("/", 1)[-1].removesuffix("-Instruct"))
        except InvalidArgument:
            raise InvalidArgument(
                f"the engine serves '{model}', whose shape rose does not know; give --kv-gib, or "
                f"--model with a config.json"
            ) from None
    groups = shape.groups(block_tokens=1, kv=_BF16, tp=1)
    return sum(group.geometry.bytes_per_token for group in groups)
