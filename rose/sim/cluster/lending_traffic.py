"""Serving traffic of many devices: routed from one trace, or drawn around a daily envelope.

Values come in, values go out: whoever reads traces stands above. Generators are passed in.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.request import Request, check_requests
from rose.units import MS_PER_S

Column = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FleetTraffic:
    """The requests of many devices, device by device; within one by arrival.

    Args:
        first: (d + 1,) int64: requests `first[i]` to `first[i + 1]` are those of device i.
        arrival_ms: (n,) float64, >= 0.
        prompt_tokens: (n,) int64, >= 1.
        output_tokens: (n,) int64, >= 1.
    """

    first: Tokens
    arrival_ms: Column
    prompt_tokens: Tokens
    output_tokens: Tokens

    @classmethod
    def of(cls, fleet: Sequence[Sequence[Request]]) -> "FleetTraffic":
        """Return the columns of requests, a sequence for each device.

        Raises:
            InvalidArgument: a sequence is not a trace.
        """
        for requests in fleet:
            check_requests(requests)
        every = [request for requests in fleet for request in requests]
        sizes = [0, *(len(requests) for requests in fleet)]
        return cls(
            np.cumsum(sizes, dtype=np.int64),
            np.array([one.arrival_ms for one in every], dtype=np.float64),
            np.array([one.prompt_tokens for one in every], dtype=np.int64),
            np.array([one.output_tokens for one in every], dtype=np.int64),
        )

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.first) - 1

    def requests(self, device: int) -> list[Request]:
        """Return those of one device, for the machine of `rose.sim`."""
        rows = slice(self.first[device], self.first[device + 1])
        return [
            Request(float(at), int(prompt), int(output))
            for at, prompt, output in zip(
                self.arrival_ms[rows],
                self.prompt_tokens[rows],
                self.output_tokens[rows],
                strict=True,
            )
        ]

    def blocks(self, requests_max: int) -> Iterator["FleetTraffic"]:
        """Yield the traffic of neighbouring devices, at most so many requests at a time.

        A device is never divided, so one that has more comes alone.
        """
        begin = 0
        while begin < self.devices:
            limit = self.first[begin] + requests_max
            end = max(begin + 1, int(np.searchsorted(self.first, limit, side="right")) - 1)
            rows = slice(self.first[begin], self.first[end])
            yield FleetTraffic(
                self.first[begin : end + 1] - self.first[begin],
                self.arrival_ms[rows],
                self.prompt_tokens[rows],
                self.output_tokens[rows],
            )
            begin = end


class Routing(Enum):
    """Which device a request goes to."""

    ROUND_ROBIN = auto()
    LEAST_OUTSTANDING = auto()


def route(
    requests: Sequence[Request],
    *,
    devices: int,
    routing: Routing,
    request_ms: float = 0.0,
    token_ms: float = 0.0,
) -> FleetTraffic:
    """Split the requests of a service over its devices.

    Args:
        requests: by arrival.
        devices: > 0.
        routing: how. LEAST_OUTSTANDING takes a request as outstanding for `request_ms`, and
            `token_ms` for each of its tokens; among equals the lowest device.
        request_ms: >= 0.
        token_ms: per output token, >= 0.

    Raises:
        InvalidArgument: no devices, or requests that are not a trace.
    """
    if routing is Routing.ROUND_ROBIN:
        check_requests(requests)
        goes_to = np.arange(len(requests), dtype=np.int64) % max(devices, 1)
    else:
        stays_ms = [request_ms + token_ms * one.output_tokens for one in requests]
        goes_to = least_outstanding(requests, stays_ms, [devices] * len(requests))
    return split(requests, goes_to, devices=devices)


def split(requests: Sequence[Request], goes_to: Tokens, *, devices: int) -> FleetTraffic:
    """Return the traffic in which request i is served by device `goes_to[i]`.

    Raises:
        InvalidArgument: no devices.
    """
    if devices < 1:
        raise InvalidArgument(f"requests cannot be split over {devices} devices")
    fleet: list[list[Request]] = [[] for _ in range(devices)]
    for device, request in zip(goes_to, requests, strict=True):
        fleet[device].append(request)
    return FleetTraffic.of(fleet)


def least_outstanding(
    requests: Sequence[Request], stays_ms: Sequence[float], devices: Sequence[int]
) -> Tokens:
    """Return (n,) int64, the device of each request: the lowest of those that have the fewest.

    Args:
        requests: by arrival.
        stays_ms: how long the router takes each for outstanding.
        devices: how many there are for it when it arrives, > 0.

    Raises:
        InvalidArgument: requests that are not a trace, or no devices for one.
    """
    check_requests(requests)
    if min(devices, default=1) < 1:
        raise InvalidArgument("a request that no device is there for cannot be routed")
    outstanding = np.zeros(max(devices, default=1), dtype=np.int64)
    leaving: list[tuple[float, int]] = []
    goes_to = np.empty(len(requests), dtype=np.int64)
    for number, request in enumerate(requests):
        while leaving and leaving[0][0] <= request.arrival_ms:
            outstanding[heapq.heappop(leaving)[1]] -= 1
        device = int(outstanding[: devices[number]].argmin())
        goes_to[number] = device
        outstanding[device] += 1
        heapq.heappush(leaving, (request.arrival_ms + stays_ms[number], device))
    return goes_to


@dataclass(frozen=True, slots=True)
class Envelope:
    """How many requests come over time: a rate for each of equally long windows, round and round.

    Args:
        rates_rps: (w,) float64, >= 0, of one device on average.
        window_ms: > 0; ten minutes in the traces of services.
    """

    rates_rps: Column
    window_ms: float

    def __post_init__(self) -> None:
        """Refuse what is no envelope.

        Raises:
            InvalidArgument: no windows, one of no length, or a rate below 0.
        """
        is_sound = len(self.rates_rps) > 0 and np.isfinite(self.rates_rps).all()
        if not (is_sound and (self.rates_rps >= 0).all() and 0 < self.window_ms < math.inf):
            raise InvalidArgument("an envelope needs rates >= 0, and windows longer than 0 ms")

    def at(self, times_ms: Column) -> Column:
        """Return the rate at each time."""
        window = (times_ms // self.window_ms).astype(np.int64) % len(self.rates_rps)
        return self.rates_rps[window]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Pairs of lengths to draw from: those of a trace, or made ones.

    Args:
        prompt_tokens: (m,) int64, >= 1.
        output_tokens: (m,) int64, >= 1, of the same requests.
    """

    prompt_tokens: Tokens
    output_tokens: Tokens

    def __post_init__(self) -> None:
        """Refuse pairs that are none.

        Raises:
            InvalidArgument: there are none, or one is below 1.
        """
        if not 0 < len(self.prompt_tokens) == len(self.output_tokens):
            raise InvalidArgument("lengths come in pairs, and there must be one")
        if min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise InvalidArgument("a prompt and an output have at least one token")

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "Lengths":
        """Return those of a trace."""
        pairs = np.array(
            [(one.prompt_tokens, one.output_tokens) for one in requests], dtype=np.int64
        ).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])


