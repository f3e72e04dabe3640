"""The loans of a serving device: a table filled by the stepwise machine of `rose_lab.sim`.

A row holds the results of one run of the machine: rollouts' share of compute, serving's context
tokens, and the latencies of each request. The run has a steady arrival rate, and the lengths and
second-scale bursts of the traffic. Rows are computed on demand and kept. A device's loan over time
is composed of half-minute pieces, each from the row of the device's arrival rate at that time. If
this rate is between two rates of the grid, one of the two rows is chosen at random; the nearer row
is more likely.

Effects across piece borders are neglected: running requests, and the queue of a burst longer than a
piece. A row has the expected number of requests; their arrival times are drawn once, and their
lengths are spread evenly over the mix. `tests/lab/sim/test_lending.py` measures the error against
the machine itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument, check
from rose.slo import SLO
from rose.units import MS_PER_S, NS_PER_MS
from rose_lab.sim.device import DeviceModel
from rose_lab.sim.outcome import ArmOutcome, missed
from rose_lab.sim.request import Request
from rose_lab.sim.simulation import simulate

Column = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BIN_MS: Final = 1000.0
PIECE_BINS: Final = 30
PIECES: Final = 3  # per row
# Warm-up of a row, so that requests overlap; a slowed request may take this long.
_WARM_BINS: Final = 30
_WARM_MS: Final = _WARM_BINS * BIN_MS
# Requests per second: 0, and from 0.01 to about 160, each rate twice the previous one.
RATES_RPS: Final = (0.0, *(0.01 * 2**step for step in range(15)))
# Rollout steps that the machine runs beyond the row, so that all segments in the row end.
_STEPS_BEHIND: Final = 10


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests of serving, without their rate.

    Args:
        lengths: (prompt, output) tokens of equally likely requests, in ascending order of output.
        variation: standard deviation of the per-second rate over its mean, >= 0; 0 is a Poisson
            process.
    """

    lengths: tuple[tuple[int, int], ...]
    variation: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: there are no lengths, a length is below 1, or the variation is below 0.
        """
        if not self.lengths or min(min(pair) for pair in self.lengths) < 1:
            raise InvalidArgument("a mix needs lengths of at least one token each")
        if not 0 <= self.variation < np.inf:
            raise InvalidArgument(f"variation is {self.variation}, give a number >= 0")

    def requests(self, rates_rps: Column, random: np.random.Generator) -> list[Request]:
        """Return requests at the given rate of each second; their number is the rounded sum.

        Lengths are spread evenly over all of `lengths`, so that a few requests suffice
        to represent the mix.
        """
        count, rates = round(float(rates_rps.sum())), rates_rps
        if self.variation > 0:
            rates = rates * random.gamma(self.variation**-2, self.variation**2, len(rates))
        if not count or not rates.sum():
            return []
        done = np.concatenate(([0.0], np.cumsum(rates / rates.sum())))
        places = np.interp(np.sort(random.random(count)), done, np.arange(len(done)))
        chosen = random.permutation((np.arange(count) + 0.5) * len(self.lengths) / count)
        return [
            Request(MS_PER_S * float(at), *self.lengths[int(number)])
            for at, number in zip(places, chosen, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class SimulatedLender:
    """A serving device, and its lending scheme.

    Args:
        device: cost model.
        scheme: one of `rose_lab.sim.SCHEMES`.
        slo: serving's targets; the scheme "rose" also uses their slowdown.
        mix: requests of serving.
    """

    device: DeviceModel
    scheme: str
    slo: SLO
    mix: Mix


class RequestLatencies(NamedTuple):
    """Latency columns; `weight` is the number of requests that an entry stands for.

    `tpot_ms` is the mean of a request; NaN with a single token.
    """

    ttft_ms: Column
    tpot_ms: Column
    is_late: npt.NDArray[np.bool_]
    weight: Column

    def quantile(self, column: str, share: float) -> float:
        """Return a weighted quantile of a column's finite values; NaN if there are none."""
        values = getattr(self, column)
        known = np.isfinite(values) & (self.weight > 0)
        order = np.argsort(values[known], kind="stable")
        reached = np.cumsum(self.weight[known][order])
        if not len(reached):
            return float("nan")
        at = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-12)))
        return float(values[known][order][at])

    @property
    def late(self) -> float:
        """Return the share of requests that missed a target; 0 without requests."""
        total = float(self.weight.sum())
        return float(self.weight[self.is_late].sum()) / total if total else 0.0


def joined(parts: Iterable[tuple[RequestLatencies, float]]) -> RequestLatencies:
    """Concatenate parts, with their weights multiplied by the given factors."""
    nobody = np.zeros(0)
    weighted = [one._replace(weight=one.weight * times) for one, times in parts]
    weighted.append(RequestLatencies(nobody, nobody, np.zeros(0, dtype=np.bool_), nobody))
    return RequestLatencies(*(np.concatenate(column) for column in zip(*weighted, strict=True)))


