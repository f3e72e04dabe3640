"""Sequences in flight, and their tokens so far."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from rose.adapters.stops import OutputText
from rose.adapters.text import Tokenizer
from rose.errors import RoseError
from rose.scheduler.driver_trajectory import DriverTrajectory
from rose.scheduler.turns import Sampling, TurnResult
from rose.scheduler.versions import VersionRange

# A trajectory's seed has 40 bits; clients may send more.
_SEED_BYTES: Final = 5
_SEED_MASK: Final = (1 << 8 * _SEED_BYTES) - 1


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence that a client requests.

    Args:
        prompt: token ids of the prompt.
        sampling: sampling parameters, without the model's own end tokens.
        seed: seed of the sampling; None: the service draws one.
        versions: versions of weights that may generate the tokens.
        stop: texts that end the sequence.
        include_stop: whether the stop text or stop token is part of the text.
        skip_special_tokens: whether special tokens are left out of the text.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int | None
    versions: VersionRange
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True


def seed_of(seed: int | None, place: int, draw: random.Random | None = None) -> int | None:
    """Return the seed of one sequence of a request.

    The first sequence has the client's own seed, so that a service and the engines behind it, which
    may be services too, generate the same tokens.

    Args:
        seed: the client's seed; None: the service draws one.
        place: index of the sequence in its request. The sequences of a request get different seeds.
        draw: source of a seed if the client sent none; None: the service draws it, once for all
            repetitions of a request.
    """
    if seed is None:
        return None if draw is None else draw.getrandbits(8 * _SEED_BYTES)
    if place == 0:
        return seed & _SEED_MASK
    text = f"{seed}/{place}".encode()
    return int.from_bytes(blake2b(text, digest_size=_SEED_BYTES).digest(), "little")


class SequenceInFlight:
    """One sequence of a request, with its tokens so far. For the event loop's thread only.

    Args:
        number: number of the sequence's trajectory in the scheduler.
        ask: the client's request for this sequence.
        eos: tokens that end the sequence besides those of `ask`.
        tokenizer: tokenizer for the text and for stop texts; None: the sequence has no text.
        take: function that passes the running turn to `grow`, if there is one.
        changed: function to call when the sequence has new tokens or has ended.
        ended: function to call once, when the sequence has ended and before `changed`.
    """

    def __init__(
        self,
        number: int,
        ask: Ask,
        *,
        eos: Sequence[int],
        tokenizer: Tokenizer | None,
        take: Callable[["SequenceInFlight"], None],
        changed: Callable[[], None],
        ended: Callable[["SequenceInFlight"], None],
    ) -> None:
        self.number = number
        self.ask = ask
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.cached_tokens = 0
        self.extras: Mapping[str, Any] = {}
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: RoseError | None = None
        self.is_done = False  # whether the scheduler has returned the whole result
        # Whether new tokens are taken before the end: for a client, or to find a stop text.
        self.is_watched = bool(ask.stop)
        self._take = take
        self._changed = changed
        self._ended = ended
        self.stops = tuple(dict.fromkeys((*ask.sampling.stop_tokens, *eos)))
        self._eos = frozenset(eos)
        self._stops = frozenset(self.stops)
        self._tokenizer = tokenizer
        self._text: OutputText | None = None
        self._decoded = 0  # number of tokens whose text is in `_text`
        self._has_stop_token = False

    @property
    def is_over(self) -> bool:
        """True if the sequence has ended, so that no further token follows."""
        return self.finish_reason is not None or self.error is not None

    @property
    def pieces(self) -> list[str]:
        """Text so far, in pieces; a later call returns the same pieces and perhaps more.

        Text is held back while later tokens may change it or may complete a stop text.
        """
        if self.error is None:
            self._decode()
        return [] if self._text is None else self._text.pieces

    def watch(self) -> None:
        """Take new tokens as they come, beginning with those that are there."""
        self.is_watched = True
        self._take(self)

    # ---- output of the scheduler ----------------------------------------------------------------

    def grow(self, state: DriverTrajectory) -> None:
        """Append the new tokens of the running turn, up to a stop token or stop text."""
        have = len(self.tokens)
        tokens = state.tokens[have:]
        if not tokens or self._has_stop_token or self.is_over:
            return
        if not self._stops.isdisjoint(tokens):
            tokens = self._until_stop(tokens, have)
        end = have + len(tokens)
        self.tokens += tokens
        self.logprobs += state.logprobs[have:end]
        self.versions += state.versions[have:end]
        if state.top_logprobs:
            self.top_logprobs += state.top_logprobs[have:end]
        self.cached_tokens, self.extras = state.cached_tokens, state.extras
        if self.ask.stop and self._decode():
            self._end()
        else:
            self._changed()

    def _until_stop(self, tokens: list[int], have: int) -> list[int]:
        """Return the first tokens, up to and including a token that ends the sequence."""
        least = self.ask.sampling.options.min_tokens
        for place, token in enumerate(tokens, 1):
            if token in self._stops and have + place > least:
                self._has_stop_token = True
                return tokens[:place]
        return tokens

    def finish(self, result: TurnResult) -> None:
        """Append the rest of the whole result, and end the sequence."""
        self.is_done = True
        if self.is_over:
            return
        have = len(self.tokens)
        self.tokens += result.tokens[have:]
        self.logprobs += result.logprobs[have:]
        self.versions += result.versions[have:]
        self.top_logprobs += result.top_logprobs[have:]
        self.cached_tokens, self.extras = result.cached_tokens, result.extras
        self.finish_reason = "length" if result.is_cut else "stop"
        self.stop_reason = result.stop_reason
        # An engine may know end tokens of its model that the service does not know.
        self._has_stop_token = not result.is_cut and not isinstance(result.stop_reason, str)
        if self._has_stop_token and self.tokens:
            last = self.tokens[-1]
            is_own = last in self.ask.sampling.stop_tokens and last not in self._eos
            self.stop_reason = last if is_own else None
        if self.ask.stop:
            self._decode()
        self._end()

    def fail(self, error: RoseError) -> None:
        """End the sequence with an error, unless it has ended before."""
        if not self.is_over:
            self.error = error
            self._end()

    def abort(self) -> None:
        """End the sequence with the tokens so far, unless it has ended before."""
        self._take(self)
        if not self.is_over:
            self.finish_reason = "abort"
            self._end()

    # ---- text -----------------------------------------------------------------------------------

    def _decode(self) -> bool:
        """Decode the new tokens; return True if they complete a stop text, which ends the output.

        The text of a stop token is left out, as vLLM does, unless the client wants it.
        """
        if self._tokenizer is None or (self._text is not None and self._text.is_over):
            return False
        if self._text is None:
            self._text = OutputText(
                self._tokenizer,
                skip_special_tokens=self.ask.skip_special_tokens,
                stops=self.ask.stop,
                is_including=self.ask.include_stop,
                min_tokens=self.ask.sampling.options.min_tokens,
            )
        end = len(self.tokens)
        if self._has_stop_token and not self.ask.include_stop:
            end -= 1
        if self._decoded >= end and not self.is_over:
            return False
        stop = self._text.add(self.tokens[self._decoded : end], is_last=self.is_over)
        self._decoded = max(end, self._decoded)
        if stop is None:
            return False
        self.finish_reason, self.stop_reason = "stop", stop.text
        for row in (self.tokens, self.logprobs, self.versions, self.top_logprobs):
            del row[stop.tokens :]
        return True

    def _end(self) -> None:
        self._ended(self)
        self._changed()
