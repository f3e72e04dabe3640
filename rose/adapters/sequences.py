"""Sequences in flight, and their tokens so far."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from rose.errors import RoseError
from rose.scheduler.driver_trajectory import DriverTrajectory
from rose.scheduler.turns import Sampling, TurnResult
from rose.scheduler.versions import VersionRange

# A trajectory's seed has 40 bits; clients may send more.
_SEED_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence that a client requests.

    Args:
        prompt: token ids of the prompt.
        sampling: sampling parameters.
        seed: seed of the sampling.
        versions: versions of weights that may generate the tokens.
        stop: texts that end the sequence.
        include_stop: whether a stop text is part of the output.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    versions: VersionRange
    stop: tuple[str, ...] = ()
    include_stop: bool = False


def seed_of(seed: int | None, place: int, draw: random.Random) -> int:
    """Return the seed of one sequence of a request.

    Args:
        seed: the client's seed; None: a random seed.
        place: index of the sequence in its request. The sequences of a request get different seeds.
        draw: source of random seeds.
    """
    if seed is None:
        return draw.getrandbits(8 * _SEED_BYTES)
    text = f"{seed}/{place}".encode()
    return int.from_bytes(blake2b(text, digest_size=_SEED_BYTES).digest(), "little")


class SequenceInFlight:
    """One sequence of a request, with its tokens so far. For the event loop's thread only.

    Args:
        number: number of the sequence's trajectory in the scheduler.
        ask: the client's request for this sequence.
        changed: function to call after each change.
    """

    def __init__(self, number: int, ask: Ask, changed: Callable[[], None]) -> None:
        self.number = number
        self.ask = ask
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.cached_tokens = 0
        self.stop_reason: int | str | None = None
        self.extras: Mapping[str, Any] = {}
        self.finish_reason: str | None = None
        self.error: RoseError | None = None
        self.is_done = False  # whether the scheduler has returned the whole result
        self._changed = changed
        self.stops = frozenset(ask.sampling.stop_tokens)

    @property
    def is_over(self) -> bool:
        """True if the sequence has ended, so that no further token follows."""
        return self.finish_reason is not None or self.error is not None

    def grow(self, state: DriverTrajectory) -> None:
        """Append the new tokens of the trajectory, up to a stop token."""
        have = len(self.tokens)
        if self.is_over or (have and self.tokens[-1] in self.stops):
            return
        tokens = state.tokens[have:]
        if self.stops:
            last = next((at for at, token in enumerate(tokens) if token in self.stops), None)
            tokens = tokens if last is None else tokens[: last + 1]
        end = have + len(tokens)
        self._append(tokens, state.logprobs[have:end], state.versions[have:end])

    def finish(self, result: TurnResult) -> None:
        """Append the rest of the whole result, and end the sequence."""
        self.is_done = True
        if self.is_over:
            return
        self.top_logprobs = list(result.top_logprobs)
        self.cached_tokens, self.extras = result.cached_tokens, result.extras
        self.stop_reason = result.stop_reason
        have = len(self.tokens)
        self._append(
            list(result.tokens[have:]), list(result.logprobs[have:]), list(result.versions[have:])
        )
        if self.error is None:
            self.finish_reason = "length" if result.is_cut else "stop"
        self._changed()

    def fail(self, error: RoseError) -> None:
        """End the sequence with an error, unless it has ended before."""
        if not self.is_over:
            self.error = error
            self._changed()

    def abort(self) -> None:
        """End the sequence with the tokens so far, unless it has ended before."""
        if not self.is_over:
            self.finish_reason = "abort"
            self._changed()

    def _append(self, tokens: list[int], logprobs: list[float], versions: list[int]) -> None:
        wanted = self.ask.versions
        if not wanted.is_any:
            for version in versions:
                if not wanted.fits(version):
                    self.error = wanted.conflict((version,))
                    break
        if self.error is None:
            self.tokens += tokens
            self.logprobs += logprobs
            self.versions += versions
        if tokens:
            self._changed()
