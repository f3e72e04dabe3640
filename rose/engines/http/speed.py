"""The speed of an engine: measured once when it joins, then from the tokens of its turns."""

import asyncio
import itertools
import statistics
from typing import Final

import aiohttp

from rose.clock import Clock
from rose.engines.http.bodies import body_of, path_of
from rose.engines.http.facts import EngineFacts, EngineSpeed
from rose.engines.http.link import Link, failure_of, within
from rose.errors import DeadlineExceeded, Unavailable
from rose.scheduler.worker import Options, TurnRequest
from rose.units import NS_PER_MS, NS_PER_S

PREFILL_TOKENS: Final = 256
DECODE_TOKENS: Final = 16
MEASURE_S: Final = 20.0
# EngineSpeed until the first turns were measured, if the engine does not answer in time.
ASSUMED: Final = EngineSpeed(
    prefill_tokens_per_s=4000.0, decode_step_ms=20.0, decode_ms_per_sequence=0.5
)
_ROUNDS: Final = 3
_TOGETHER: Final = 8
# Maximum share of a step's time for one sequence: noise must not hide the fixed costs of a step.
_SHARE_MAX: Final = 0.9
# Prompts use ids that every vocabulary has. They differ, so none hits the prefix cache.
_IDS: Final = 96

_REPORT_S: Final = 10.0
_REPORT_FACTOR: Final = 1.25
_TOKENS_MIN: Final = 64


async def measure(link: Link, facts: EngineFacts, clock: Clock) -> EngineSpeed:
    """Measure an engine with a few small requests.

    Raises:
        DeadlineExceeded: the requests took longer than `MEASURE_S`.
        Unavailable: a request failed.
    """
    try:
        return await within(MEASURE_S, _measure(link, facts, clock))
    except asyncio.TimeoutError:
        raise DeadlineExceeded(
            f"the requests that measure {link.url} did not end within {MEASURE_S} s"
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise failure_of(link.url, error) from error


async def _measure(link: Link, facts: EngineFacts, clock: Clock) -> EngineSpeed:
    context = facts.holds() or PREFILL_TOKENS + DECODE_TOKENS
    long, new = max(1, min(PREFILL_TOKENS, context - DECODE_TOKENS)), min(DECODE_TOKENS, context)
    numbers = itertools.count(1)

    async def run(tokens: int, count: int) -> list[int]:
        request = _request(next(numbers), facts, tokens, count)
        async with link.post(path_of(facts), body_of(request, facts)) as answer:
            if answer.status != 200:
                raise Unavailable(f"a request that measures {link.url} got {answer.status}")
            times = [clock.now_ns()]
            times += [clock.now_ns() async for line in answer.content if line[:6] == b"data: "]
            return times

    await run(long, 2)  # The first step includes one-time costs.
    prefills = []
    for _ in range(_ROUNDS):
        started = clock.now_ns()
        prefills.append((await run(long, 1))[1] - started)
    rate = long * NS_PER_S / max(statistics.median(prefills), 1)
    alone_ms = _step_ms(await run(1, new), new)
    together = min(facts.seats or _TOGETHER, _TOGETHER)
    if together == 1:
        return EngineSpeed(rate, alone_ms, 0.0)
    full = await asyncio.gather(*(run(1, new) for _ in range(together)))
    full_ms = statistics.median(_step_ms(times, new) for times in full)
    # Despite noise, neither a sequence nor the fixed part may have a negative cost.
    each_ms = min(max((full_ms - alone_ms) / (together - 1), 0.0), _SHARE_MAX * alone_ms)
    return EngineSpeed(rate, alone_ms - each_ms, each_ms)


def _request(number: int, facts: EngineFacts, tokens: int, count: int) -> TurnRequest:
    ids = min(_IDS, max(facts.vocabulary or _IDS, 2) - 1)
    prompt = tuple(1 + (number + place * (number % 7 + 1)) % ids for place in range(tokens))
    options = Options(ignore_eos=True)
    # Greedy, because a prompt in two chunks with a random generator ends a vLLM 0.32 on CPUs.
    return TurnRequest(0, 0, 0, prompt, 0, count, (), 0.0, number, options)


def _step_ms(times: list[int], tokens: int) -> float:
    """Return milliseconds per token, from the time of the answer and of its events."""
    first, last = times[1], times[-1]
    return max((last - first) / max(tokens - 1, 1), 1) / NS_PER_MS


class Pace:
    """Compares the tokens of an engine's turns with its speed.

    Args:
        speed: speed by which the scheduler places turns.
        clock: source of times.
    """

    def __init__(self, speed: EngineSpeed, clock: Clock) -> None:
        self.speed = speed
        self._clock = clock
        self._reported_ns = clock.now_ns()
        self._tokens = 0
        self._taken_ms = 0.0
        self._expected_ms = 0.0

    def add(self, tokens: int, taken_ms: float, running: int) -> None:
        """Count decoded tokens of one turn.

        Args:
            tokens: number of tokens.
            taken_ms: time since the turn's tokens before them.
            running: turns that the engine ran meanwhile.
        """
        self._tokens += tokens
        self._taken_ms += taken_ms
        self._expected_ms += tokens * self.speed.step_ms(running)

    def changed(self) -> EngineSpeed | None:
        """Return the new speed, if it differs enough and the last report is old enough."""
        now = self._clock.now_ns()
        if self._tokens < _TOKENS_MIN or now - self._reported_ns < _REPORT_S * NS_PER_S:
            return None
        ratio = self._taken_ms / max(self._expected_ms, 1e-6)
        self._tokens, self._taken_ms, self._expected_ms = 0, 0.0, 0.0
        if 1 / _REPORT_FACTOR <= ratio <= _REPORT_FACTOR:
            return None
        self._reported_ns = now
        old = self.speed
        # Prefill runs on the same device, beside the same load.
        self.speed = EngineSpeed(
            old.prefill_tokens_per_s / ratio,
            max(old.decode_step_ms * ratio, 1e-3),
            old.decode_ms_per_sequence * ratio,
        )
        return self.speed
