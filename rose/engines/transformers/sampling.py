"""Counter-based sampling: the noise depends only on the request's seed and the token's position.

The noise of a token is a hash of (seed, position in the whole sequence, token id). Neither the
batch, nor the worker, nor a repeated step changes the noise, so a turn that moves to another worker
continues identically. Tokens are left out (top-k, top-p, min-p) by thresholds on their logits, so
this does not depend on the order of equal logits either.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from transformers.generation.continuous_batching.requests import FutureRequestState

from rose.engines.transformers.runner import DeviceRunner
from rose.errors import InternalError, InvalidArgument

LOGPROBS_MAX: Final = 20
# Below this temperature the most likely token is chosen, as in vLLM: logits divided by less could
# be infinite.
_TEMPERATURE_LEAST: Final = 1e-5
_WORD: Final = 1 << 64
# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers of its finaliser.
_STRIDE: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB

_DOUBLE: Final = torch.float64

# Pairs of token id and log probability, the most likely first.
Top: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request.

    Args:
        seed: seed, taken modulo 2^64; requests with equal seeds and contexts get equal tokens.
        temperature: temperature of the softmax; 0 for the most likely token.
        top_p: smallest probability mass that tokens are drawn from.
        top_k: number of most likely tokens that tokens are drawn from; 0 for all.
        min_p: smallest probability of a token, as a share of the most likely token's.
        logprobs: number of most likely tokens that are reported beside each token.
        withheld: token ids that are not chosen before position `withheld_until`.
        withheld_until: position, counted from the first token of the prompt.

    Raises:
        InvalidArgument: a value is out of range.
    """

    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logprobs: int = 0
    withheld: tuple[int, ...] = ()
    withheld_until: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidArgument(
                f"temperature must be finite and at least 0, got {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise InvalidArgument(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise InvalidArgument(f"top_k must be at least 0, got {self.top_k}")
        if not 0 <= self.min_p <= 1:
            raise InvalidArgument(f"min_p must be from 0 to 1, got {self.min_p}")
        if not 0 <= self.logprobs <= LOGPROBS_MAX:
            raise InvalidArgument(f"logprobs must be from 0 to {LOGPROBS_MAX}, got {self.logprobs}")

    @property
    def is_random(self) -> bool:
        """False if each token is the most likely one, whatever is left out."""
        return self.temperature >= _TEMPERATURE_LEAST


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


class Rows:
    """The sampling parameters of a step, one row per request that gets a token, on the device.

    A parameter that changes no row is None: it then costs nothing.

    Args:
        chosen: parameters of each row.
        positions: position of each row's next token.
        device: device of the logits.
    """

    def __init__(
        self, chosen: Sequence[Sampling], positions: Sequence[int], device: torch.device
    ) -> None:
        def tensor(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        pairs = list(zip(chosen, positions, strict=True))
        keys = [_signed(row_key(one.seed, position)) for one, position in pairs]
        self.keys = tensor(keys, torch.int64)
        self.temperatures = tensor(
            [one.temperature * one.is_random for one in chosen], torch.float32
        )
        self.top_ks = self.top_ps = self.min_ps = self.withheld = None
        if any(one.is_random and one.top_k for one in chosen):
            self.top_ks = tensor([one.top_k * one.is_random for one in chosen], torch.int64)
        if any(one.is_random and one.top_p < 1 for one in chosen):
            self.top_ps = tensor([one.top_p if one.is_random else 1.0 for one in chosen], _DOUBLE)
        if any(one.is_random and one.min_p for one in chosen):
            self.min_ps = tensor([one.min_p * one.is_random for one in chosen], torch.float32)
        places = [
            (row, token)
            for row, (one, position) in enumerate(pairs)
            if position < one.withheld_until
            for token in one.withheld
        ]
        if places:
            self.withheld = torch.tensor(places, dtype=torch.int64, device=device)
        self.logprobs = max((one.logprobs for one in chosen), default=0)


def _left(scaled: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return logits in which the tokens that min-p, top-k and top-p leave out are -inf.

    The order is vLLM's: min-p first, then top-k, then top-p of what these leave.
    """
    if rows.min_ps is not None:
        floor = scaled.amax(dim=1) + rows.min_ps.log()
        scaled = scaled.masked_fill(scaled < floor.unsqueeze(1), -math.inf)
    if rows.top_ks is None and rows.top_ps is None:
        return scaled
    ordered = scaled.sort(dim=1, descending=True).values
    if rows.top_ks is not None:
        vocabulary = ordered.shape[1]
        ranks = torch.where(rows.top_ks > 0, rows.top_ks.clamp(max=vocabulary), vocabulary) - 1
        least = ordered.gather(1, ranks.unsqueeze(1))
        scaled = scaled.masked_fill(scaled < least, -math.inf)
        ordered = ordered.masked_fill(ordered < least, -math.inf)
    if rows.top_ps is not None:
        mass = ordered.softmax(dim=1, dtype=_DOUBLE)
        # A token stays if the tokens before it have less than top_p of the mass.
        stays = (mass.cumsum(dim=1) - mass < rows.top_ps.unsqueeze(1)) | (
            rows.top_ps.unsqueeze(1) >= 1
        )
        least = ordered.gather(1, stays.sum(dim=1, keepdim=True) - 1)
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    return scaled


def choose(
    logits: torch.Tensor, rows: Rows
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """Choose one token per row.

    Args:
        logits: (rows, vocabulary) float32.
        rows: parameters of the rows.

    Returns:
        (rows,) int64 tokens, and (rows,) float32 natural log probabilities under the distribution
        that the token was drawn from; where the temperature is 0, under softmax(logits). Third, if
        `rows.logprobs` is above 0, log probabilities and ids of that many most likely tokens.
    """
    is_random = rows.temperatures > 0
    scaled = logits / torch.where(is_random, rows.temperatures, 1.0).unsqueeze(1)
    if rows.withheld is not None:
        scaled[rows.withheld[:, 0], rows.withheld[:, 1]] = -math.inf
    scaled = _left(scaled, rows)
    noise = gumbel_noise(rows.keys, logits.shape[1])
    scores = torch.where(is_random.unsqueeze(1), scaled + noise, scaled)
    tokens = scores.argmax(dim=1)
    every = torch.log_softmax(scaled, dim=1)
    logprobs = every.gather(1, tokens.unsqueeze(1)).squeeze(1)
    count = min(rows.logprobs, logits.shape[1])
    return tokens, logprobs, tuple(every.topk(count, dim=1)) if count else None


class SamplingRunner(DeviceRunner):
    """A runner with counter-based sampling, by each request's own parameters."""

    def __init__(self, sampling_of: Callable[[str], Sampling], **kwargs: Any) -> None:
        """Build the runner; `sampling_of` maps a request id to its parameters."""
        super().__init__(**kwargs)
        self._sampling_of = sampling_of
        self._rows: Rows | None = None
        self._row_of: dict[str, int] = {}
        self._top: tuple[torch.Tensor, torch.Tensor] | None = None
        self._read: tuple[list[list[float]], list[list[int]]] | None = None

    def prepare_rows(self, batch: Sequence[FutureRequestState], device: torch.device) -> None:
        """Make the parameters of the prepared step, one row per row of its logits.

        Called before the forward pass, which on a GPU may not wait for its stream.
        """
        rows = [future.state for future in batch if future.has_new_token]
        chosen = [self._sampling_of(state.request_id) for state in rows]
        # A prepared request's offset includes this batch, so it is the position of the next token.
        self._rows = Rows(chosen, [state.position_offset for state in rows], device)
        self._row_of = {state.request_id: row for row, state in enumerate(rows)}
        self._top = self._read = None

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Write tokens and the bits of their logprobs where stock code writes them."""
        rows = self._rows
        if rows is None:
            raise InternalError("rows must be prepared before each step")
        # A partly prefilled request also has a row, behind all other rows; nobody reads its result.
        count = len(rows.keys)
        tokens, logprobs, self._top = choose(scores[0, :count], rows)
        output_ids[0, :count].copy_(tokens)
        output_ids[1, :count].copy_(logprobs.view(dtype=torch.int32))

    def top_of(self, request_id: str, count: int) -> Top:
        """Return the `count` most likely tokens beside the newest token of a request.

        For the loop thread, between the end of a step and the preparation of the next one.
        """
        row = self._row_of.get(request_id)
        if row is None or self._top is None:
            return ()
        if self._read is None:
            values, ids = self._top
            self._read = values.tolist(), ids.tolist()
        logprobs, tokens = self._read
        return tuple(zip(tokens[row][:count], logprobs[row][:count], strict=True))
