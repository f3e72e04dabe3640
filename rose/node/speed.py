"""How fast an engine is: measured once, before it is served, so that turns are placed well."""

import itertools
import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rose.clock import Clock
from rose.errors import DeadlineExceeded, Unavailable
from rose.units import NS_PER_MS, NS_PER_S

PREFILL_TOKENS: Final = 256
DECODE_TOKENS: Final = 16
_ROUNDS: Final = 3
# A step costs something besides its sequences, whatever noise says.
_SHARE_MAX: Final = 0.9
_WAIT_S: Final = 120.0
# Prompts are made of ids that every vocabulary has, no two alike: cached KV would be too fast.
_IDS: Final = 96


class Submits(Protocol):
    """An engine, as far as it is measured."""

    def submit(
        self, request_id: str, prompt: list[int], *, max_new_tokens: int, on_output: Any
    ) -> None:
        """Queue a request; `on_output` is called for every token."""
        ...


@dataclass(frozen=True, slots=True)
class Speed:
    """What a step costs: `decode_step_ms + n * decode_ms_per_sequence` for n sequences.

    Args:
        prefill_tokens_per_s: of one prompt alone.
        decode_step_ms: the part of a step that does not depend on how many sequences it has.
        decode_ms_per_sequence: what each sequence adds.
    """

    prefill_tokens_per_s: float
    decode_step_ms: float
    decode_ms_per_sequence: float


class _Trial:
    """Requests that run together, and when each of their tokens came."""

    def __init__(self, engine: Submits, clock: Clock, name: str) -> None:
        self._engine = engine
        self._clock = clock
        self._name = name

    def run(self, requests: int, *, prompt_tokens: int, new_tokens: int) -> list[list[int]]:
        """Return the time of the start and of each token, per request, in nanoseconds."""
        times: list[list[int]] = [[] for _ in range(requests)]
        left = threading.Semaphore(0)
        failures: list[Any] = []
        for number in range(requests):
            times[number].append(self._clock.now_ns())
            self._engine.submit(
                f"{self._name}-{number}",
                _prompt(f"{self._name}-{number}", prompt_tokens),
                max_new_tokens=new_tokens,
                on_output=self._callback(times[number], left, failures),
            )
        for _ in range(requests):
            if not left.acquire(timeout=_WAIT_S):
                raise DeadlineExceeded(f"the engine said nothing for {_WAIT_S} s when measured")
        if failures:
            raise Unavailable(f"the engine cannot be measured: {failures[0]}")
        return times

    def _callback(
        self, times: list[int], left: threading.Semaphore, failures: list[Any]
    ) -> Callable[[Any], None]:
        def on_output(output: Any) -> None:
            times.append(self._clock.now_ns())
            if output.is_finished():
                if output.error:
                    failures.append(output.error)
                left.release()

        return on_output


def _prompt(name: str, tokens: int) -> list[int]:
    seed = sum(name.encode())
    return [1 + (seed + index * (seed % 7 + 1)) % _IDS for index in range(tokens)]


def measure(engine: Submits, clock: Clock, *, seats: int) -> Speed:
    """Measure an engine that runs and has nothing to do.

    Args:
        engine: takes prompts of `PREFILL_TOKENS`, and `seats` requests at once.
        clock: where time comes from.
        seats: the most sequences in a step.

    Raises:
        DeadlineExceeded: it does not answer.
        Unavailable: its requests fail.
    """

    def trial(name: str, requests: int, prompt_tokens: int, new_tokens: int) -> list[list[int]]:
        one = _Trial(engine, clock, f"measure-{name}")
        return one.run(requests, prompt_tokens=prompt_tokens, new_tokens=new_tokens)

    trial("warm", 1, PREFILL_TOKENS, 2)  # The first step pays for what is made once.
    prefills = [trial(f"prefill{n}", 1, PREFILL_TOKENS, 1)[0] for n in range(_ROUNDS)]
    prefill_ns = statistics.median(first - start for start, first, *_ in prefills)
    alone_ms = _step_ms(trial("alone", 1, 1, DECODE_TOKENS))
    if seats == 1:
        return Speed(PREFILL_TOKENS * NS_PER_S / max(prefill_ns, 1), alone_ms, 0.0)
    full_ms = _step_ms(trial("full", seats, 1, DECODE_TOKENS))
    # Noise must not make a sequence cheaper than nothing, or a step.
    per_sequence_ms = min(max((full_ms - alone_ms) / (seats - 1), 0.0), _SHARE_MAX * alone_ms)
    return Speed(
        prefill_tokens_per_s=PREFILL_TOKENS * NS_PER_S / max(prefill_ns, 1),
        decode_step_ms=alone_ms - per_sequence_ms,
        decode_ms_per_sequence=per_sequence_ms,
    )


def _step_ms(times: list[list[int]]) -> float:
    """Return the usual time between two tokens of the last request, which had company longest."""
    tokens = times[-1][1:]
    median_ns = statistics.median(b - a for a, b in itertools.pairwise(tokens))
    return max(median_ns, 1) / NS_PER_MS
