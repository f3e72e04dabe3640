"""What the borrowed GPUs of a scenario lend in an arm, as the simulation of a cluster takes it."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InternalError
from rose.memory.model_weights import parameters
from rose.memory.presets import find_model
from rose.sim.cluster.lending import LendingArm, lend_exactly, lending_arms
from rose.sim.cluster.lending_devices import kv_tokens, roofline_cost
from rose.sim.cluster.lending_felt import ServingFelt
from rose.sim.cluster.lending_fluid import FluidLending, lend_as_fluid
from rose.sim.cluster.lending_kv import KvPool, KvRule, ReservedKv
from rose.sim.cluster.lending_traffic import FleetTraffic
from rose.sim.cluster.world import Lending
from rose.sim.device import DeviceModel
from rose.sim.scenario.arms import RULES, Arm, Loan
from rose.sim.scenario.parts import Borrowed, SyntheticTraffic
from rose.sim.scenario.scenario import Resolution, Scenario
from rose.sim.scenario.traffic import Inputs, fleet_traffic
from rose.slo import SLO
from rose.units import MS_PER_S

Column = npt.NDArray[np.float64]

_FLUID_BIN_MS: Final = 1000.0
# So many devices of a group differ; in a larger one, each timeline is that of several.
_DEVICES_MAX: Final = 32
# Timelines last so long, or for one wave of the load, and then begin anew.
_CYCLE_MS: Final = 1_800_000.0
# Training is about a quarter of a step in the paper: how long a step is, before it was simulated.
_TRAINING_OF_STEP: Final = 0.25
_STEP_MS_MIN: Final = 60_000.0
_LENDING_ARMS: Final = {
    Loan.CERTIFIED: "rose_slack",
    Loan.PUBLISHED: "rose_published",
    Loan.RESERVED: "reserved",
    Loan.EVERYTHING: "share_all",
}
# A stream of draws for each group, besides those of the trajectories.
_TRAFFIC_STREAM: Final = 2


@dataclass(frozen=True, slots=True)
class GroupLoan:
    """What one group of borrowed GPUs lends, and what serving feels of it.

    Args:
        lendings: of each engine of the group.
        cycle_ms: after which they repeat; what is felt is that of one cycle.
        ttft_ms: (n,) float64, of each request that was simulated.
        tpot_ms: (n,) float64, likewise, mean of a request.
        felt: in the exact resolution, of each device that was simulated.
    """

    lendings: tuple[Lending, ...]
    cycle_ms: float
    ttft_ms: Column
    tpot_ms: Column
    felt: tuple[ServingFelt, ...] = ()


class Serving:
    """What is served on the borrowed GPUs of a scenario under one seed, and lent in each arm.

    Every arm is asked the same. Loans are kept, as arms that lend alike share them.
    """

    def __init__(self, scenario: Scenario, *, seed: int, inputs: Inputs) -> None:
        """Draw the traffic.

        Args:
            scenario: what is simulated.
            seed: of the traffic and of noise, >= 0.
            inputs: what the scenario's files say.

        Raises:
            InvalidArgument: the models do not fit a GPU, or a file was not read.
        """
        self._scenario = scenario
        self._fleets = [
            _Fleet.of(scenario, group, seed=seed, number=number, inputs=inputs)
            for number, group in enumerate(scenario.borrowed)
        ]
        self._kept: dict[Loan, tuple[GroupLoan, ...]] = {}

    def loans(self, arm: Arm) -> tuple[GroupLoan, ...]:
        """Return what each group lends in an arm; no engines where nothing is lent."""
        loan = RULES[arm].loan
        if loan not in self._kept:
            self._kept[loan] = tuple(self._loan(fleet, arm) for fleet in self._fleets)
        return self._kept[loan]

    def busy_shares(self) -> tuple[float, ...]:
        """Return the share of the time in which each group's devices have requests, unlent."""
        return tuple(float(fleet.alone().busy.mean()) for fleet in self._fleets)

    def _loan(self, fleet: "_Fleet", arm: Arm) -> GroupLoan:
        rules, scenario, group = RULES[arm], self._scenario, fleet.group
        shape = find_model(scenario.model)
        horizon_ms = MS_PER_S * scenario.horizon_s
        if rules.loan is Loan.NOTHING:
            return GroupLoan((), horizon_ms, np.zeros(0), np.zeros(0))
        if rules.loan is Loan.WHOLE_GPUS:
            made = fleet.whole(
                kv_tokens(shape, group.gpu.value, tp=group.tp),
                release_ms=rules.release_ms(parameters(shape)),
                start_up_ms=rules.start_up_ms(parameters(shape)),
            )
        else:
            how = lending_arm(rules.loan, scenario)
            is_exact = scenario.resolution is Resolution.EXACT
            made = fleet.exactly(how) if is_exact else fleet.fluid(how)
        shaped = [
            repeated(
                limited(one, group.lent_share_max), cycle_ms=fleet.cycle_ms, horizon_ms=horizon_ms
            )
            for one in made.lendings
        ]
        longer_ms = rules.first_longer_ms(parameters(shape))
        if longer_ms:
            shaped = [first_started(one, longer_ms) for one in shaped]
        engines = group.count // group.tp
        return replace(made, lendings=tuple(shaped[at % len(shaped)] for at in range(engines)))


