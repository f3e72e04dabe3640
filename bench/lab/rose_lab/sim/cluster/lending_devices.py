"""Step costs of a model on a GPU, from data sheets and shapes or from measurements.

Data-sheet figures, and the attainable shares of these figures, are in `rose/slo/priors.json`, each
with its source. Shapes are in `rose/memory/presets.json`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.executor.model_cost import model_cost
from rose.memory.model_shape import KVDtype, ModelShape
from rose.memory.model_weights import weight_bytes
from rose.slo.prior import Roofline, find_roofline
from rose.units import GIB, MS_PER_S
from rose_lab.sim.cluster.world import StepTimes
from rose_lab.sim.device import DeviceModel

# Memory that an engine needs for its CUDA context, graphs and activations.
ENGINE_BYTES: Final = 2 * GIB
BF16_KV: Final = KVDtype(element_bytes=2)
_BATCH: Final = 64  # largest expected number of sequences
# BLIS (inference-sim) fitted 3 to 5 us per sequence and step of vLLM.
_SEQUENCE_MS: Final = 0.004
# Assumed latency of an all-reduce of a decode step's activations over NVLink.
_ALL_REDUCE_MS: Final = 0.01
_ALL_REDUCES_OF_LAYER: Final = 2
_MATRICES_OF_AN_EXPERT: Final = 3


@dataclass(frozen=True, slots=True)
class StepCost:
    """Time of a step: a sum of five terms, in milliseconds.

    Args:
        base_ms: time of any step, > 0.
        sequence_ms: time per decoding sequence.
        context_ms: time per context token read.
        prefill_ms: time per prompt token, > 0.
        pair_ms: time per pair of a prompt token and a token before it in its context.
    """

    base_ms: float
    sequence_ms: float
    context_ms: float
    prefill_ms: float
    pair_ms: float

    def step_times(self, *, context_tokens: int = 0) -> StepTimes:
        """Return the times of a rollout engine.

        Prompts share steps that read the weights for decoding sequences anyway, so a prompt token
        costs only its arithmetic.

        Args:
            context_tokens: average number of tokens before a prompt token, >= 0.
        """
        token_ms = self.prefill_ms + self.pair_ms * context_tokens
        return StepTimes(
            prefill_tokens_per_s=MS_PER_S / token_ms,
            decode_step_ms=self.base_ms,
            decode_ms_per_sequence=self.sequence_ms,
            decode_ms_per_context_token=self.context_ms,
        )

    def device_model(
        self,
        rollout: "StepCost",
        *,
        rollout_layers: int,
        rollout_tokens: int = 512,
    ) -> DeviceModel:
        """Return a device with a serving engine of this cost, for the machine of `rose_lab.sim`.

        Args:
            rollout: step cost of the rollout engine.
            rollout_layers: layers of the rollout model, > 0.
            rollout_tokens: prompt tokens of the heaviest rollout step; 512 is the paper's limit.
        """
        return DeviceModel(
            base_ms=self.base_ms,
            sequence_ms=self.sequence_ms,
            context_ms=self.context_ms,
            prefill_ms=self.prefill_ms,
            pair_ms=self.pair_ms,
            layers=rollout_layers,
            layer_ms=(rollout.base_ms + rollout.prefill_ms * rollout_tokens) / rollout_layers,
        )


def roofline_cost(shape: ModelShape, gpu: str, *, tp: int = 1) -> StepCost:
    """Return the step cost according to the data sheet of `gpu`.

    A decode step takes as long as weight reading or arithmetic, whichever is longer. A straight
    line is fitted to this time over 1 to 64 sequences. A larger batch reads more experts: n
    sequences that use k of N experts per token read N (1 - (1 - k / N)^n) experts.

    Args:
        shape: model, bf16 or FP8 as published; KV is bf16.
        gpu: "H100", "H800", "H200", "A100", "L40S", or a driver's device name.
        tp: devices that share the model over NVLink.

    Raises:
        InvalidArgument: the GPU is unknown, or the model cannot be divided among `tp` devices.
    """
    roofline = _roofline(gpu)
    cost = model_cost(shape, kv=BF16_KV, tp=tp)
    _, token_ms, context_ms, prefill_ms, pair_ms = roofline.prior_ms(cost)
    sequences = np.arange(1, _BATCH + 1, dtype=np.float64)
    read_bytes = cost.weight_bytes - _asleep_bytes(shape, sequences) / tp
    decode_ms = np.maximum(read_bytes * MS_PER_S / roofline.bytes_per_s, sequences * token_ms)
    slope, at_none = np.polyfit(sequences, decode_ms, 1)
    exchange_ms = _ALL_REDUCE_MS * _ALL_REDUCES_OF_LAYER * shape.layers if tp > 1 else 0.0
    return StepCost(
        base_ms=roofline.launch_ms + exchange_ms + float(at_none),
        sequence_ms=_SEQUENCE_MS + max(0.0, float(slope)),
        context_ms=context_ms,
        prefill_ms=prefill_ms,
        pair_ms=pair_ms,
    )


def kv_tokens(shape: ModelShape, gpu: str, *, tp: int = 1) -> int:
    """Return the context tokens that fit on one of `tp` GPUs, beside the weights.

    Args:
        shape: model of the contexts.
        gpu: see `roofline_cost`.
        tp: devices that share the model.

    Raises:
        InvalidArgument: the GPU is unknown, or the weights leave no room.
    """
    token_bytes = int(model_cost(shape, kv=BF16_KV, tp=tp).context_token_bytes)
    return pool_bytes(gpu, shape, tp=tp) // token_bytes


def pool_bytes(gpu: str, *shapes: ModelShape, tp: int = 1) -> int:
    """Return the bytes for KV on one of `tp` GPUs that hold the weights of all `shapes`.

    Raises:
        InvalidArgument: the GPU is unknown, or the weights leave no room.
    """
    weights = sum(weight_bytes(shape, tp=tp) + ENGINE_BYTES for shape in shapes)
    left = int(_roofline(gpu).memory_bytes) - weights
    if left <= 0:
        names = " and ".join(shape.name for shape in shapes)
        raise InvalidArgument(f"{names} do not fit {gpu} with tp {tp}: {-left} bytes are missing")
    return left


def _roofline(gpu: str) -> Roofline:
    roofline = find_roofline(gpu)
    if roofline.notice is not None:
        raise InvalidArgument(
            f"there are no figures for a GPU '{gpu}' in rose/slo/priors.json; use a listed GPU"
        )
    return roofline


def _asleep_bytes(shape: ModelShape, sequences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the bytes of experts that a step of this many sequences does not read."""
    experts = shape.experts
    if experts is None:
        return np.zeros_like(sequences)
    expert_bytes = _MATRICES_OF_AN_EXPERT * shape.hidden * experts.intermediate * shape.dtype_bytes
    asleep = experts.count * (1 - experts.per_token / experts.count) ** sequences
    return np.asarray(asleep * expert_bytes * experts.layers, dtype=np.float64)
