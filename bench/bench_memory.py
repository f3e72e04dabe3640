"""Blocks, pins, loans: what memory costs an engine, and how fast a loan comes home."""

import importlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.conftest import Report
from bench.futex import build_round_trips
from bench.paired import quantile, timed
from bench.rows import Peer
from rose._core import Arbiter, BlockAllocator, Grant
from rose.errors import check
from rose.executor import SLO, CoServing, KVGeometry, Policy
from rose.executor.lender import Lease
from rose.units import GIB, KIB, MIB

SLAB_BYTES = 2 * MIB
BLOCK_BYTES = 32 * KIB

# The decode trace: live sequences, blocks of a prompt, most blocks it grows by.
LIVE, PROMPT_BLOCKS, GROWTH_BLOCKS_MAX, EVENTS = 256, (4, 64), 16, 60_000
CAPACITY_BLOCKS = LIVE * (PROMPT_BLOCKS[1] + GROWTH_BLOCKS_MAX)

Event = tuple[int, int]  # a sequence, and the blocks it takes; 0 when it is over
Replay = Callable[[list[Event]], None]


def decode_trace(events: int) -> list[Event]:
    """Return arrivals until all are live, then growth by one block and ends, in random order."""
    rng = random.Random(7)
    growth: dict[int, int] = {}
    trace: list[Event] = []
    names = iter(range(events))
    while len(trace) < events:
        if len(growth) < LIVE:
            name = next(names)
            growth[name] = rng.randint(0, GROWTH_BLOCKS_MAX)
            trace.append((name, rng.randint(*PROMPT_BLOCKS)))
            continue
        name = rng.choice(list(growth))
        if growth[name]:
            growth[name] -= 1
            trace.append((name, 1))
        else:
            del growth[name]
            trace.append((name, 0))
    return trace + [(name, 0) for name in growth]


