"""Loans of a scenario's borrowed GPUs in an arm, for the cluster simulation."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.memory.model_weights import parameters
from rose.memory.presets import find_model
from rose.slo import SLO
from rose.units import MS_PER_S
from rose_lab.sim.cluster.lending import (
    BIN_MS,
    PIECE_BINS,
    Pieces,
    RequestLatencies,
    SimulatedLender,
    capacity_of,
    rate_of,
)
from rose_lab.sim.cluster.lending_devices import kv_tokens, roofline_cost
from rose_lab.sim.cluster.lending_kv import KvPool, KvRule, PublishedKv
from rose_lab.sim.cluster.world import LendingTimeline
from rose_lab.sim.scenario.arms import WHOLE_GPUS, ArmRules, Loan, rules_of
from rose_lab.sim.scenario.parts import Borrowed
from rose_lab.sim.scenario.scenario import Scenario
from rose_lab.sim.scenario.traffic import Inputs, mix_of, waves

Column = npt.NDArray[np.float64]

# Distinct devices of a group; in a larger group several devices share a timeline.
_DEVICES_MAX: Final = 32
# Share of bursts that reach all devices of a service.
_SHARED: Final = 0.5
# Share of late requests that a fleet accepts when it gives whole GPUs away.
_LATE_MAX: Final = 0.01
# Estimate before the simulation: in the paper, training takes about a quarter of an RL step.
_TRAINING_OF_STEP: Final = 0.25
_STEP_MS_MIN: Final = 60_000.0
# Random stream of traffic, separate from those of trajectories.
_TRAFFIC_STREAM: Final = 2


@dataclass(frozen=True, slots=True)
class GroupLoan:
    """Loans of one group of borrowed GPUs, and latencies of its requests.

    Args:
        lendings: loan of each engine of the group.
        latencies: latencies of its requests; None if nothing is lent.
        alone: latencies of requests at the same times without loans.
        excess: number of requests that are late in `latencies` but not in `alone`; None if the
            two have different requests.
    """

    lendings: tuple[LendingTimeline, ...] = ()
    latencies: RequestLatencies | None = None
    alone: RequestLatencies | None = None
    excess: int | None = None


class ServingGroups:
    """The traffic of a scenario's borrowed GPUs under one seed, and the loans in each arm.

    Every arm gets the same requests. Loans are cached, since arms that lend alike share them.
    """

    def __init__(self, scenario: Scenario, *, seed: int, inputs: Inputs) -> None:
        """Draw the traffic.

        Args:
            scenario: scenario to simulate.
            seed: seed of the traffic, >= 0.
            inputs: content of the scenario's files.

        Raises:
            InvalidArgument: models do not fit a GPU, or a file is not among the inputs.
        """
        self._scenario = scenario
        self._fleets = [
            _Fleet.of(scenario, group, seed=seed, number=number, inputs=inputs)
            for number, group in enumerate(scenario.borrowed)
        ]
        self._kept: dict[Loan | None, tuple[GroupLoan, ...]] = {}

    def loans(self, arm: str) -> tuple[GroupLoan, ...]:
        """Return the loans of each group in an arm; without `lendings` if nothing is lent."""
        rules = rules_of(arm)
        if rules.loan not in self._kept:
            self._kept[rules.loan] = tuple(self._loan(fleet, rules) for fleet in self._fleets)
        return self._kept[rules.loan]

    def _loan(self, fleet: "_Fleet", rules: ArmRules) -> GroupLoan:
        scenario, group = self._scenario, fleet.group
        if rules.loan is None:
            return GroupLoan()
        size = parameters(find_model(scenario.model))
        if rules.loan is WHOLE_GPUS:
            made = fleet.whole(
                kv_tokens(find_model(scenario.model), group.gpu.value, tp=group.tp),
                release_ms=rules.release_ms(size),
                start_up_ms=rules.start_up_ms(size),
            )
        else:
            made = fleet.shares(rules.loan, kv_rule(rules.loan, scenario))
        horizon_ms = MS_PER_S * scenario.horizon_s
        shaped = [until(one, horizon_ms) for one in made.lendings]
        longer_ms = rules.first_longer_ms(size)
        if longer_ms:
            shaped = [first_started(one, longer_ms) for one in shaped]
        engines = group.count // group.tp
        return replace(made, lendings=tuple(shaped[at % len(shaped)] for at in range(engines)))


def kv_rule(loan: Loan, scenario: Scenario) -> KvRule:
    """Return the rule of the KV pools; under the paper's rule, loans grow with each RL step."""
    if not isinstance(loan.kv, PublishedKv):
        return loan.kv
    train_ms = MS_PER_S * max(job.train_s for job in scenario.jobs)
    return replace(loan.kv, rl_step_ms=max(_STEP_MS_MIN, train_ms / _TRAINING_OF_STEP))


