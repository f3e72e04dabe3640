"""Measure an engine's speed once, before its worker is served; turns are placed by this speed."""

import itertools
import statistics
import threading
from collections.abc import Callable
from typing import Any, Final

from rose.clock import Clock
from rose.engines.http import EngineSpeed
from rose.engines.transformers import Engine
from rose.errors import DeadlineExceeded, Unavailable
from rose.units import NS_PER_MS, NS_PER_S

PREFILL_TOKENS: Final = 256
DECODE_TOKENS: Final = 16
_ROUNDS: Final = 3
# Maximum share of a step's time for one sequence: noise must not hide the fixed costs of a step.
_SHARE_MAX: Final = 0.9
_WAIT_S: Final = 120.0
# Prompts use ids that every vocabulary has. The long prompts differ, so none hits the prefix cache.
_IDS: Final = 96


class _Trial:
    """Concurrent requests, with the time of each token."""

    def __init__(self, engine: Engine, clock: Clock, name: str, wait_s: float) -> None:
        self._wait_s = wait_s
        self._engine = engine
        self._clock = clock
        self._name = name

    def run(self, requests: int, *, prompt_tokens: int, new_tokens: int) -> list[list[int]]:
        """Return start time and token times of each request, in nanoseconds."""
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
            if not left.acquire(timeout=self._wait_s):
                raise DeadlineExceeded(
                    f"a request that measures the engine did not end within {self._wait_s} s"
                )
        if failures:
            raise Unavailable(f"a request that measures the engine failed: {failures[0]}")
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


def measure(engine: Engine, clock: Clock, *, seats: int, wait_s: float = _WAIT_S) -> EngineSpeed:
    """Measure a running, idle engine.

    Args:
        engine: engine that accepts prompts of `PREFILL_TOKENS` tokens and `seats` requests at once.
        clock: time source.
        seats: maximum sequences in a step.
        wait_s: longest time for one request.

    Raises:
        DeadlineExceeded: the engine does not answer.
        Unavailable: a request fails.
    """

    def trial(name: str, requests: int, prompt_tokens: int, new_tokens: int) -> list[list[int]]:
        one = _Trial(engine, clock, f"measure-{name}", wait_s)
        return one.run(requests, prompt_tokens=prompt_tokens, new_tokens=new_tokens)

    trial("warm", 1, PREFILL_TOKENS, 2)  # The first step includes one-time costs.
    prefills = [trial(f"prefill{n}", 1, PREFILL_TOKENS, 1)[0] for n in range(_ROUNDS)]
    prefill_ns = statistics.median(first - start for start, first, *_ in prefills)
    alone_ms = _step_ms(trial("alone", 1, 1, DECODE_TOKENS))
    if seats == 1:
        return EngineSpeed(PREFILL_TOKENS * NS_PER_S / max(prefill_ns, 1), alone_ms, 0.0)
    full_ms = _step_ms(trial("full", seats, 1, DECODE_TOKENS))
    # Despite noise, neither a sequence nor the fixed part may have a negative cost.
    per_sequence_ms = min(max((full_ms - alone_ms) / (seats - 1), 0.0), _SHARE_MAX * alone_ms)
    return EngineSpeed(
        prefill_tokens_per_s=PREFILL_TOKENS * NS_PER_S / max(prefill_ns, 1),
        decode_step_ms=alone_ms - per_sequence_ms,
        decode_ms_per_sequence=per_sequence_ms,
    )


def _step_ms(times: list[list[int]]) -> float:
    """Return the median ms per token of the last request, which ran longest beside the others."""
    tokens = times[-1][1:]
    median_ns = statistics.median(b - a for a, b in itertools.pairwise(tokens))
    return max(median_ns, 1) / NS_PER_MS