def repeated(lending: Lending, *, cycle_ms: float, horizon_ms: float) -> Lending:
    """Return the timeline again and again, up to the horizon."""
    rounds = max(1, int(np.ceil(horizon_ms / cycle_ms)))
    inside = lending.at_ms < cycle_ms
    at_ms = np.concatenate([lending.at_ms[inside] + again * cycle_ms for again in range(rounds)])
    share = np.tile(lending.share[inside], rounds)
    tokens = np.tile(lending.kv_tokens[inside], rounds)
    kept = at_ms < horizon_ms
    return Lending(at_ms=at_ms[kept], share=share[kept], kv_tokens=tokens[kept])


def limited(lending: Lending, share_max: float) -> Lending:
    """Return the timeline with at most so much of the compute."""
    return Lending(lending.at_ms, np.minimum(lending.share, share_max), lending.kv_tokens)


def whole_gpus(
    kept: npt.NDArray[np.int64],
    *,
    devices: int,
    full_tokens: int,
    bin_ms: float,
    release_ms: float,
    shortest_ms: float,
) -> tuple[Lending, ...]:
    """Return what a fleet lends that gives whole GPUs away, and serves with the others.

    The GPUs with the highest numbers go first.

    Args:
        kept: (bins,) int64, with how many GPUs serving does.
        devices: of the fleet.
        full_tokens: what a GPU that is given away holds.
        bin_ms: of the bins.
        release_ms: so long before serving needs a GPU it is let go.
        shortest_ms: no GPU is lent for less, as it would hardly have started.
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
) -> Lending:
    is_new = np.concatenate(([True], is_lent[1:] != is_lent[:-1]))
    begins, lent = at_ms[is_new], is_lent[is_new]
    # It ends earlier than it is needed by what letting go takes.
    ends = np.append(begins[1:] - release_ms, np.inf)[lent]
    begins = begins[lent]
    is_long = ends - begins > shortest_ms
    edges = np.stack((begins[is_long], ends[is_long]), axis=1).ravel()
    share = np.tile([1.0, 0.0], int(is_long.sum()))
    edges, share = edges[edges < np.inf], share[edges < np.inf]
    if not len(edges) or edges[0] > 0:
        edges, share = np.append(0.0, edges), np.append(0.0, share)
    return Lending(edges, share, share.astype(np.int64) * np.int64(full_tokens))


def first_started(lending: Lending, longer_ms: float) -> Lending:
    """Return the timeline of a GPU whose first start takes so much longer than each later one.

    One that is lent from the beginning has started before it, as in every arm. A loan that ends
    before its engine would have started is none, and leaves the first start to the next.
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
    return Lending(at_ms, lending.share[rows], lending.kv_tokens[rows])


def gathered(asked: FleetTraffic, devices: int) -> FleetTraffic:
    """Return a fleet's requests on so many devices, which take turns."""
    order = np.argsort(asked.arrival_ms, kind="stable")
    device = np.arange(len(order)) % devices
    rows = order[np.argsort(device, kind="stable")]
    first = np.concatenate(([0], np.cumsum(np.bincount(device, minlength=devices))))
    return FleetTraffic(
        first.astype(np.int64),
        asked.arrival_ms[rows],
        asked.prompt_tokens[rows],
        asked.output_tokens[rows],
    )


