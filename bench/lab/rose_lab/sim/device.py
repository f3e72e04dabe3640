"""Costs of the device and its two engines in milliseconds, and noise on top."""

import math
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

import numpy as np

from rose.errors import InvalidArgument
from rose.units import NS_PER_MS

_NOISE_BLOCK: Final = 4096
_NOISE_MAX: Final = 3.0
_MAY_BE_ZERO: Final = frozenset(
    {"sequence_ms", "context_ms", "prefill_ms", "pair_ms", "noise", "commits_batch"}
    | {"gate_ms", "signal_ms", "host_lead_ms"}
)


class Sharing(Enum):
    """Modes in which the two engines share the device."""

    TURNS = "one of them at a time"
    TOGETHER = "both at once, as the hardware mixes them"
    SPLIT = "each on its own part, always"


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one serving step.

    Args:
        decode_sequences: sequences that get their next token.
        context_tokens: KV tokens read, over all sequences.
        prefill_tokens: prompt tokens processed.
        prefill_context_tokens: the part of `context_tokens` in the chunk's own prompt.
    """

    decode_sequences: int
    context_tokens: int
    prefill_tokens: int
    prefill_context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A roofline of two 8B models (32 layers of 4096, 8 KV heads of 128, bf16) on an NVIDIA H200.

    `step_ms` adds up the time of a serving step. The defaults follow from the data sheet (4.8 TB/s,
    989 dense bf16 TFLOP/s) and the assumed shares that kernels reach: 80 % of the bandwidth, 70 %
    of the arithmetic.

    Args:
        base_ms: time of any step: reading 16 GB of weights once takes 4.2 ms, here rounded to 4.
        sequence_ms: time per decoding sequence, for sampling and launches; assumed.
        context_ms: time per token of context, for reading 128 KiB of KV.
        prefill_ms: time per prompt token, for 16 GFLOP.
        pair_ms: time per pair of a prompt token and a token it attends to, for 4 x 4096 x 32 FLOP.
        noise: standard deviation of the logarithm of a step's time, 0 to 3.
        layers: layers of a rollout step.
        layer_ms: time of a rollout layer: 12 ms for 512 prefill tokens of an 8B model, over 36
            layers.
        layers_per_segment: layers between two gates.
        gate_ms: time of one gate; 2 to 10 us are reported for a stream memory operation.
        signal_ms: delay of a host write until the device sees it, and vice versa.
        host_lead_ms: time from a request's arrival to its earliest step, for tokenising and
            scheduling.
        batch_max: largest number of running sequences of serving.
        chunk_tokens: tokens of one step: one per decoding sequence, the rest for one prompt.
        commits_batch: whether the engine schedules a step before it asks for the device, so that a
            request that arrives while rollouts go first joins only the next step. Both vLLM and
            transformers do.
        together_serving: slowdown of a serving step beside rollouts that use the whole device. Two
            engines that both need the whole device get half of it each, so the slowdown is 2, less
            the gain from work that overlaps.
        together_rollout: slowdown of rollouts beside a serving step.
        split_share: constant share of the device for rollouts under `Sharing.SPLIT`.
    """

    base_ms: float = 4.0
    sequence_ms: float = 0.01
    context_ms: float = 3.4e-5
    prefill_ms: float = 0.023
    pair_ms: float = 7.6e-7
    noise: float = 0.0
    layers: int = 36
    layer_ms: float = 1 / 3
    layers_per_segment: int = 4
    gate_ms: float = 0.01
    signal_ms: float = 0.01
    host_lead_ms: float = 0.5
    batch_max: int = 64
    chunk_tokens: int = 512
    commits_batch: bool = True
    together_serving: float = 1.9
    together_rollout: float = 1.9
    split_share: float = 0.25

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            InvalidArgument: a value is out of range; the message names it.
        """
        if self.noise > _NOISE_MAX:
            raise InvalidArgument(
                f"DeviceModel(noise={self.noise:g}) must be at most {_NOISE_MAX:g}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_share"):
                is_sound, rule = 0 < value < 1, "above 0 and below 1"
            elif field.name.startswith("together"):
                is_sound, rule = value >= 1, "finite and at least 1"
            elif field.name in _MAY_BE_ZERO:
                is_sound, rule = value >= 0, "finite and at least 0"
            else:
                is_sound, rule = value > 0, "finite and above 0"
            if not (math.isfinite(value) and is_sound):
                raise InvalidArgument(f"DeviceModel({field.name}={value}) must be {rule}")
        if self.batch_max >= self.chunk_tokens:
            raise InvalidArgument(
                f"DeviceModel(chunk_tokens={self.chunk_tokens}) must be above "
                f"batch_max={self.batch_max}"
            )

    def step_ms(self, work: StepWork) -> float:
        """Return the time of a serving step alone, without noise."""
        return (
            self.base_ms
            + self.sequence_ms * work.decode_sequences
            + self.context_ms * work.context_tokens
            + self.prefill_ms * work.prefill_tokens
            + self.pair_ms * work.prefill_tokens * work.prefill_context_tokens
        )

    def serving_slowdown(self, sharing: Sharing, *, is_beside: bool) -> float:
        """Return the slowdown of a serving step; `is_beside`: whether a segment runs beside it."""
        if sharing is Sharing.SPLIT:
            return 1 / (1 - self.split_share)
        if not is_beside:
            return 1.0
        return self.together_serving

    def rollout_slowdown(self, sharing: Sharing, *, is_beside: bool) -> float:
        """Return the slowdown of a rollout segment; `is_beside`: whether a step runs beside it."""
        if sharing is Sharing.SPLIT:
            return 1 / self.split_share
        return self.together_rollout if is_beside else 1.0


class Noise:
    """Factors of step times; an index always has the same factor, in any order of calls.

    Serving's and rollouts' steps have separate streams, so one engine's actions leave the other's
    factors unchanged: compared arms see the same noise.
    """

    def __init__(self, random: np.random.Generator, *, sigma: float) -> None:
        """Start without factors; from now on no other code may use the generator."""
        self._random = random
        self._sigma = sigma
        self._factors: list[float] = []

    def factor(self, index: int) -> float:
        """Return the factor of step `index`; its mean is 1."""
        if self._sigma == 0:
            return 1.0
        while index >= len(self._factors):
            drawn = self._random.lognormal(-(self._sigma**2) / 2, self._sigma, _NOISE_BLOCK)
            self._factors += drawn.tolist()
        return self._factors[index]


def ns_of(ms: float) -> int:
    """Convert milliseconds to whole nanoseconds."""
    return round(ms * NS_PER_MS)
