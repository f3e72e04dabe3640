"""Limits of the rollout service, and the check of requests against them and the fleet's."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.adapters.conversations import Prompt
from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.sequences import Ask
from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.worker import NO_OPTIONS, Options

# Fields of vLLM's API → the feature of an engine that they need; other fields need their own name.
_FEATURES: Final = {
    "presence_penalty": "penalties",
    "frequency_penalty": "penalties",
    "repetition_penalty": "penalties",
    "response_format": "structured_outputs",
    "tools": "structured_outputs",
    "tool_choice": "structured_outputs",
    "echo": "prompt_logprobs",
}
# Fields that change no token, so that engines without them may ignore them.
_NEUTRAL: Final = frozenset({"cache_salt"})


class Overloaded(Unavailable):
    """The number of sequences in flight is at its limit."""


class ContextTooLong(InvalidArgument):
    """A prompt and its output are longer than the context of every worker.

    Clients truncate a conversation when they see this code, or these words in the message.
    """

    code = "context_length_exceeded"

    def __init__(self, most: int, prompt: int, output: int) -> None:
        super().__init__(most, prompt, output)
        self._values = most, prompt, output

    def __str__(self) -> str:
        """Return the sentence."""
        most, prompt, output = self._values
        return (
            f"this model's maximum context length is {most} tokens, but the prompt has {prompt} "
            f"and max_tokens is {output}: reduce the length of the messages or max_tokens"
        )


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of the rollout service.

    Args:
        sequences: largest number of sequences in flight; further requests are refused.
        choices: largest number of sequences in one request.
        context_tokens: largest number of tokens of a prompt and its output together; the workers'
            own limit also holds.
        request_s: longest time in seconds from a request's start to its last token.
        pause_s: longest time in seconds for workers to return their turns when the service pauses;
            with `PauseMode.WAIT` the limit is `request_s`.
        body_bytes: largest size of a request's body, in bytes.
        body_s: longest time in seconds for a request's body to arrive.
        worker_wait_s: longest time in seconds that requests wait while no worker is registered.
        conversations: largest number of conversations; the one that is idle for longest ends first.
        conversation_tokens: largest number of tokens of all conversations.
        conversation_s: time in seconds after which an idle conversation ends.
        answer_tokens: largest number of tokens of all answers that are kept for their keys.
        answer_s: time in seconds for which the answer to a request with a key is kept.
        grace_s: time in seconds for which a request with a key runs on without a client.
    """

    sequences: int = 4096
    choices: int = 256
    context_tokens: int = 131_072
    request_s: float = 3600.0
    pause_s: float = 30.0
    body_bytes: int = 8 << 20
    body_s: float = 30.0
    worker_wait_s: float = 5.0
    conversations: int = 16_384
    conversation_tokens: int = 32 << 20
    conversation_s: float = 600.0
    answer_tokens: int = 4 << 20
    answer_s: float = 300.0
    grace_s: float = 30.0


def context_of(limits: ServiceLimits, fleet: FleetLimits) -> int:
    """Return the largest number of tokens of a prompt and its output."""
    return min(limits.context_tokens, fleet.context_tokens or limits.context_tokens)


def check_count(count: int, limits: ServiceLimits) -> None:
    """Check the number of sequences in one request.

    Raises:
        InvalidArgument: it is 0 or too large.
    """
    if not 1 <= count <= limits.choices:
        raise InvalidArgument(f"a request must have 1 to {limits.choices} sequences, got {count}")


def check_ask(
    ask: Ask, prompt: Prompt, limits: ServiceLimits, fleet: FleetLimits, *, has_tokenizer: bool
) -> None:
    """Check one sequence against the limits of the service and of its workers.

    Raises:
        ContextTooLong: prompt and output are too long together.
        InvalidArgument: an id is not in the vocabulary, or the workers lack a feature.
    """
    length, output = len(ask.prompt), ask.sampling.max_new_tokens
    if not length:
        raise InvalidArgument("a prompt must have at least 1 token, got 0")
    most = context_of(limits, fleet)
    if length + output > most:
        raise ContextTooLong(most, length, output)
    if ask.stop and not has_tokenizer:
        raise InvalidArgument("stop needs a tokenizer, which this service does not have")
    if not all(ask.stop):
        raise InvalidArgument("stop texts must have at least 1 character, got ''")
    _check_tokens(prompt.tokens, fleet)
    if ask.sampling.options is not NO_OPTIONS:
        _check_options(ask.sampling.options, fleet)


def _check_tokens(packed: bytes, fleet: FleetLimits) -> None:
    if fleet.vocabulary is None:
        return
    ids = np.frombuffer(packed, dtype=np.uint32)
    if ids.size and ids.max() >= fleet.vocabulary:
        place = int(ids.argmax())
        raise InvalidArgument(
            f"token ids must be below the model's vocabulary of {fleet.vocabulary}, got "
            f"{ids[place]} at index {place} of the prompt"
        )


def _check_options(options: Options, fleet: FleetLimits) -> None:
    wanted = {
        "top_p": options.top_p != 1.0,
        "top_k": options.top_k > 0,
        "min_p": options.min_p > 0.0,
        "min_tokens": options.min_tokens > 0,
        "logprobs": options.logprobs > 0,
    }
    needed = [(name, name) for name, is_wanted in wanted.items() if is_wanted]
    needed += [(name, _FEATURES.get(name, name)) for name in options.fields.keys() - _NEUTRAL]
    for name, feature in needed:
        if feature not in fleet.features:
            has = ", ".join(sorted(fleet.features)) or "none"
            raise InvalidArgument(
                f"{name} needs workers with {feature}; features of all workers: {has}"
            )