@dataclass(frozen=True, slots=True)
class _Fleet:
    """The devices of one group that differ, and what they are asked until it begins anew."""

    group: Borrowed
    asked: FleetTraffic
    device: DeviceModel
    pool: KvPool
    slo: SLO
    cycle_ms: float
    seed: int

    @classmethod
    def of(
        cls, scenario: Scenario, group: Borrowed, *, seed: int, number: int, inputs: Inputs
    ) -> "_Fleet":
        traffic = group.traffic
        wave_s = traffic.wave_s if isinstance(traffic, SyntheticTraffic) else 0.0
        longest_ms = max(_CYCLE_MS, MS_PER_S * wave_s)
        cycle_ms = min(MS_PER_S * scenario.horizon_s, longest_ms)
        serving, rollout = find_model(group.serving_model), find_model(scenario.model)
        gpu, tp = group.gpu.value, group.tp
        device = roofline_cost(serving, gpu, tp=tp).device_model(
            roofline_cost(rollout, gpu, tp=tp), rollout_layers=rollout.layers
        )
        pool = KvPool.of(gpu, serving, rollout, tp=tp)
        slo = SLO(ttft_ms=group.slo.ttft_ms, tpot_ms=group.slo.tpot_ms)
        asked = fleet_traffic(
            traffic,
            inputs=inputs,
            device=device,
            pool=pool,
            slo=slo,
            devices=min(group.count // tp, _DEVICES_MAX),
            duration_ms=cycle_ms,
            random=np.random.default_rng((_TRAFFIC_STREAM, number, seed)),
        )
        return cls(group, asked, device, pool, slo, cycle_ms, seed)

    def fluid(self, how: LendingArm) -> GroupLoan:
        fluid = self._as_fluid(how.scheme, how.kv)
        lendings = tuple(fluid.lending(at) for at in range(self.asked.devices))
        return GroupLoan(lendings, self.cycle_ms, fluid.ttft_ms, fluid.mean_tpot_ms)

    def whole(self, full_tokens: int, *, release_ms: float, start_up_ms: float) -> GroupLoan:
        kept, ttft_ms, tpot_ms = self.needed()
        lendings = whole_gpus(
            kept,
            devices=self.asked.devices,
            full_tokens=full_tokens,
            bin_ms=_FLUID_BIN_MS,
            release_ms=release_ms,
            shortest_ms=start_up_ms,
        )
        return GroupLoan(lendings, self.cycle_ms, ttft_ms, tpot_ms)

    def needed(self) -> tuple[npt.NDArray[np.int64], Column, Column]:
        """Return (bins,) with how few devices serving is in time, and (n,) twice what it feels.

        Nobody could know it beforehand: the arm gets the better of it. A request that is late with
        all devices as well needs none of them.
        """
        devices = self.asked.devices
        arrival_ms = np.sort(self.asked.arrival_ms, kind="stable")
        bins = max(1, int(np.ceil(self.cycle_ms / _FLUID_BIN_MS)))
        at_bin = np.minimum((arrival_ms / _FLUID_BIN_MS).astype(np.int64), bins - 1)
        kept = np.full(bins, devices, dtype=np.int64)
        ttft_ms, tpot_ms = self._felt_on(devices)
        hopeless = self._late(ttft_ms, tpot_ms)
        is_open = np.ones(bins, dtype=np.bool_)
        for fewer in range(1, devices):
            felt_ttft_ms, felt_tpot_ms = self._felt_on(fewer)
            late = self._late(felt_ttft_ms, felt_tpot_ms) & ~hopeless
            done = is_open & (np.bincount(at_bin[late], minlength=bins) == 0)
            kept[done] = fewer
            mine = done[at_bin]
            ttft_ms[mine], tpot_ms[mine] = felt_ttft_ms[mine], felt_tpot_ms[mine]
            is_open &= ~done
            if not is_open.any():
                break
        return kept, ttft_ms, tpot_ms

    def _felt_on(self, devices: int) -> tuple[Column, Column]:
        """Return (n,) twice, by arrival: what requests feel on so many devices."""
        asked = gathered(self.asked, devices)
        fluid = self._as_fluid("alone", ReservedKv(0.0), asked)
        order = np.argsort(asked.arrival_ms, kind="stable")
        return fluid.ttft_ms[order], fluid.mean_tpot_ms[order]

    def _late(self, ttft_ms: Column, tpot_ms: Column) -> npt.NDArray[np.bool_]:
        is_late: npt.NDArray[np.bool_] = (ttft_ms > self.slo.ttft_ms) | (tpot_ms > self.slo.tpot_ms)
        return is_late

    def alone(self) -> FluidLending:
        return self._as_fluid("alone", ReservedKv(0.0))

    def exactly(self, how: LendingArm) -> GroupLoan:
        made = [
            lend_exactly(
                self.asked.requests(at),
                self.device,
                how,
                pool=self.pool,
                slo=self.slo,
                horizon_ms=self.cycle_ms,
                seed=self.seed + at,
            )
            for at in range(self.asked.devices)
        ]
        felt = tuple(one for _, one in made)
        return GroupLoan(
            tuple(lending for lending, _ in made),
            self.cycle_ms,
            np.concatenate([one.ttft_ms for one in felt]),
            np.concatenate([one.mean_tpot_ms for one in felt]),
            felt,
        )

    def _as_fluid(self, scheme: str, kv: KvRule, asked: FleetTraffic | None = None) -> FluidLending:
        return lend_as_fluid(
            self.asked if asked is None else asked,
            self.device,
            scheme,
            kv=kv,
            pool=self.pool,
            slo=self.slo,
            horizon_ms=self.cycle_ms,
            bin_ms=_FLUID_BIN_MS,
        )


def lending_arm(loan: Loan, scenario: Scenario) -> LendingArm:
    """Return how each device lends, for a loan of shares of devices."""
    named = _LENDING_ARMS.get(loan)
    if named is None:
        raise InternalError(f"{loan} lends no share of a device")
    train_ms = MS_PER_S * max(job.train_s for job in scenario.jobs)
    return lending_arms(rl_step_ms=max(_STEP_MS_MIN, train_ms / _TRAINING_OF_STEP))[named]