class LendingRow(NamedTuple):
    """The machine's results for each second, and for each request that arrived in these seconds.

    Args:
        share: (bins,) share of the device's compute for rollouts.
        context: (bins,) largest number of tokens in serving's contexts.
        busy: share of the time with at least one live request.
        latencies: latencies of the requests, in order of arrival.
    """

    share: Column
    context: Column
    busy: float
    latencies: RequestLatencies


@lru_cache(maxsize=4096)
def row(lender: SimulatedLender, point: int) -> LendingRow:
    """Return the row of a grid rate. Every scheme gets the same requests."""
    random = np.random.default_rng(point)
    warm, rest = (
        lender.mix.requests(np.full(bins, RATES_RPS[point]), random)
        for bins in (_WARM_BINS, PIECES * PIECE_BINS)
    )
    requests = [*warm, *(replace(one, arrival_ms=one.arrival_ms + _WARM_MS) for one in rest)]
    return run(lender, requests, bins=_WARM_BINS + PIECES * PIECE_BINS, first=_WARM_BINS)


def run(
    lender: SimulatedLender, requests: Sequence[Request], *, bins: int, first: int = 0
) -> LendingRow:
    """Serve requests, while rollout work is always waiting to run.

    Rollout work counts as milliseconds of an undisturbed device. With noise, work can take less
    time than it counts, so shares are capped at 1.

    Args:
        lender: serving device and scheme.
        requests: requests in order of arrival; all are served to the end.
        bins: number of seconds to simulate.
        first: first second to return.
    """
    watch, device = _Watch(), lender.device
    outcome = simulate(
        requests,
        device,
        lender.scheme,
        slo=lender.slo,
        slowdown=lender.slo.slowdown if lender.scheme == "rose" else None,
        seed=0,
        observer=watch,
        until_ms=bins * BIN_MS + _STEPS_BEHIND * device.layers * device.layer_ms,
    )
    edges_ms = BIN_MS * np.arange(first, bins + 1, dtype=np.float64)
    latencies, ends_ms = _latencies(requests, outcome, lender.slo)
    begins_ms = np.array([one.arrival_ms for one in requests])
    inside = (begins_ms >= edges_ms[0]) & (begins_ms < edges_ms[-1])
    return LendingRow(
        watch.share(edges_ms, device.layer_ms),
        watch.context(edges_ms),
        _busy(begins_ms, ends_ms, edges_ms),
        RequestLatencies(*(column[inside] for column in latencies)),
    )


def _latencies(
    requests: Sequence[Request], outcome: ArmOutcome, slo: SLO
) -> tuple[RequestLatencies, Column]:
    """Return the latencies of all requests, and (n,) their end times in ms."""
    rows = [(one.ttft_ms, one.mean_tpot_ms, one.output_tokens) for one in outcome.requests]
    ttft_ms, tpot_ms, tokens = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    arrival_ms = np.array([one.arrival_ms for one in requests])
    is_late = np.zeros(len(rows), dtype=np.bool_)
    is_late[list(missed(outcome, slo=slo))] = True
    known_ms = np.where(tokens > 1, tpot_ms, np.nan)
    latencies = RequestLatencies(ttft_ms, known_ms, is_late, np.ones(len(rows)))
    return latencies, arrival_ms + ttft_ms + tpot_ms * np.maximum(tokens - 1, 0)


def _busy(begins_ms: Column, ends_ms: Column, edges_ms: Column) -> float:
    """Return the share of time with a live request, between the first and the last edge."""
    low, high = edges_ms[0], edges_ms[-1]
    before = np.maximum.accumulate(np.concatenate(([low], ends_ms)))[:-1]
    lasts = np.minimum(ends_ms, high) - np.minimum(np.maximum(begins_ms, before), high)
    return float(np.maximum(lasts, 0.0).sum() / (high - low))