def until(lending: LendingTimeline, horizon_ms: float) -> LendingTimeline:
    """Return the timeline up to the horizon."""
    kept = lending.at_ms < horizon_ms
    return LendingTimeline(lending.at_ms[kept], lending.share[kept], lending.kv_tokens[kept])


def whole_gpus(
    kept: npt.NDArray[np.int64],
    *,
    devices: int,
    full_tokens: int,
    bin_ms: float,
    release_ms: float,
    shortest_ms: float,
) -> tuple[LendingTimeline, ...]:
    """Return the loans of a fleet that gives whole GPUs away and serves with the others.

    GPUs with the highest numbers are lent first.

    Args:
        kept: (bins,) int64, number of GPUs that serve.
        devices: number of devices of the fleet.
        full_tokens: capacity of a lent GPU, in context tokens.
        bin_ms: length of a bin.
        release_ms: lead time by which a GPU is released before serving needs it.
        shortest_ms: loans that are not longer than this are left out; an engine could not start.
    """
    at_ms = bin_ms * np.arange(len(kept), dtype=np.float64)
    return tuple(
        _in_spans(at_ms, number >= kept, full_tokens, release_ms, shortest_ms)
        for number in range(devices)
    )


def _in_spans(
    at_ms: Column,
    is_lent: npt.NDArray[np.bool_],
    full_tokens: int,
    release_ms: float,
    shortest_ms: float,
) -> LendingTimeline:
    is_new = np.concatenate(([True], is_lent[1:] != is_lent[:-1]))
    begins, lent = at_ms[is_new], is_lent[is_new]
    # A loan ends before the change, because the borrower needs the release time to give it back.
    ends = np.append(begins[1:] - release_ms, np.inf)[lent]
    begins = begins[lent]
    is_long = ends - begins > shortest_ms
    edges = np.stack((begins[is_long], ends[is_long]), axis=1).ravel()
    share = np.tile([1.0, 0.0], int(is_long.sum()))
    edges, share = edges[edges < np.inf], share[edges < np.inf]
    if not len(edges) or edges[0] > 0:
        edges, share = np.append(0.0, edges), np.append(0.0, share)
    return LendingTimeline(edges, share, share.astype(np.int64) * np.int64(full_tokens))


def first_started(lending: LendingTimeline, longer_ms: float) -> LendingTimeline:
    """Return the loan of a GPU whose first start takes longer than later starts.

    If a GPU is lent from the beginning, its engine has started before, as in every arm. A loan that
    is too short for the start does not count, and the next loan has the first start.
    """
    lent = np.flatnonzero(lending.share > 0)
    if not len(lent) or lent[0] == 0:
        return lending
    ends_ms = np.append(lending.at_ms[1:], np.inf)
    started = lent[lending.at_ms[lent] + longer_ms < ends_ms[lent]]
    first = int(started[0]) if len(started) else len(lending.at_ms)
    rows = np.append(0, np.arange(first, len(lending.at_ms)))
    at_ms = lending.at_ms[rows]
    at_ms[1:2] += longer_ms
    return LendingTimeline(at_ms, lending.share[rows], lending.kv_tokens[rows])


