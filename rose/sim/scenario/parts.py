"""The parts of a scenario besides its jobs: GPUs, serving, the network, prices, stress.

The `load` of traffic is the share of the time in which a device that only serves has a request at
least. It is not the utilisation of its SMs, which is lower: decoding a few sequences keeps a device
busy and most of its SMs idle. Who has only a utilisation has to assume a load.
"""

from enum import Enum
from typing import Annotated, ClassVar, Final, TypeAlias

from msgspec import Meta

from rose.errors import InvalidArgument
from rose.sim.scenario.distributions import Distribution, Lognormal
from rose.sim.scenario.fields import (
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

# Azure's conversations have means of 1,155 and 211 tokens, 99th percentiles of 4,142 and 601.
_PROMPT: Final = Lognormal(median=928.0, sigma=0.66, most=16_384.0)
_OUTPUT: Final = Lognormal(median=174.0, sigma=0.62, most=2048.0)


class Gpu(Enum):
    """Kinds of GPU; what each can do is in the table of step times."""

    H100 = "H100"
    H200 = "H200"
    H800 = "H800"
    A100 = "A100"
    L40S = "L40S"


class Slo(Spec, frozen=True):
    """What serving promised, at the 99th percentile.

    Args:
        ttft_ms: to the first token.
        tpot_ms: from each token to the next.
    """

    ttft_ms: SomeMilliseconds
    tpot_ms: SomeMilliseconds


class DailyTraffic(Spec, frozen=True, tag_field="kind", tag="daily"):
    """Rates of requests over days, of a file of rates; within a window they come in bursts.

    Args:
        rates: path of the file, relative to the scenario's.
        model: whose rates of the file.
        load: mean share of its time in which a device has requests.
        from_s: where in the file the simulation begins.
    """

    second_peak: ClassVar = 2.89  # of a window over its mean
    prompt_tokens: ClassVar[Distribution] = _PROMPT
    output_tokens: ClassVar[Distribution] = _OUTPUT
    rates: Text
    model: Text
    load: _Load
    from_s: Seconds = 0.0


class SyntheticTraffic(Spec, frozen=True, tag_field="kind", tag="synthetic"):
    """Requests that are drawn: a slow wave of load, and bursts of seconds upon it.

    Args:
        load: mean share of its time in which a device has requests.
        minute_peak: the busiest minute over the mean; the paper's trace has 1.7.
        second_peak: the busiest second over the mean; the paper's trace has 4.22.
        wave_s: of the slow wave; a day in production, less where a simulation is to see all of it.
        prompt_tokens: of a request; the default has the mean of Azure's conversations.
        output_tokens: of a request; likewise.
    """

    load: _Load
    minute_peak: _Peak = 1.7
    second_peak: _Peak = 4.22
    wave_s: SomeSeconds = 86_400.0
    prompt_tokens: Distribution = _PROMPT
    output_tokens: Distribution = _OUTPUT

    def __post_init__(self) -> None:
        """Refuse seconds that are calmer than the minutes they are in."""
        if self.second_peak < self.minute_peak:
            raise InvalidArgument(
                f"second_peak: {self.second_peak:g} is below minute_peak, {self.minute_peak:g}; "
                "the busiest second is at least as busy as the busiest minute"
            )


Traffic: TypeAlias = DailyTraffic | SyntheticTraffic


class Dedicated(Spec, frozen=True):
    """GPUs that do nothing but rollouts.

    Args:
        gpu: of which kind.
        count: of GPUs.
        tp: GPUs of one engine.
        domain_gpus: that fail together: of one node.
    """

    gpu: Gpu
    count: Gpus
    tp: Gpus = 1
    domain_gpus: Gpus = 8

    def __post_init__(self) -> None:
        """Refuse GPUs that make no whole engines."""
        _check_whole(self.count, self.tp)


class Borrowed(Spec, frozen=True):
    """GPUs that serve, and lend what is left.

    Args:
        gpu: of which kind.
        count: of GPUs.
        serving_model: what they serve.
        slo: what they promised.
        traffic: what they serve.
        tp: GPUs of one engine, of serving and of rollouts alike.
        domain_gpus: that fail, or are taken back, together: of one node.
    """

    gpu: Gpu
    count: Gpus
    serving_model: Text
    slo: Slo
    traffic: Traffic
    tp: Gpus = 1
    domain_gpus: Gpus = 8

    def __post_init__(self) -> None:
        """Refuse GPUs that make no whole engines."""
        _check_whole(self.count, self.tp)


class Trainer(Spec, frozen=True):
    """GPUs that train.

    Args:
        gpu: of which kind.
        count: of GPUs.
        tp: GPUs that share a layer; the rest of them holds copies.
    """

    gpu: Gpu
    count: Gpus
    tp: Gpus = 1

    def __post_init__(self) -> None:
        """Refuse GPUs that make no whole copies."""
        _check_whole(self.count, self.tp)


class Network(Spec, frozen=True):
    """What updates cross.

    Args:
        link_gbit_per_s: between the cluster that trains and the one that serves; all share it.
        changed_share: of the elements, in one update. Public measurements have 0.9 to 3 %.
    """

    link_gbit_per_s: GbitPerS
    changed_share: Share = 0.03


class Prices(Spec, frozen=True):
    """What an hour of a GPU costs, in dollars.

    Args:
        dedicated: of a GPU that does rollouts only, all the time.
        trainer: of a GPU that trains, all the time.
        borrowed: of a GPU that is lent, for the share of the time that rollouts computed on it.
        opportunity: what serving could have had for that share instead.
    """

    dedicated: DollarsPerHour
    trainer: DollarsPerHour
    borrowed: DollarsPerHour
    opportunity: DollarsPerHour


class RevokeAll(Spec, frozen=True, tag_field="kind", tag="revoke-all"):
    """Serving takes every borrowed GPU back at once.

    Args:
        at_s: when.
        for_s: how long until it lends again.
        share: of the domains that are hit, the first ones; 1 is all of them.
    """

    at_s: Seconds
    for_s: SomeSeconds
    share: Share = 1.0


class Flapping(Spec, frozen=True, tag_field="kind", tag="flapping"):
    """Leases come and go.

    Args:
        lent_s: how long each is held.
        away_s: how long until the next.
    """

    lent_s: SomeSeconds
    away_s: SomeSeconds


class RevokeDuringUpdate(Spec, frozen=True, tag_field="kind", tag="revoke-during-update"):
    """Serving takes every borrowed GPU back while an update is on its way to it.

    Args:
        into: share of the update that had passed.
        for_s: how long until it lends again.
    """

    into: Share = 0.5
    for_s: SomeSeconds = 10.0


class RevokeAfterPrefill(Spec, frozen=True, tag_field="kind", tag="revoke-after-prefill"):
    """Serving takes each borrowed GPU back when it has just computed a long prompt.

    Args:
        prompt_tokens: of the prompt; how long it takes decides how long a lease is held.
        away_s: how long until the next.
    """

    prompt_tokens: Tokens
    away_s: SomeSeconds = 5.0


class StalledTrainer(Spec, frozen=True, tag_field="kind", tag="stalled-trainer"):
    """The trainer takes far longer than it should.

    Args:
        factor: how many times as long.
    """

    factor: Factor


class EngineCrashes(Spec, frozen=True, tag_field="kind", tag="engine-crashes"):
    """Engines on borrowed GPUs die and start anew, all of a domain together.

    Args:
        every_s: mean time from one crash of a domain to its next.
        down_s: until an engine runs again.
    """

    every_s: SomeSeconds
    down_s: SomeSeconds


Stress: TypeAlias = (
    RevokeAll | Flapping | RevokeDuringUpdate | RevokeAfterPrefill | StalledTrainer | EngineCrashes
)


def _check_whole(count: int, tp: int) -> None:
    if count % tp:
        raise InvalidArgument(f"tp: {count} GPUs make no engines of {tp}; give a divisor")
