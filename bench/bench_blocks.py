"""Cost of blocks with references and cached prefixes, and the number of slabs that they occupy."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import pytest

from bench.conftest import Report
from bench.paired import timed
from bench.rows import Bar, Peer
from bench.vllm_wheel import load, load_block_pool
from rose._core import Arbiter, BlockAllocator
from rose.errors import Unavailable
from rose.units import KIB, MIB, ceil_div

SLAB_BYTES = 2 * MIB
BLOCK_BYTES = 32 * KIB
BLOCK_TOKENS = 16

# The decode trace of the suite "memory"; prompts share the beginnings of a few families.
LIVE, PROMPT_BLOCKS, GROWTH_BLOCKS_MAX, EVENTS = 256, (4, 64), 16, 60_000
FAMILIES = 16
CAPACITY_BLOCKS = LIVE * (PROMPT_BLOCKS[1] + GROWTH_BLOCKS_MAX)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a sequence.

    Args:
        name: number that identifies the sequence.
        keys: one key per prompt block at the arrival; empty later.
        is_over: whether the sequence ends; otherwise it arrives or grows by one block.
    """

    name: int
    keys: list[bytes]
    is_over: bool = False


Replay = Callable[[list[Event]], None]


def key_of(*words: int) -> bytes:
    """Return a unique key of 16 bytes, like the hash of a prefix's tokens."""
    return blake2b(repr(words).encode(), digest_size=16).digest()


def prompt_of(name: int, rng: random.Random) -> list[bytes]:
    """Return the keys of a prompt: the start of a family's prefix, then unique blocks."""
    blocks = rng.randint(*PROMPT_BLOCKS)
    shared = rng.randint(0, blocks)
    family = rng.randrange(FAMILIES)
    keys = [key_of(0, family, block) for block in range(shared)]
    return keys + [key_of(1, name, block) for block in range(shared, blocks)]


def decode_trace(events: int) -> list[Event]:
    """Return a trace in which `LIVE` sequences are live, until it has `events` events.

    A random sequence grows by one block, or ends and is replaced. At last all sequences end.
    """
    rng = random.Random(7)
    growth: dict[int, int] = {}
    trace: list[Event] = []
    names = iter(range(events))
    while len(trace) < events:
        if len(growth) < LIVE:
            name = next(names)
            growth[name] = rng.randint(0, GROWTH_BLOCKS_MAX)
            trace.append(Event(name, prompt_of(name, rng)))
            continue
        name = rng.choice(list(growth))
        if growth[name]:
            growth[name] -= 1
            trace.append(Event(name, []))
        else:
            del growth[name]
            trace.append(Event(name, [], is_over=True))
    return trace + [Event(name, [], is_over=True) for name in growth]


def blocks_of(capacity: int) -> BlockAllocator:
    """Return an allocator of one partition that owns the whole pool."""
    slabs = ceil_div(capacity * BLOCK_BYTES, SLAB_BYTES)
    arbiter = Arbiter.create(slab_bytes=SLAB_BYTES, slab_count=slabs, header_slabs=1)
    partition = arbiter.add_partition("serving", reserve_slabs=slabs, limit_slabs=slabs)
    arbiter.take(partition, slabs)
    return arbiter.allocator(partition, block_bytes=BLOCK_BYTES, origin_bytes=0)


def rose_replay(hits: list[int]) -> Replay:
    """Return a function that replays events on rose's allocator.

    `hits` gets the number of cached blocks found per replay.
    """
    allocator = blocks_of(CAPACITY_BLOCKS)

    def replay(trace: list[Event]) -> None:
        alloc, free = allocator.alloc, allocator.free
        acquire, publish = allocator.acquire, allocator.publish
        held: dict[int, list[int]] = {}
        all_found = 0
        for event in trace:
            if event.is_over:
                free(held.pop(event.name))
            elif event.keys:
                keys = event.keys
                blocks = acquire(keys)
                found = len(blocks)
                blocks += alloc(len(keys) - found) or ()
                publish(blocks[found:], keys[found:])
                held[event.name] = blocks
                all_found += found
            else:
                held[event.name] += alloc(1) or ()
        hits.append(all_found)

    return replay


