"""What a thousand devices lend, without simulating their steps.

Serving is a fluid of two kinds. Prompts are work that is done in order of arrival: one recurrence,
which is a running maximum. Decoding is a clock: its reading V is how many steps a device has made,
and a request that has its first token at V ends at V + output - 1. How fast the clock goes depends
on who decodes, and who decodes on the clock: a few rounds from one to the other settle it. A round
is a dozen operations on the columns of all devices at once.

What rollouts get follows from that: the time without requests, less what opening costs; in each
decode step what the scheme lends; and what runs on when somebody arrives.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.cluster.lending_columns import bin_edges, joined
from rose.sim.cluster.lending_kv import KvPool, KvRule
from rose.sim.cluster.lending_modes import FluidMode, fluid_mode
from rose.sim.cluster.lending_traffic import FleetTraffic
from rose.sim.cluster.world import Lending
from rose.sim.device import DeviceModel
from rose.slo import SLO

Column = npt.NDArray[np.float64]

# Devices are worked on in blocks whose columns stay small enough for a cache.
_REQUESTS_OF_BLOCK: Final = 1 << 16
_ROUNDS_MAX: Final = 24
_SETTLED_MS: Final = 0.5  # of a request's end, which is seconds after its arrival
# How many times a bin the KV is looked at.
_LOOKS: Final = 4
_NOTHING: Final[Column] = np.empty(0)


@dataclass(frozen=True, slots=True)
class FluidLending:
    """What devices lend, bin by bin.

    Args:
        bin_ms: length of a bin.
        horizon_ms: of all of them; the last may be shorter.
        share: (bins, devices) float64 in [0, 1].
        kv_tokens: (bins, devices) int64.
        busy: (bins, devices) float64, the share of the time in which there was a request.
        ttft_ms: (n,) float64, of each request of the traffic.
        mean_tpot_ms: (n,) float64, likewise; 0 for a single token.
    """

    bin_ms: float
    horizon_ms: float
    share: Column
    kv_tokens: npt.NDArray[np.int64]
    busy: Column
    ttft_ms: Column
    mean_tpot_ms: Column

    def lending(self, device: int) -> Lending:
        """Return one device's timeline."""
        at_ms = bin_edges(bin_ms=self.bin_ms, horizon_ms=self.horizon_ms)[:-1]
        return joined(
            at_ms,
            self.share[:, device],
            kv_at_ms=at_ms,
            kv_tokens=self.kv_tokens[:, device],
            horizon_ms=self.horizon_ms,
        )


def lend_as_fluid(
    traffic: FleetTraffic,
    device: DeviceModel,
    scheme: str,
    *,
    kv: KvRule,
    pool: KvPool,
    slo: SLO,
    horizon_ms: float,
    bin_ms: float = 1000.0,
) -> FluidLending:
    """Return about what `lend_exactly` would for each device, at a small part of its cost.

    Args:
        traffic: of devices that are all alike; arrivals up to the horizon.
        device: what things cost.
        scheme: one of `FLUID_SCHEMES`.
        kv: whose rule the KV pool follows.
        pool: of each device.
        slo: what serving was promised; says how much is lent beside decoding.
        horizon_ms: where the timelines end, > 0.
        bin_ms: their resolution, > 0; seconds.

    Raises:
        InvalidArgument: the scheme has no fluid, or a request comes after the horizon.
    """
    mode = fluid_mode(scheme, device, slo)
    edges_ms = bin_edges(bin_ms=bin_ms, horizon_ms=horizon_ms)
    if len(traffic.arrival_ms) and traffic.arrival_ms.max() > horizon_ms:
        raise InvalidArgument(f"a request arrives after the horizon of {horizon_ms} ms")
    looks_ms = np.linspace(edges_ms[:-1], edges_ms[1:], _LOOKS, endpoint=False).T.ravel()
    slabs: list[Column] = []
    blocks: list[_Columns] = []
    for block in traffic.blocks(_REQUESTS_OF_BLOCK):
        fluid = _Fluid(block, device, mode, slo.ttft_ms, horizon_ms=horizon_ms)
        columns = fluid.columns(edges_ms, looks_ms)
        lent = kv.lent_slabs(pool.used_slabs(columns.context), pool, bin_ms=bin_ms / _LOOKS)
        slabs.append(lent.reshape(len(edges_ms) - 1, _LOOKS, block.devices).mean(axis=1))
        # What was looked at is as large as all the rest together.
        blocks.append(columns._replace(context=_NOTHING))
    return FluidLending(
        bin_ms=bin_ms,
        horizon_ms=horizon_ms,
        share=np.hstack([columns.share for columns in blocks]),
        kv_tokens=np.hstack(slabs).astype(np.int64) * pool.rollout_tokens,
        busy=np.hstack([columns.busy for columns in blocks]),
        ttft_ms=np.concatenate([columns.ttft_ms for columns in blocks]),
        mean_tpot_ms=np.concatenate([columns.mean_tpot_ms for columns in blocks]),
    )


