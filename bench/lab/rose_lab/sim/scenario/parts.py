"""The parts of a scenario besides its jobs: GPUs, serving, network, prices, stress.

The `load` of traffic is the share of the time in which a device that only serves has a request. It
is not the utilisation of its SMs, which is lower: decoding a few sequences keeps a device busy and
most of its SMs idle. If only a utilisation is known, a load must be assumed.
"""

from enum import Enum
from typing import Annotated, ClassVar, Final, TypeAlias

from msgspec import Meta

from rose.errors import InvalidArgument
from rose_lab.sim.scenario.distributions import Distribution, Lognormal
from rose_lab.sim.scenario.fields import (
    DollarsPerHour,
    Factor,
    GbitPerS,
    Gpus,
    Seconds,
    Share,
    SomeMilliseconds,
    SomeSeconds,
    Spec,
    Text,
    Tokens,
)

_Load: TypeAlias = Annotated[float, Meta(ge=0, le=0.95)]
_Peak: TypeAlias = Annotated[float, Meta(ge=1, le=100)]

# Prompts and outputs of Azure's conversations: means of 1,155 and 211 tokens, P99 of 4,142 and 601.
_PROMPT: Final = Lognormal(median=928.0, sigma=0.66, most=16_384.0)
_OUTPUT: Final = Lognormal(median=174.0, sigma=0.62, most=2048.0)


class GpuKind(Enum):
    """Kinds of GPU; their data-sheet figures are in `rose/slo/priors.json`."""

    H100 = "H100"
    H200 = "H200"
    H800 = "H800"
    A100 = "A100"
    L40S = "L40S"


class Slo(Spec, frozen=True):
    """Serving's targets, at the 99th percentile.

    Args:
        ttft_ms: time to the first token.
        tpot_ms: time from each token to the next.
    """

    ttft_ms: SomeMilliseconds
    tpot_ms: SomeMilliseconds


class DailyTraffic(Spec, frozen=True, tag_field="kind", tag="daily"):
    """Rates over days, from a file. Requests come in bursts within each ten minutes of the file.

    Args:
        rates: path of the file of rates, relative to the scenario file.
        model: model whose rates in the file are used.
        load: mean share of time with requests.
        from_s: time in the file at which the simulation begins.
    """

    second_peak: ClassVar = 2.89  # busiest second of a window over the window's mean
    prompt_tokens: ClassVar[Distribution] = _PROMPT
    output_tokens: ClassVar[Distribution] = _OUTPUT
    rates: Text
    model: Text
    load: _Load
    from_s: Seconds = 0.0


class SyntheticTraffic(Spec, frozen=True, tag_field="kind", tag="synthetic"):
    """Random requests: a slow wave of load, and bursts of seconds on top.

    Args:
        load: mean share of time with requests.
        minute_peak: rate of the busiest minute over the mean rate; 1.7 in the paper's trace.
        second_peak: rate of the busiest second over the mean rate; 4.22 in the paper's trace.
        wave_s: period of the slow wave. It is a day in production; a shorter one lets a short
            simulation cover the whole wave.
        prompt_tokens: prompt lengths; by default with the mean of Azure's conversations.
        output_tokens: output lengths; by default also with the mean of Azure's conversations.
    """

    load: _Load
    minute_peak: _Peak = 1.7
    second_peak: _Peak = 4.22
    wave_s: SomeSeconds = 86_400.0
    prompt_tokens: Distribution = _PROMPT
    output_tokens: Distribution = _OUTPUT

    def __post_init__(self) -> None:
        if self.second_peak < self.minute_peak:
            raise InvalidArgument(
                f"second_peak: {self.second_peak:g} is below minute_peak, {self.minute_peak:g}; "
                "the busiest second is at least as busy as the busiest minute"
            )


Traffic: TypeAlias = DailyTraffic | SyntheticTraffic


class Dedicated(Spec, frozen=True):
    """GPUs for rollouts only.

    Args:
        gpu: kind of GPU.
        count: number of GPUs.
        tp: GPUs per engine.
        domain_gpus: GPUs that fail together, as in one node.
    """

    gpu: GpuKind
    count: Gpus
    tp: Gpus = 1
    domain_gpus: Gpus = 8

    def __post_init__(self) -> None:
        _check_whole(self.count, self.tp)