def blocks_of(capacity: int) -> BlockAllocator:
    """Return an allocator of one partition that owns the whole pool."""
    slabs = -(-capacity * BLOCK_BYTES // SLAB_BYTES)
    arbiter = Arbiter.create(slab_bytes=SLAB_BYTES, slab_count=slabs, header_slabs=1)
    partition = arbiter.add_partition("serving", reserve_slabs=slabs, limit_slabs=slabs)
    arbiter.take(partition, slabs)
    return arbiter.allocator(partition, block_bytes=BLOCK_BYTES, origin_bytes=0)


def rose_replay() -> Replay:
    allocator = blocks_of(CAPACITY_BLOCKS)

    def replay(trace: list[Event]) -> None:
        alloc, free = allocator.alloc, allocator.free
        held: dict[int, list[int]] = {}
        for name, blocks in trace:
            if blocks == 0:
                free(held.pop(name))
            elif name in held:
                held[name] += alloc(blocks) or ()
            else:
                held[name] = alloc(blocks) or []

    return replay


def transformers_replay() -> Replay:
    """Return the pool of transformers, driven as its own cache drives it.

    Its sector is as large as our slab. That suits it: a model with one kind of attention has one
    block in a sector, and takes half as long again.
    """
    blocks_per_sector = SLAB_BYTES // BLOCK_BYTES
    module = importlib.import_module(
        "transformers.generation.continuous_batching.cache_allocators.cache_pool"
    )
    pool = module.CachePool(CAPACITY_BLOCKS // blocks_per_sector, 1)
    pool.set_blocks_per_sector(0, blocks_per_sector)

    def take(blocks: int) -> list[int]:
        missing = blocks - pool.count_free_blocks(0)
        if missing > 0:
            sectors = -(-missing // blocks_per_sector)
            if pool.num_free_sectors < sectors:
                pool.try_to_free_sectors()
            for _ in range(sectors):
                pool.allocate_sector(0)
        return list(pool.get_free_blocks(0, blocks))

    def replay(trace: list[Event]) -> None:
        held: dict[int, list[int]] = {}
        for name, blocks in trace:
            if blocks == 0:
                pool.free_blocks(0, held.pop(name))
            elif name in held:
                held[name] += take(blocks)
            else:
                held[name] = take(blocks)

    return replay


def free_list_replay() -> Replay:
    """Return the least there can be in Python: a list, without any check."""
    spare = list(range(CAPACITY_BLOCKS))

    def take(blocks: int) -> list[int]:
        ids = spare[-blocks:]
        del spare[-blocks:]
        return ids

    def replay(trace: list[Event]) -> None:
        held: dict[int, list[int]] = {}
        for name, blocks in trace:
            if blocks == 0:
                spare.extend(held.pop(name))
            elif name in held:
                held[name] += take(blocks)
            else:
                held[name] = take(blocks)

    return replay


def report_trace(report: Report, name: str, peer_name: str, peer: Replay) -> float:
    """Report rose over a peer on the decode trace; returns rose's microseconds per event."""
    trace = decode_trace(report.count(EVENTS))
    subject = rose_replay()
    paired = report.pairs(timed(lambda: subject(trace)), timed(lambda: peer(trace)), rounds=21)
    per_event = 1e-3 / len(trace)
    peer_us = Peer(peer_name, paired.peer * per_event, "us/event")
    report.add_ratio(name, paired, peer=peer_us)
    return paired.subject * per_event


def test_alloc_trace_over_transformers_pool(report: Report) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    name = "alloc_trace_over_transformers_pool"
    own_us = report_trace(report, name, "transformers CachePool", transformers_replay())
    report.add("alloc_trace_us", own_us, "us/event")


def test_alloc_trace_over_free_list(report: Report) -> None:
    report_trace(report, "alloc_trace_over_free_list", "a Python list", free_list_replay())


def test_alloc_free_pair_ns(report: Report) -> None:
    allocator = blocks_of(CAPACITY_BLOCKS)

    def pairs(count: int) -> None:
        alloc, free = allocator.alloc, allocator.free
        for _ in range(count):
            free(alloc(1) or ())

    report.add("alloc_free_pair_ns", report.loop(pairs, rounds=200, calls=2000), "ns")


def test_pin_unpin_ns(report: Report) -> None:
    allocator = blocks_of(CAPACITY_BLOCKS)
    ids = allocator.alloc(32) or []

    def pairs(count: int) -> None:
        pin, unpin = allocator.pin, allocator.unpin
        for _ in range(count):
            unpin(pin(ids))

    pair_ns = report.loop(pairs, rounds=200, calls=2000)
    report.add("pin_unpin_ns", pair_ns, "ns")


class IdleLoan:
    """A borrower with 1 GiB that it does not use."""

    def __init__(self) -> None:
        self.slabs = GIB // SLAB_BYTES
        self.arbiter = Arbiter.create(
            slab_bytes=SLAB_BYTES, slab_count=self.slabs + 8, header_slabs=2
        )
        everything = {"reserve_slabs": 0, "limit_slabs": self.slabs + 8}
        self.serving = self.arbiter.add_partition("serving", **everything)
        self.rollout = self.arbiter.add_partition("rollout", **everything)
        for partition in (self.serving, self.rollout):
            self.arbiter.allocator(
                partition, block_bytes=BLOCK_BYTES, origin_bytes=partition * SLAB_BYTES
            )
        self.lend()

    def lend(self) -> None:
        epoch = self.arbiter.epoch
        loan = self.arbiter.grant(self.rollout, self.slabs, ttl_ns=10**12, expected_epoch=epoch)
        check(isinstance(loan, Grant), "the pool is there for the borrower alone")

    def revoke(self) -> int:
        deadline_ns = self.arbiter.now_ns() + 10**9
        return self.arbiter.revoke(
            self.rollout, self.slabs, deadline_ns=deadline_ns, taker=self.serving
        )

    def measure_ns(self, count: int) -> list[float]:
        """Revoke the whole loan `count` times; the arrival of all slabs is in the time."""
        samples = []
        for _ in range(count):
            samples.append(timed(self.revoke)())
            home = self.arbiter.give_back(self.serving, self.slabs)
            check(home == self.slabs, "an idle loan comes home inside the call")
            self.lend()
        return samples


def test_revoke_idle_1gib_over_futex(report: Report, tmp_path: Path) -> None:
    round_trips = build_round_trips(tmp_path)
    loan = IdleLoan()
    count = report.count(400)
    samples: list[float] = []

    def revoke_p99() -> float:
        window = loan.measure_ns(count)
        samples.extend(window)
        return quantile(window, 0.99)

    paired = report.pairs(revoke_p99, lambda: quantile(round_trips(count), 0.99), rounds=41)
    report.add_ratio(
        "revoke_idle_1gib_over_futex",
        paired,
        peer=Peer("futex round trip between two threads, p99", paired.peer * 1e-3, "us"),
    )
    report.add("revoke_idle_us_p99", quantile(samples, 0.99) * 1e-3, "us")
    report.add("revoke_idle_us_p50", quantile(samples, 0.50) * 1e-3, "us")


def test_grant_with_certificate_us(report: Report, tmp_path: Path) -> None:
    geometry = KVGeometry(layers=4, block_tokens=16, bytes_per_token=2048)
    with CoServing.open(
        "cpu",
        pool_bytes=256 * MIB,
        log_path=tmp_path / "log",
        policy=Policy(regrow_after_ms=0, aborts_per_s=1e6),
    ) as device:
        slo = SLO(ttft_ms=1000, tpot_ms=100)
        device.serving(
            geometry, slo=slo, reserve_bytes=8 * MIB, step_tokens=256, request_tokens=512
        )
        partition = device.rollout(geometry, limit_bytes=256 * MIB).kv.partition

        def grow() -> None:
            check(isinstance(device.lender.grow(1), Lease), "there is room for one slab")

        def undo() -> None:
            deadline_ns = device.arbiter.now_ns() + 10**9
            device.arbiter.revoke(partition, 1, deadline_ns=deadline_ns)

        # No engine asks as often as this loop: the log's ring would fill up before it is written.
        samples = report.each(grow, 50, undo=undo, rest=lambda: time.sleep(0.01))
    report.add("grant_with_certificate_us", quantile(samples, 0.5) * 1e-3, "us")
    report.add("grant_with_certificate_us_p99", quantile(samples, 0.99) * 1e-3, "us")


def test_snapshot_us(report: Report) -> None:
    loan = IdleLoan()

    def snapshots(count: int) -> None:
        snapshot = loan.arbiter.snapshot
        for _ in range(count):
            snapshot()

    report.add("snapshot_us", report.loop(snapshots, rounds=200, calls=500) * 1e-3, "us")