def vllm_replay(hits: list[int]) -> Replay:
    """Return a function that replays events on vLLM's pool, as its own KV cache manager would.

    The pool is for one group of layers.

    `hits` gets the number of cached blocks found per replay.
    """
    block_pool: Any = load_block_pool()
    init_none_hash = load("vllm.v1.core.kv_cache_utils").init_none_hash
    init_none_hash(hash)
    pool = block_pool(
        num_gpu_blocks=CAPACITY_BLOCKS + 1, enable_caching=True, hash_block_size=BLOCK_TOKENS
    )

    def lookup(keys: list[bytes]) -> list[Any]:
        blocks = []
        for key in keys:
            cached = pool.get_cached_block(key, [0])
            if not cached:
                break
            blocks.append(cached[0])
        return blocks

    def replay(trace: list[Event]) -> None:
        held: dict[int, list[Any]] = {}
        all_found = 0
        for event in trace:
            if event.is_over:
                pool.free_blocks(reversed(held.pop(event.name)))
            elif event.keys:
                keys = event.keys
                blocks = lookup(keys)
                pool.touch(blocks)
                found = len(blocks)
                blocks += pool.get_new_blocks(len(keys) - found)
                request = SimpleNamespace(block_hashes=keys)
                pool.cache_full_blocks(request, blocks, found, len(keys), BLOCK_TOKENS, 0)
                held[event.name] = blocks
                all_found += found
            else:
                held[event.name] += pool.get_new_blocks(1)
        hits.append(all_found)

    return replay


def test_alloc_trace_ratio_vllm_blockpool(report: Report) -> None:
    own_hits: list[int] = []
    peer_hits: list[int] = []
    try:
        peer = vllm_replay(peer_hits)
    except Unavailable as reason:
        pytest.skip(str(reason))
    trace = decode_trace(report.count(EVENTS))
    subject = rose_replay(own_hits)
    paired = report.pairs(timed(lambda: subject(trace)), timed(lambda: peer(trace)), rounds=11)
    per_event = 1e-3 / len(trace)
    report.add_ratio(
        "alloc_trace_ratio_vllm_blockpool",
        paired,
        peer=Peer("vLLM 0.33 BlockPool with prefix caching", paired.peer * per_event, "us/event"),
        bar=Bar(at_most=0.40),
    )
    report.add("alloc_trace_cached_us", paired.subject * per_event, "us/event")
    # Only whole slabs are evicted, which costs cached prefixes.
    report.add(
        "alloc_trace_hits_over_vllm_blockpool",
        statistics.median(own_hits) / statistics.median(peer_hits),
        "ratio",
        peer=Peer("vLLM 0.33 BlockPool", statistics.median(peer_hits), "blocks"),
    )


# ---- how few slabs are held

SEQUENCES, SEQUENCE_BLOCKS = 256, 48
# One in this many sequences that decoded side by side continues after the others have ended.
STRIDES = (2, 3, 4, 8, 16)


def staggered(stride: int) -> tuple[BlockAllocator, int]:
    """Return an allocator, after sequences grew in turns and most ended, and its slab count."""
    allocator = blocks_of(SEQUENCES * SEQUENCE_BLOCKS)
    held: list[list[int]] = [[] for _ in range(SEQUENCES)]
    for _ in range(SEQUENCE_BLOCKS):
        for blocks in held:
            blocks.extend(allocator.alloc(1) or ())
    for index, blocks in enumerate(held):
        if index % stride != 0:
            allocator.free(blocks)
    return allocator, ceil_div(allocator.capacity_blocks * BLOCK_BYTES, SLAB_BYTES)


def held_over_needed(allocator: BlockAllocator, slabs: int) -> float:
    """Return the slabs with a block in use, divided by the fewest slabs for these blocks."""
    held = sum(allocator.used(slab) > 0 for slab in range(slabs))
    return held / ceil_div(allocator.used_blocks * BLOCK_BYTES, SLAB_BYTES)


def test_held_over_needed_after_churn(report: Report) -> None:
    before: list[float] = []
    after: list[float] = []
    moves_ns: list[float] = []

    def evacuate_all() -> None:
        for stride in STRIDES:
            allocator, slabs = staggered(stride)
            before.append(held_over_needed(allocator, slabs))
            began_ns = time.perf_counter_ns()
            sources, targets = allocator.plan_evacuation()
            allocator.finish_evacuation(sources, targets)
            moves_ns.append((time.perf_counter_ns() - began_ns) / max(1, len(sources)))
            after.append(held_over_needed(allocator, slabs))

    report.repeat(evacuate_all, 5)
    report.add("held_over_needed_after_churn", max(after), "ratio", bar=Bar(at_most=1.1))
    report.add("held_over_needed_before_evacuation", max(before), "ratio")
    report.add("evacuation_plan_and_finish_ns", statistics.median(moves_ns), "ns/block")