class Borrowed(Spec, frozen=True):
    """GPUs that serve, and lend what serving leaves free.

    Args:
        gpu: kind of GPU.
        count: number of GPUs.
        serving_model: model that they serve.
        slo: latency targets.
        traffic: requests.
        tp: GPUs per engine, for serving and rollouts alike.
        domain_gpus: GPUs that fail or are revoked together, as in one node.
    """

    gpu: GpuKind
    count: Gpus
    serving_model: Text
    slo: Slo
    traffic: Traffic
    tp: Gpus = 1
    domain_gpus: Gpus = 8

    def __post_init__(self) -> None:
        _check_whole(self.count, self.tp)


class Trainer(Spec, frozen=True):
    """GPUs that train.

    Args:
        gpu: kind of GPU.
        count: number of GPUs.
        tp: GPUs that share a layer; the rest hold copies.
    """

    gpu: GpuKind
    count: Gpus
    tp: Gpus = 1

    def __post_init__(self) -> None:
        _check_whole(self.count, self.tp)


class Network(Spec, frozen=True):
    """The network of updates.

    Args:
        link_gbit_per_s: shared rate between the training and the serving cluster.
        changed_share: share of elements changed in one update. Public measurements are 0.9 to 3 %.
    """

    link_gbit_per_s: GbitPerS
    changed_share: Share = 0.03


class Prices(Spec, frozen=True):
    """Prices in dollars per GPU-hour.

    Args:
        dedicated: price of a rollout-only GPU, for all time.
        trainer: price of a training GPU, for all time.
        borrowed: price of a borrowed GPU, for the time in which rollouts compute on it; for all
            lent time if whole GPUs are lent.
        opportunity: serving's lost earnings for the same time.
    """

    dedicated: DollarsPerHour
    trainer: DollarsPerHour
    borrowed: DollarsPerHour
    opportunity: DollarsPerHour


class RevokeAll(Spec, frozen=True, tag_field="kind", tag="revoke-all"):
    """Serving revokes every borrowed GPU at once.

    Args:
        at_s: time of the revocation.
        for_s: time until serving lends again.
        share: share of the failure domains that are revoked, beginning with the first.
    """

    at_s: Seconds
    for_s: SomeSeconds
    share: Share = 1.0


class Flapping(Spec, frozen=True, tag_field="kind", tag="flapping"):
    """Loans come and go.

    Args:
        lent_s: length of each loan.
        away_s: time from the end of a loan to the next loan.
    """

    lent_s: SomeSeconds
    away_s: SomeSeconds


class RevokeDuringUpdate(Spec, frozen=True, tag_field="kind", tag="revoke-during-update"):
    """Serving revokes every borrowed GPU during an update.

    Args:
        into: share of the update that has passed at the revocation.
        for_s: time until serving lends again.
    """

    into: Share = 0.5
    for_s: SomeSeconds = 10.0


class RevokeAfterPrefill(Spec, frozen=True, tag_field="kind", tag="revoke-after-prefill"):
    """Serving revokes each borrowed GPU as soon as rollouts have computed a long prompt on it.

    Args:
        prompt_tokens: length of the prompt; a loan lasts for the start-up and this prefill.
        away_s: time until the next loan.
    """

    prompt_tokens: Tokens
    away_s: SomeSeconds = 5.0


class StalledTrainer(Spec, frozen=True, tag_field="kind", tag="stalled-trainer"):
    """Training takes far longer than planned.

    Args:
        factor: multiple of the planned time.
    """

    factor: Factor


class EngineCrashes(Spec, frozen=True, tag_field="kind", tag="engine-crashes"):
    """Engines on borrowed GPUs crash and restart, all of a domain together.

    Args:
        every_s: mean time between crashes of a domain.
        down_s: time until an engine runs again.
    """

    every_s: SomeSeconds
    down_s: SomeSeconds


Stress: TypeAlias = (
    RevokeAll | Flapping | RevokeDuringUpdate | RevokeAfterPrefill | StalledTrainer | EngineCrashes
)


def _check_whole(count: int, tp: int) -> None:
    if count % tp:
        raise InvalidArgument(f"tp: must divide the {count} GPUs, got {tp}")
