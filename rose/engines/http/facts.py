"""What is known about an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rose.scheduler.worker import WorkerKind


class Dialect(Enum):
    """Routes that an engine speaks.

    ROSE: vLLM's routes, and rose's events.
    """

    VLLM = "vllm"
    SGLANG = "sglang"
    ROSE = "rose"


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Speed of an engine.

    A decode step of n sequences takes `decode_step_ms + n * decode_ms_per_sequence`.

    Args:
        prefill_tokens_per_s: prefill rate of a single prompt.
        decode_step_ms: fixed part of a decode step.
        decode_ms_per_sequence: time that each sequence adds to a decode step.
    """

    prefill_tokens_per_s: float
    decode_step_ms: float
    decode_ms_per_sequence: float

    def step_ms(self, sequences: int) -> float:
        """Return the time of a decode step, in milliseconds."""
        return self.decode_step_ms + sequences * self.decode_ms_per_sequence


def speed_of(status: Mapping[str, Any]) -> EngineSpeed | None:
    """Return the speed in an engine's status; None if the engine has not measured itself."""
    told = [status.get(name) for name in EngineSpeed.__slots__]
    rates = [float(one) for one in told if isinstance(one, int | float) and one >= 0]
    return EngineSpeed(*rates) if len(rates) == len(told) and all(rates[:2]) else None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of a running engine, as it tells them; None and empty: the engine does not tell.

    Args:
        dialect: routes that it speaks.
        kind: dedicated, or borrowed from a serving engine.
        model: name of its model in requests.
        root: name or folder that the model was loaded from.
        vocabulary: number of token ids.
        context_tokens: most tokens of a prompt and its output.
        kv_tokens: tokens of context that it can hold at most.
        seats: sequences that it runs at once.
        eos_token_ids: ids that end the model's output.
        version: version of its weights; None: an update broke off, so nobody knows them.
        features: fields of sampling that it has.
        speed: speed that it measured itself.
        instance: random name of its process.
        has_position_seeds: whether a sampled token depends on the seed, the context and its
            position only, so that a moved turn continues with the same tokens.
        follows: whether it loads a publisher's versions by itself.
        is_incremental: whether each event of its stream has only the new tokens. SGLang repeats all
            tokens in each event, unless it runs with `--incremental-streaming-output`.
    """

    dialect: Dialect
    kind: WorkerKind
    model: str
    root: str | None = None
    vocabulary: int | None = None
    context_tokens: int | None = None
    kv_tokens: int | None = None
    seats: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    version: int | None = 0
    features: frozenset[str] = frozenset()
    speed: EngineSpeed | None = None
    instance: str | None = None
    has_position_seeds: bool = False
    follows: bool = False
    is_incremental: bool = True

    def holds(self) -> int | None:
        """Return the most tokens of a sequence that the engine can run; None: unknown."""
        known = [one for one in (self.context_tokens, self.kv_tokens) if one is not None]
        return min(known, default=None)


# Name of an engine's weights while they change. An engine that has it later broke off an update.
TORN: Final = "unknown"
FEATURES: Final = frozenset(
    {
        *("top_p", "top_k", "min_p", "min_tokens", "stop", "logprobs"),
        *("penalties", "logit_bias", "structured_outputs", "prompt_logprobs"),
    }
)
SGLANG_FEATURES: Final = FEATURES - {"structured_outputs", "prompt_logprobs"}
