"""Decisions, a burst of revocations, events through Python, and the simulator of a cluster."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.conftest import Report
from bench.decision import build_bursts, build_decisions
from bench.fluid_cluster import fluid_cluster
from bench.paired import quantile, timed
from bench.rows import Peer
from rose.errors import check
from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import (
    Action,
    Event,
    Start,
    TrajectoryCreated,
    TurnEnded,
    TurnProgress,
    TurnReady,
    WorkerJoined,
)
from rose.scheduler.worker import LeaseChanged, TurnEnd, WorkerKind
from rose.sim.cluster.simulate import simulate_cluster
from rose.units import NS_PER_MS, NS_PER_S

WORKERS = 1024
REVOKED = 384
TURNS_EACH = 32
CONTEXT, MAX_NEW = 800, 200
KV_TOKENS = 64 * (CONTEXT + MAX_NEW)
BATCH = 64  # decisions, or events, in one step
SETTINGS = SchedulerSettings(batch_trajectories=1_000_000)


class Fleet:
    """A core with workers of several speeds, two of three borrowed, and a clock of its own."""

    def __init__(self, workers: int) -> None:
        self.core = SchedulerCore(SETTINGS, PlacementPolicy.JOINT)
        self.now_ns = 1
        self.next = 0
        rng = random.Random(7)
        self.kinds = [
            WorkerKind.BORROWED if number % 3 else WorkerKind.DEDICATED for number in range(workers)
        ]
        events: list[Event] = []
        for number, kind in enumerate(self.kinds):
            speed = 1 + rng.randrange(4)
            events.append(
                WorkerJoined(number, kind, number // 8, 64, 4000.0 * speed, 20 / speed, 0.5, 0)
            )
            events.append(LeaseChanged(number, 1, KV_TOKENS, 0.0))
        self.step(events)

    def step(self, events: list[Event]) -> list[Action]:
        self.now_ns += NS_PER_MS
        return self.core.step(events, self.now_ns)

    def create(self, count: int) -> list[Event]:
        """Admit trajectories and return their first turns, which no worker has yet."""
        numbers = range(self.next, self.next + count)
        self.next += count
        self.step([TrajectoryCreated(number, 0) for number in numbers])
        return [TurnReady(number, 0, CONTEXT, MAX_NEW) for number in numbers]

    def finish(self, actions: list[Action]) -> None:
        self.step(
            [
                TurnEnded(
                    *(start.trajectory, start.turn, start.worker, start.lease_epoch),
                    TurnEnd.FINISHED,
                )
                for start in actions
                if isinstance(start, Start)
            ]
        )


class NumpyPlacement:
    """What one would write in Python: the same cost over arrays, an argmin, the same book."""

    def __init__(self, workers: int) -> None:
        rng = random.Random(7)
        speed = np.array([1 + rng.randrange(4) for _ in range(workers)], dtype=float)
        self.prefill_s = 1 / (4000.0 * speed)
        self.step_s, self.sequence_s = 0.02 / speed, np.full(workers, 0.0005)
        self.hazard = np.where(np.arange(workers) % 3 > 0, SETTINGS.hazard_per_s, 0.0)
        self.room = np.full(workers, float(KV_TOKENS))
        self.turns, self.backlog = np.zeros(workers), np.zeros(workers)

    def place(self, context: int, max_new: int, *, expected: float, urgency: float) -> int:
        own = (self.backlog + context) * self.prefill_s + expected * (
            self.step_s + self.sequence_s * (self.turns + 1)
        )
        others = self.turns * (self.sequence_s * expected + context * self.prefill_s)
        hits = self.hazard * own
        risk = hits / (1 + hits) * (context * self.prefill_s + SETTINGS.requeue_ms / 1000)
        cost = (1 + urgency) * own + (1 - urgency) * others + (1 + urgency) * risk
        cost[self.room < context + max_new] = np.inf
        best = int(cost.argmin())
        self.change(best, context + max_new, context, by=1)
        return best

    def change(self, worker: int, need: int, context: int, *, by: int) -> None:
        self.room[worker] -= by * need
        self.turns[worker] += by
        self.backlog[worker] += by * context


@pytest.mark.parametrize("workers", [64, WORKERS])
def test_decision_in_the_core(report: Report, tmp_path: Path, workers: int) -> None:
    decision_ns = build_decisions(tmp_path)
    samples: list[float] = []
    report.repeat(lambda: samples.append(decision_ns(workers, report.count(20_000))), 7)
    report.add(f"decision_{workers}_workers_us", quantile(samples, 0.5) / 1000, "us")


def test_placement_vs_numpy(report: Report) -> None:
    fleet = Fleet(WORKERS)
    plain = NumpyPlacement(WORKERS)
    turns: list[Event] = []

    def by_core() -> list[Action]:
        return fleet.step(turns)

    def by_numpy() -> list[int]:
        return [plain.place(CONTEXT, MAX_NEW, expected=128.0, urgency=0.0) for _ in turns]

    def subject() -> float:
        turns[:] = fleet.create(BATCH)
        answers: list[Any] = []
        taken_ns = timed(lambda: answers.append(by_core()))()
        check(len(answers[0]) == BATCH, "the core starts every turn")
        fleet.finish(answers[0])
        return taken_ns / BATCH

    def peer() -> float:
        answers: list[Any] = []
        taken_ns = timed(lambda: answers.append(by_numpy()))()
        for worker in answers[0]:
            plain.change(worker, CONTEXT + MAX_NEW, CONTEXT, by=-1)
        return taken_ns / BATCH

    subject()
    paired = report.pairs(subject, peer, rounds=200)
    us = 1 / 1000
    report.add_ratio(
        f"place_{WORKERS}_workers_vs_numpy",
        paired,
        peer=Peer("the same cost over NumPy arrays, argmin", paired.peer * us, "us"),
    )
    report.add(f"place_{WORKERS}_workers_from_python_us", paired.subject * us, "us")


def test_correlated_revocation(report: Report) -> None:
    samples_ms: list[float] = []
    moved = 0

    def burst() -> None:
        nonlocal moved
        fleet = Fleet(WORKERS)
        starts: list[Start] = []
        for _ in range(WORKERS * TURNS_EACH // 1024):
            starts += [one for one in fleet.step(fleet.create(1024)) if isinstance(one, Start)]
        lost = [number for number, kind in enumerate(fleet.kinds) if kind is WorkerKind.BORROWED]
        gone = set(lost[:REVOKED])
        events: list[Event] = [
            TurnEnded(
                *(start.trajectory, start.turn, start.worker, start.lease_epoch),
                TurnEnd.INTERRUPTED,
                tokens=0,
            )
            for start in starts
            if start.worker in gone
        ]
        events += [LeaseChanged(number, 1, 0, 0.0) for number in gone]
        began_ns = time.perf_counter_ns()
        again = fleet.step(events)
        samples_ms.append((time.perf_counter_ns() - began_ns) / NS_PER_MS)
        moved = len(again)
        check(moved == len(events) - REVOKED, "every turn finds another worker")

    report.repeat(burst, 5)
    took_ms = quantile(samples_ms, 0.5)
    report.add(f"revoke_{REVOKED}_of_{WORKERS}_workers_ms", took_ms, "ms")
    report.add("revoke_moved_turns_count", moved, "turns")
    report.add("revoke_moved_turn_us", 1000 * took_ms / moved, "us")


@pytest.mark.parametrize("is_mixed", [False, True])
def test_correlated_revocation_in_the_core(report: Report, tmp_path: Path, is_mixed: bool) -> None:
    burst_ms = build_bursts(tmp_path)
    samples: list[float] = []
    moved = 0

    def burst() -> None:
        nonlocal moved
        took_ms, moved = burst_ms(WORKERS, REVOKED, TURNS_EACH, report.count(5), is_mixed)
        samples.append(took_ms)

    report.repeat(burst, 5)
    name = "mixed_turns_" if is_mixed else ""
    report.add(f"revoke_{REVOKED}_of_{WORKERS}_{name}ms", quantile(samples, 0.5), "ms")
    report.add(f"revoke_moved_{name or 'turns_'}in_the_core_count", moved, "turns")


def test_events_from_python(report: Report) -> None:
    fleet = Fleet(WORKERS)
    starts = [one for one in fleet.step(fleet.create(BATCH)) if isinstance(one, Start)]
    said = [0]

    def steps(count: int) -> None:
        for _ in range(count):
            events: list[Event] = [
                TurnProgress(
                    *(start.trajectory, 0, start.worker, start.lease_epoch, said[0], 1),
                    version_min=0,
                )
                for start in starts
            ]
            fleet.step(events)
            said[0] += 1

    def again() -> None:
        nonlocal fleet, starts
        fleet = Fleet(WORKERS)
        starts = [one for one in fleet.step(fleet.create(BATCH)) if isinstance(one, Start)]
        said[0] = 0

    step_ns = report.loop(steps, rounds=20, calls=MAX_NEW // 2, undo=again)
    report.add("events_per_s", BATCH * NS_PER_S / step_ns, "events/s")


def test_events_of_the_simulator(report: Report) -> None:
    # Without lending that changes: what is left is the scheduler, engines and the order of events.
    cluster = fluid_cluster(64, seconds=report.count(600, at_least=120))
    steady = tuple(replace(one, kind=WorkerKind.DEDICATED, lending=None) for one in cluster.workers)
    world = replace(cluster, workers=steady)
    samples: list[float] = []

    def simulate() -> None:
        began_ns = time.perf_counter_ns()
        found = simulate_cluster(world)
        samples.append(found.events * NS_PER_S / (time.perf_counter_ns() - began_ns))

    report.repeat(simulate, 5)
    report.add("sim_events_per_s", quantile(samples, 0.5), "events/s")


def test_an_hour_of_a_thousand_devices(report: Report) -> None:
    seconds = report.count(3600, at_least=60)
    world = fluid_cluster(1000, seconds=seconds)
    took_s: list[float] = []

    def simulate() -> None:
        began_ns = time.perf_counter_ns()
        found = simulate_cluster(world)
        took_s.append((time.perf_counter_ns() - began_ns) / NS_PER_S * 3600 / seconds)
        check(found.tokens_lost == 0, "no token is lost")

    report.once(simulate)
    report.add("fluid_1000_gpus_hour_s", took_s[-1], "s")