class _Watch:
    """Observes rollout segments and serving's context tokens."""

    def __init__(self) -> None:
        self._at: dict[str, list[int]] = {"segment": [], "segment_end": [], "context": [0]}
        self._number: dict[str, list[int]] = {"layers": [], "context": [0]}

    def __call__(self, at_ns: int, what: str, number: int) -> None:
        if what in self._at:
            self._at[what].append(at_ns)
        if what in self._number:
            self._number[what].append(number)

    def share(self, edges_ms: Column, layer_ms: float) -> Column:
        """Return (bins,) rollout work per bin; a segment's work is spread evenly over its time."""
        ends = np.array(self._at["segment_end"], dtype=np.float64) / NS_PER_MS
        begins = np.array(self._at["segment"][: len(ends)], dtype=np.float64) / NS_PER_MS
        done_ms = layer_ms * np.cumsum(np.array(self._number["layers"], dtype=np.float64))
        times = np.append(0.0, np.stack((begins, ends), axis=1))
        done = np.append(0.0, np.stack((np.append(0.0, done_ms)[: len(ends)], done_ms), axis=1))
        share: Column = np.clip(np.diff(np.interp(edges_ms, times, done)) / BIN_MS, 0.0, 1.0)
        return share

    def context(self, edges_ms: Column) -> Column:
        """Return (bins,) the largest number of tokens during each bin, including its start."""
        at_ms = np.array(self._at["context"], dtype=np.float64) / NS_PER_MS
        tokens = np.array(self._number["context"], dtype=np.float64)
        peak: Column = tokens[np.searchsorted(at_ms, edges_ms[:-1], side="right") - 1]
        inside = (at_ms >= edges_ms[0]) & (at_ms < edges_ms[-1])
        bins = np.searchsorted(edges_ms, at_ms[inside], side="right") - 1
        np.maximum.at(peak, bins, tokens[inside])
        return peak


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of rows that make up the timelines of some devices.

    Args:
        points: (pieces, devices) indices of the rate grid.
        places: (pieces, devices) index of the piece in its row, 0..PIECES - 1.
    """

    points: Ints
    places: Ints

    @classmethod
    def draw(
        cls, rates_rps: Column, *, devices: int, shared: float, random: np.random.Generator
    ) -> "Pieces":
        """Return pieces for devices with the same arrival rates.

        Args:
            rates_rps: (pieces,) arrival rate of each device, >= 0.
            devices: number of devices.
            shared: probability that a device gets the piece that devices have in common, since
                bursts of a service reach all its devices.
            random: random generator.
        """
        lower, above = _between(rates_rps)
        drawn = random.random((3, len(rates_rps), devices + 1))
        in_common = drawn[0, :, 1:] < shared
        up, place = (np.where(in_common, one[:, :1], one[:, 1:]) for one in drawn[1:])
        return cls(lower[:, None] + (up < above[:, None]), (place * PIECES).astype(np.int64))

    def columns(self, lender: SimulatedLender) -> tuple[Column, Column]:
        """Return two (bins, devices) arrays: shares, and serving's context tokens."""
        used, at = np.unique(self.points, return_inverse=True)
        rows = [row(lender, int(point)) for point in used]
        at = at.reshape(self.points.shape)
        return self._laid([one.share for one in rows], at), self._laid(
            [one.context for one in rows], at
        )

    def _laid(self, columns: Sequence[Column], at: Ints) -> Column:
        pieces = np.stack(columns).reshape(len(columns), PIECES, PIECE_BINS)[at, self.places]
        laid: Column = pieces.transpose(0, 2, 1).reshape(-1, self.points.shape[1])
        return laid

    def latencies(self, lender: SimulatedLender) -> RequestLatencies:
        """Return the latencies of the requests of all pieces; the weight counts uses of a row."""
        used, counts = np.unique(self.points, return_counts=True)
        return joined(
            (row(lender, int(point)).latencies, float(count))
            for point, count in zip(used, counts, strict=True)
        )


def _between(rates_rps: Column) -> tuple[Ints, Column]:
    """Return the grid points below rates, and the probability of the point above."""
    grid = np.array(RATES_RPS)
    lower = np.clip(np.searchsorted(grid, rates_rps, side="right") - 1, 0, len(grid) - 2)
    # Loans fall about exponentially with the rate: interpolate in the logarithm.
    over = np.maximum(rates_rps, grid[lower + 1] / 2) / grid[lower + 1]
    above = np.where(lower > 0, 1 + np.log2(over), rates_rps / grid[1])
    return lower, np.clip(above, 0.0, 1.0)


def _rate_at(
    lender: SimulatedLender, wanted: float, figure: Callable[[LendingRow], float]
) -> float | None:
    """Return the rate at which a device's figure reaches `wanted`; None beyond the grid."""
    reached = 0.0
    for point in range(1, len(RATES_RPS)):
        before, reached = reached, figure(row(lender, point))
        if reached >= wanted:
            part = (wanted - before) / (reached - before) if reached > before else 0.0
            return float(RATES_RPS[1] * part if point == 1 else RATES_RPS[point - 1] * 2**part)
    return None


def rate_of(lender: SimulatedLender, busy: float) -> float:
    """Return the requests/s at which a device is busy for the share `busy` < 1 of the time."""
    rate_rps = _rate_at(lender, busy, lambda one: one.busy)
    check(rate_rps is not None, "the largest rate of the grid must keep a device busy")
    return rate_rps or 0.0


def capacity_of(lender: SimulatedLender, late: float) -> float:
    """Return the requests/s at which the share `late` of the requests is late.

    At most the largest rate of the grid.
    """
    rate_rps = _rate_at(lender, late, lambda one: one.latencies.late)
    return RATES_RPS[-1] if rate_rps is None else rate_rps