def bursty(
    random: np.random.Generator,
    *,
    envelope: Envelope,
    lengths: Lengths,
    devices: int,
    duration_ms: float,
    variation: float = 0.55,
    burst_ms: float = 1000.0,
    shared: float = 0.0,
    from_ms: float = 0.0,
) -> FleetTraffic:
    """Draw traffic: a Cox process whose rate is the envelope times a Gamma factor a second.

    A second's count then varies (standard deviation over mean) by sqrt(variation^2 + 1 / rate).
    At 0.55 the busiest second of an hour has four times the mean, as in the paper's figures.

    Args:
        random: used by nobody else while this runs.
        envelope: of a device.
        lengths: drawn from with equal chances, prompt and output together.
        devices: > 0.
        duration_ms: > 0.
        variation: standard deviation of the factor over its mean, >= 0; 0 is a Poisson process.
        burst_ms: how long a factor holds, > 0.
        shared: the part of the factors that is the same for all devices, in [0, 1]; a service's
            bursts reach all of them.
        from_ms: where in the envelope it begins, >= 0.

    Raises:
        InvalidArgument: a value is out of its range.
    """
    sound = devices > 0 and 0 < duration_ms < math.inf and 0 <= variation < math.inf
    if not (sound and 0 < burst_ms < math.inf and 0 <= shared <= 1 and from_ms >= 0):
        raise InvalidArgument(
            f"no traffic of {devices} devices for {duration_ms} ms with bursts of {burst_ms} ms, "
            f"variation {variation} and a shared part of {shared}"
        )
    bursts = math.ceil(duration_ms / burst_ms)
    bursts_ms = burst_ms * np.arange(bursts, dtype=np.float64)
    # Gammas of one scale add up to a Gamma, so the part that is shared leaves the factor's own law.
    factors = _factors(random, variation, shared, (1, bursts))
    factors = factors + _factors(random, variation, 1 - shared, (devices, bursts))
    spans_s = np.minimum(burst_ms, duration_ms - bursts_ms) / MS_PER_S
    counts: Tokens = random.poisson(envelope.at(from_ms + bursts_ms) * spans_s * factors)
    total = int(counts.sum())
    burst = np.tile(np.arange(bursts), devices).repeat(counts.ravel())
    device = np.arange(devices).repeat(counts.sum(axis=1))
    # The place within a burst is drawn evenly, which is exact for a Poisson process.
    arrival_ms = burst_ms * burst + MS_PER_S * spans_s[burst] * random.random(total)
    # Lengths do not depend on arrivals, so arrivals are sorted by themselves.
    begins_ms = duration_ms * device
    arrival_ms = np.sort(begins_ms + arrival_ms) - begins_ms
    drawn = random.integers(len(lengths.prompt_tokens), size=total)
    return FleetTraffic(
        np.concatenate(([0], np.cumsum(counts.sum(axis=1)))).astype(np.int64),
        np.clip(arrival_ms, 0.0, duration_ms),
        lengths.prompt_tokens[drawn],
        lengths.output_tokens[drawn],
    )


def _factors(
    random: np.random.Generator, variation: float, part: float, shape: tuple[int, int]
) -> Column:
    """Return a part of factors whose mean is 1: parts that add up to 1 are such a factor."""
    if variation == 0:
        return np.full(shape, part)
    return random.gamma(part * variation**-2, variation**2, shape)
