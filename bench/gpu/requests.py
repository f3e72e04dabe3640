"""The requests of an open-loop run: bursts and long-tailed prompts, the same for every arm."""

import random
from dataclasses import dataclass, field

from bench.paired import quantile

BURST_SHARE = 0.3
BURST_REQUESTS = 4


@dataclass(slots=True)
class Request:
    """A request, and the times of its tokens.

    Args:
        at_s: time of its arrival, from the start of the run.
    """

    number: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    emitted_s: list[float] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.emitted_s) == self.output_tokens

    @property
    def ttft_ms(self) -> float:
        return (self.emitted_s[0] - self.at_s) * 1e3

    @property
    def tpot_ms(self) -> float:
        """The mean time per token; requires at least two tokens."""
        return (self.emitted_s[-1] - self.emitted_s[0]) / (len(self.emitted_s) - 1) * 1e3


def bursty(
    *, seed: int, seconds: float, rate: float, prompt_max: int, output_max: int
) -> list[Request]:
    """Return arrivals with a mean of `rate` per second, some in bursts, in time order."""
    rng = random.Random(seed)
    # A burst has several requests, so fewer arrival times are needed for the same rate.
    moments_rate = rate / (1 + BURST_SHARE * (BURST_REQUESTS - 1))
    requests: list[Request] = []
    at_s = rng.expovariate(moments_rate)
    while at_s < seconds:
        for _ in range(BURST_REQUESTS if rng.random() < BURST_SHARE else 1):
            prompt = int(rng.lognormvariate(0, 0.8) * prompt_max / 4)
            output = int(rng.expovariate(2 / output_max))
            requests.append(
                Request(
                    len(requests),
                    at_s,
                    min(max(1, prompt), prompt_max),
                    min(max(2, output), output_max),
                )
            )
        at_s += rng.expovariate(moments_rate)
    return requests


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of serving's users; None without a finished request."""

    requests: int
    ttft_ms_p50: float
    ttft_ms_p99: float
    tpot_ms_p50: float
    tpot_ms_p99: float

    @classmethod
    def of(cls, requests: list[Request], *, from_s: float = 0.0) -> "Latencies | None":
        """Return those of the finished requests, without arrivals before `from_s`."""
        ended = [one for one in requests if one.is_done and one.at_s >= from_s]
        if not ended:
            return None
        ttft, tpot = [one.ttft_ms for one in ended], [one.tpot_ms for one in ended]
        return cls(
            len(ended),
            quantile(ttft, 0.5),
            quantile(ttft, 0.99),
            quantile(tpot, 0.5),
            quantile(tpot, 0.99),
        )
