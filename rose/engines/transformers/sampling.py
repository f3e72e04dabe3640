"""Counter-based sampling: the noise depends only on the request's seed and the token's position.

The noise of a token is a hash of (seed, position in the whole sequence, token id). Neither the
batch, nor the worker, nor a repeated step changes the noise, so a turn that moves to another worker
continues identically.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers.generation.continuous_batching.requests import FutureRequestState

from rose.engines.transformers.runner import DeviceRunner
from rose.errors import InvalidArgument

_WORD: Final = 1 << 64
# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers of its finaliser.
_STRIDE: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request.

    Args:
        seed: seed, taken modulo 2^64; requests with equal seeds and contexts get equal tokens.
        temperature: temperature of the softmax; 0 for the most likely token.

    Raises:
        InvalidArgument: the temperature is negative or not finite.
    """

    seed: int = 0
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidArgument(
                f"temperature must be finite and at least 0, got {self.temperature}"
            )


def _signed(word: int) -> int:
    """Return a 64-bit number as torch's int64: torch has no arithmetic on uint64."""
    word %= _WORD
    return word - _WORD if word >= _WORD >> 1 else word


def _mix_word(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) % _WORD
    word = ((word ^ (word >> 27)) * _SECOND) % _WORD
    return word ^ (word >> 31)


def row_key(seed: int, position: int) -> int:
    """Return the key of one row of logits, a 64-bit number.

    Args:
        seed: seed of the request.
        position: position of the next token, counted from the first token of the prompt.
    """
    return _mix_word((_mix_word(seed % _WORD) + (position + 1) * _STRIDE) % _WORD)


def _xor_shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """Return words ^ (words >> by), with a logical shift; torch's shift keeps the sign."""
    return words ^ ((words >> by) & ((1 << (64 - by)) - 1))


def gumbel_noise(keys: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Return standard Gumbel noise, a pure function of key and token id.

    Args:
        keys: (rows,) int64, results of `row_key`.
        vocabulary: number of token ids per row.

    Returns:
        (rows, vocabulary) float32.
    """
    ids = torch.arange(1, vocabulary + 1, device=keys.device, dtype=torch.int64)
    words = keys.unsqueeze(1) + ids * _signed(_STRIDE)
    words = _xor_shifted(words, 30) * _signed(_FIRST)
    words = _xor_shifted(words, 27) * _signed(_SECOND)
    words = _xor_shifted(words, 31)
    # Uniform in (0, 1], and exact near 0, where the largest noise comes from. float32 may round up
    # to 1, where the noise is -inf: such a token is not chosen.
    uniform = (((words >> 32) & 0xFFFFFFFF).float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform))


def choose(
    logits: torch.Tensor, keys: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one token per row.

    Args:
        logits: (rows, vocabulary) float32.
        keys: (rows,) int64.
        temperatures: (rows,) float32; rows with 0 get the most likely token.

    Returns:
        (rows,) int64 tokens, and (rows,) float32 natural log probabilities under softmax(logits /
        temperature); where the temperature is 0, the log probability is 0.
    """
    is_random = temperatures > 0
    scaled = logits / torch.where(is_random, temperatures, 1.0).unsqueeze(1)
    noise = gumbel_noise(keys, logits.shape[1])
    scores = torch.where(is_random.unsqueeze(1), scaled + noise, scaled)
    tokens = scores.argmax(dim=1)
    logprobs = torch.log_softmax(scaled, dim=1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens, torch.where(is_random, logprobs, 0.0)


class SamplingRunner(DeviceRunner):
    """A runner with counter-based sampling, by each request's own parameters."""

    def __init__(self, sampling_of: Callable[[str], Sampling], **kwargs: Any) -> None:
        """Build the runner; `sampling_of` maps a request id to its parameters."""
        super().__init__(**kwargs)
        self._sampling_of = sampling_of
        self._keys = torch.empty(0, dtype=torch.int64)
        self._temperatures = torch.empty(0)

    def prepare_rows(self, batch: Sequence[FutureRequestState], device: torch.device) -> None:
        """Make the keys of the prepared step, one per row of its logits.

        Called before the forward pass, which on a GPU may not wait for its stream.
        """
        rows = [future.state for future in batch if future.has_new_token]
        chosen = [self._sampling_of(state.request_id) for state in rows]
        # A prepared request's offset includes this batch, so it is the position of the next token.
        keys = [
            _signed(row_key(sampling.seed, state.position_offset))
            for sampling, state in zip(chosen, rows, strict=True)
        ]
        self._keys = torch.tensor(keys, dtype=torch.int64, device=device)
        self._temperatures = torch.tensor(
            [sampling.temperature for sampling in chosen], dtype=torch.float32, device=device
        )

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Write tokens and the bits of their logprobs where stock code writes them."""
        # A partly prefilled request also has a row, behind all other rows; nobody reads its result.
        rows = len(self._keys)
        tokens, logprobs = choose(scores[0, :rows], self._keys, self._temperatures)
        output_ids[0, :rows].copy_(tokens)
        output_ids[1, :rows].copy_(logprobs.view(dtype=torch.int32))