class _Columns(NamedTuple):
    """Of a block: (bins, devices) twice, (looks, devices), and (n,) twice."""

    share: Column
    busy: Column
    context: Column
    ttft_ms: Column
    mean_tpot_ms: Column


class _Fluid:
    """The devices of a block, one behind the other on a single axis of time.

    Device i has [i * span, (i + 1) * span). Everything ends within its device's span, because a
    span is as long as all its work would take one request at a time.
    """

    def __init__(
        self,
        traffic: FleetTraffic,
        device: DeviceModel,
        mode: FluidMode,
        ttft_ms: float,
        *,
        horizon_ms: float,
    ) -> None:
        self._traffic, self._device, self._mode = traffic, device, mode
        self._ttft_ms, self._horizon_ms = ttft_ms, horizon_ms
        sizes = np.diff(traffic.first)
        self._owner = np.arange(traffic.devices).repeat(sizes)
        self._is_last = np.append(np.diff(self._owner) > 0, values=True)[: len(self._owner)]
        self._place = np.arange(len(self._owner)) - traffic.first[:-1].repeat(sizes)
        self._prompt = traffic.prompt_tokens.astype(np.float64)
        self._said = traffic.output_tokens - 1.0
        self._span_ms = horizon_ms + self._longest_ms()
        self._begin_ms = self._span_ms * np.arange(traffic.devices)
        self._arrived = traffic.arrival_ms + self._begin_ms[self._owner]
        nothing = np.zeros(len(self._owner))
        # Who decodes when a prompt begins and when it ends, its own request included.
        self._beside, self._beside_context = nothing, nothing
        self._behind, self._behind_context = nothing + 1, self._prompt.copy()
        self._next, self._next_context = nothing + 1, self._prompt.copy()
        self._room = np.full(len(self._owner), -np.inf)
        self._open = nothing  # the chance that rollouts run when a request comes to who decodes

    def columns(self, edges_ms: Column, looks_ms: Column) -> _Columns:
        """Return everything that is asked of a block."""
        bins, devices = len(edges_ms) - 1, self._traffic.devices
        if not len(self._owner):
            idle = np.full((bins, devices), self._mode.idle_share)
            context = np.zeros((len(looks_ms), devices))
            return _Columns(idle, np.zeros((bins, devices)), context, _NOTHING, _NOTHING)
        self._settle()
        return _Columns(*self._lent(edges_ms), self._context(looks_ms), *self._felt())

    def _settle(self) -> None:
        """Go round until ends hardly move, on average."""
        ended = np.zeros(len(self._owner))
        for _ in range(_ROUNDS_MAX):
            self._prefill()
            self._decode()
            self._count()
            if np.abs(self._ended - ended).sum() <= _SETTLED_MS * len(ended):
                break
            ended = self._ended

    # ---- one round

    def _prefill(self) -> None:
        """When each prompt begins, and when it ends."""
        device, mode = self._device, self._mode
        chunk = device.chunk_tokens - np.minimum(self._beside, device.batch_max)
        self._chunks = np.ceil(self._prompt / chunk)
        before = np.maximum(self._prompt - chunk, 0) / 2  # of the prompt, on average
        beside_ms = self._step_ms(self._beside, self._beside_context)
        self._serving_ms = mode.slowdown * (
            self._chunks * (beside_ms + device.context_ms * before)
            + self._prompt * (device.prefill_ms + device.pair_ms * before)
        )
        beside_ms = mode.slowdown * beside_ms
        waits_ms = self._waits_ms(beside_ms)
        ready = np.maximum(self._arrived + waits_ms, self._room)
        lent_ms = mode.prompt_ms * self._chunks
        for _ in range(2 if mode.prompt_ms else 1):
            takes_ms = self._serving_ms + lent_ms
            through = np.cumsum(takes_ms)
            self._first = through + np.maximum.accumulate(ready - through + takes_ms)
            waited_ms = self._first - takes_ms - self._arrived
            spare_ms = self._ttft_ms - self._serving_ms - waited_ms
            lent_ms = np.clip(spare_ms, 0.0, mode.prompt_ms * self._chunks)
        self._takes_ms, self._prompt_lent_ms = takes_ms, takes_ms - self._serving_ms
        behind = np.concatenate(([-np.inf], self._first[:-1]))
        # From here on nothing is lent, as somebody waits.
        self._front = np.maximum(self._arrived, behind)
        # Steps until the prompt begins. An arrival is anywhere in a period of lending and stepping:
        # what the clock has counted of it, and what is left to count, are a half on average.
        waited_ms = self._first - takes_ms - self._front
        half = 0.5 + (1 - self._open) * device.host_lead_ms / beside_ms
        more = np.maximum(waited_ms - waits_ms, 0.0) / beside_ms
        self._hidden = more + np.where(self._is_new(), half, 0.0)

    def _is_new(self) -> npt.NDArray[np.bool_]:
        """Whether each request finds no prompt in front of it."""
        return self._front <= self._arrived

    def _decode(self) -> None:
        """When each request ends, by the clock that all of its device share."""
        step_ms = self._mode.slowdown * self._step_ms(self._behind, self._behind_context)
        next_ms = self._mode.slowdown * self._step_ms(self._next, self._next_context)
        self._lent_ms = self._mode.lent_ms(step_ms)
        self._period_ms = step_ms + self._lent_ms
        next_period_ms = next_ms + self._mode.lent_ms(next_ms)
        front = np.append(self._front[1:], self._begin_ms[-1] + self._span_ms)
        self._until = np.maximum(front, self._first)
        self._open = np.concatenate(([0.0], (self._lent_ms / self._period_ms)[:-1]))
        rate = (1 / self._period_ms + 1 / next_period_ms) / 2
        in_prompts = self._chunks + self._hidden
        between = (self._until - self._first) * rate
        clock = np.cumsum(np.stack((in_prompts, between), axis=1).ravel())
        knots = np.stack((self._first, self._until), axis=1).ravel()
        self._clock_first, self._knots, self._clock = clock[::2], knots, clock
        self._ended = np.interp(self._clock_first + self._said, clock, knots)

    def _count(self) -> None:
        """Who decodes beside each prompt's begin and behind its end."""
        order = np.argsort(self._ended, kind="stable")
        self._leaves = self._ended[order]
        starts = self._prompt - self._clock_first  # a context is this and the clock
        self._came = np.concatenate(([0.0], np.cumsum(starts)))
        self._left = np.concatenate(([0.0], np.cumsum(starts[order])))
        index = np.arange(len(self._owner))
        self._beside, self._beside_context = self._decoding(self._front, index)
        self._behind, self._behind_context = self._decoding(self._first, index + 1)
        self._next, self._next_context = (
            np.where(self._is_last, 1.0, np.append(column[1:], 1.0))
            for column in (self._beside, self._beside_context)
        )
        batch = self._device.batch_max
        self._room = np.full(len(index), -np.inf)
        waits = self._place >= batch
        self._room[waits] = self._leaves[index[waits] - batch]

    def _decoding(self, times: Column, came: npt.NDArray[np.int64]) -> tuple[Column, Column]:
        """Return (sequences, their context) at times; `came` have their first token by then."""
        left = np.searchsorted(self._leaves, times, side="right")
        clock = np.interp(times, self._knots, self._clock)
        sequences = np.maximum(came - left, 0).astype(np.float64)
        context = self._came[came] - self._left[left] + sequences * clock
        return sequences, np.maximum(context, 0.0)

    def _waits_ms(self, step_ms: Column) -> Column:
        """How long a request waits for what runs, if no prompt is in front of it."""
        lead_ms, piece_ms = self._device.host_lead_ms, self._mode.piece_ms
        # The mean of the longer of the lead and a piece that is somewhere in its course.
        ends_ms = lead_ms if piece_ms <= lead_ms else piece_ms / 2 + lead_ms**2 / (2 * piece_ms)
        # Behind what was lent comes the batch that was fixed before; else a step is in its course.
        decoding_ms = self._open * (ends_ms + step_ms) + (1 - self._open) * (lead_ms + step_ms / 2)
        return np.where(self._beside >= 1, decoding_ms, ends_ms)

    def _step_ms(self, sequences: Column, context: Column) -> Column:
        device = self._device
        return device.base_ms + device.sequence_ms * sequences + device.context_ms * context

    def _longest_ms(self) -> float:
        """Return what all requests of a device take one at a time, at the slowest."""
        device, mode = self._device, self._mode
        longest = self._prompt + self._said
        context = float(longest.max(initial=0.0)) * device.batch_max
        step_ms = self._step_ms(np.array(float(device.batch_max)), np.array(context))
        each_ms = mode.slowdown * float(step_ms) + float(mode.lent_ms(np.zeros(1)).max())
        chunks = self._prompt / (device.chunk_tokens - device.batch_max) + 1
        prompt_ms = device.prefill_ms + device.pair_ms * self._prompt
        steps = (chunks + self._said) * (each_ms + mode.prompt_ms)
        takes_ms = steps + mode.slowdown * self._prompt * prompt_ms + device.host_lead_ms
        every = np.bincount(self._owner, takes_ms, minlength=self._traffic.devices)
        return float(every.max(initial=0.0)) + 1.0

    # ---- what follows

    def _felt(self) -> tuple[Column, Column]:
        """Return the TTFT of each request, and the mean of its later gaps."""
        gaps = np.maximum(self._said, 1.0)
        return self._first - self._arrived, (self._ended - self._first) / gaps

    def _context(self, looks_ms: Column) -> Column:
        """Return (looks, devices) of the tokens that serving's contexts have."""
        times = (looks_ms[:, None] + self._begin_ms).ravel()
        came = np.searchsorted(self._first, times, side="right")
        _, context = self._decoding(times, came)
        # The prompt that is being done has a part of its KV.
        at = np.minimum(came, len(self._first) - 1)
        begun = (times - self._first[at]) / self._takes_ms[at] + 1
        context += self._prompt[at] * np.clip(begun, 0.0, 1.0) * (came < len(self._first))
        return context.reshape(len(looks_ms), -1)

    def _lent(self, edges_ms: Column) -> tuple[Column, Column]:
        """Return (bins, devices) of the share, and of the time in which there were requests."""
        mode = self._mode
        ends = (self._begin_ms + self._horizon_ms)[self._owner]
        # Behind a prompt its device decodes, then it is idle, then the next request is there.
        until = np.where(self._is_last, np.maximum(ends, self._first), self._until)
        over = np.maximum.accumulate(self._ended)
        idle_from = np.minimum(np.maximum(over, self._first), until)
        lends = mode.lent_share * self._lent_ms / self._period_ms + mode.busy_share
        prompts = mode.busy_share * (self._first - self._front)
        prompts += mode.lent_share * self._prompt_lent_ms
        # A piece runs on, and of the period that the arrival cut, the lent part came first.
        lent_ms = np.concatenate(([0.0], self._lent_ms[:-1]))
        cut_ms = self._open * self._runs_on_ms + (1 - self._open) * mode.lent_share * lent_ms / 2
        prompts += np.where(self._is_new() & (self._beside >= 1), cut_ms, 0.0)
        idle = self._idle_work(until - idle_from, cuts=~self._is_last)
        marks = np.stack((self._front, self._first, idle_from, until), axis=1)
        work = np.stack((np.zeros_like(prompts), prompts, lends * (idle_from - self._first), idle))
        busy = np.diff(marks, axis=1, prepend=marks[:, :1])
        busy[:, 3] = 0.0
        return (
            self._binned(edges_ms, marks, work.T, mode.idle_share),
            self._binned(edges_ms, marks, busy, 0.0),
        )

    @property
    def _runs_on_ms(self) -> float:
        return self._mode.idle_share * self._mode.piece_ms / 2

    def _idle_work(self, idle_ms: Column, *, cuts: npt.NDArray[np.bool_]) -> Column:
        """Return the work of stretches without requests; an arrival cuts a piece that runs on."""
        longest_ms = np.zeros(self._traffic.devices)
        np.maximum.at(longest_ms, self._owner, self._serving_ms / self._chunks)
        lasts_ms = idle_ms - self._mode.reopens_ms(longest_ms)[self._owner]
        work = self._mode.idle_share * lasts_ms + self._runs_on_ms * cuts
        return np.where(lasts_ms > 0, work, 0.0)

    def _binned(self, edges_ms: Column, marks: Column, work: Column, idle_share: float) -> Column:
        """Return (bins, devices) of the mean of `work` (n, 4), which is done up to each mark.

        Each device begins idle: up to its first request, or to the end where it has none.
        """
        first = self._traffic.first
        ends = self._begin_ms + self._horizon_ms
        has_any = first[1:] > first[:-1]
        opens = ends.copy()
        opens[has_any] = marks[first[:-1][has_any], 0]
        at = np.stack((self._begin_ms, opens), axis=1).ravel()
        idle_work = idle_share * (opens - self._begin_ms)
        begins = np.stack((np.zeros_like(idle_work), idle_work), axis=1).ravel()
        places = (4 * first[:-1]).repeat(2)
        times = np.insert(marks.ravel(), places, at)
        done = np.cumsum(np.insert(work.ravel(), places, begins))
        edges = edges_ms[:, None] + self._begin_ms
        at_edges = np.interp(edges.ravel(), times, done).reshape(edges.shape)
        spans_ms = np.diff(edges_ms)[:, None]
        mean: Column = np.clip(np.diff(at_edges, axis=0) / spans_ms, 0.0, 1.0)
        return mean