@dataclass(frozen=True, slots=True)
class _Fleet:
    """The distinct devices of one group, and their traffic."""

    group: Borrowed
    lender: SimulatedLender
    pool: KvPool
    rates_rps: Column  # (pieces,) per device
    pieces: Pieces
    devices: int

    @classmethod
    def of(
        cls, scenario: Scenario, group: Borrowed, *, seed: int, number: int, inputs: Inputs
    ) -> "_Fleet":
        serving, rollout = find_model(group.serving_model), find_model(scenario.model)
        gpu, tp = group.gpu.value, group.tp
        device = roofline_cost(serving, gpu, tp=tp).device_model(
            roofline_cost(rollout, gpu, tp=tp), rollout_layers=rollout.layers
        )
        pool = KvPool.of(gpu, serving, rollout, tp=tp)
        slo = SLO(ttft_ms=group.slo.ttft_ms, tpot_ms=group.slo.tpot_ms)
        lender = SimulatedLender(device, "alone", slo, mix_of(group.traffic))
        count = int(np.ceil(scenario.horizon_s * MS_PER_S / (BIN_MS * PIECE_BINS)))
        wave = waves(group.traffic, inputs, pieces=count, piece_ms=BIN_MS * PIECE_BINS)
        rates_rps = rate_of(lender, group.traffic.load) * wave
        devices = min(group.count // tp, _DEVICES_MAX)
        random = np.random.default_rng((_TRAFFIC_STREAM, number, seed))
        pieces = Pieces.draw(rates_rps, devices=devices, shared=_SHARED, random=random)
        return cls(group, lender, pool, rates_rps, pieces, devices)

    def shares(self, loan: Loan, kv: KvRule) -> GroupLoan:
        slo = replace(self.lender.slo, slowdown=loan.slowdown)
        lender = replace(self.lender, scheme=loan.scheme, slo=slo)
        share, context = self.pieces.columns(lender)
        lent = kv.lent_slabs(self.pool.used_slabs(context), self.pool, bin_ms=BIN_MS)
        tokens = lent.astype(np.int64) * self.pool.rollout_tokens
        lendings = tuple(_changes(*one) for one in zip(share.T, tokens.T, strict=True))
        latencies, alone = self.pieces.latencies(lender), self.pieces.latencies(self.lender)
        return GroupLoan(
            lendings, latencies, alone, int((latencies.is_late & ~alone.is_late).sum())
        )

    def whole(self, full_tokens: int, *, release_ms: float, start_up_ms: float) -> GroupLoan:
        """Return the loan of a fleet that serves with the fewest devices that meet the targets.

        A real operator could not know this number in advance, so the arm is favoured.
        """
        capacity_rps = capacity_of(self.lender, _LATE_MAX)
        needed = np.ceil(self.rates_rps * self.devices / capacity_rps).astype(np.int64)
        kept = np.clip(needed, 1, self.devices)
        lendings = whole_gpus(
            kept,
            devices=self.devices,
            full_tokens=full_tokens,
            bin_ms=BIN_MS * PIECE_BINS,
            release_ms=release_ms,
            shortest_ms=start_up_ms,
        )
        gathered = Pieces.draw(
            self.rates_rps * self.devices / kept,
            devices=self.devices,
            shared=_SHARED,
            random=np.random.default_rng(_TRAFFIC_STREAM),
        )
        return GroupLoan(
            lendings, gathered.latencies(self.lender), self.pieces.latencies(self.lender)
        )


def _changes(share: Column, tokens: npt.NDArray[np.int64]) -> LendingTimeline:
    """Return the loan of a device with a row for each bin that differs from the previous one."""
    is_new = np.flatnonzero(
        (np.diff(share, prepend=-1.0) != 0) | (np.diff(tokens, prepend=-1) != 0)
    )
    return LendingTimeline(BIN_MS * is_new.astype(np.float64), share[is_new], tokens[is_new])
