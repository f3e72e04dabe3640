"""Agentic rollouts on simulated engines: conversations of a trace, and faults by a schedule.

An engine computes prompt tokens at a fixed rate, unless its prefix cache has them, and one token of
each turn in every step. Tokens depend on seed and position only, so a wrong, lost or doubled token
shows. All times are divided by `SPEED`.
"""

import asyncio
import csv
import gzip
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rose.adapters.trial import trial_token
from rose.scheduler import Capabilities
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
)

TRACE: Final = Path(__file__).resolve().parents[2] / "shared/traces/weka_agentic_compact.csv.gz"
ENGINES: Final = 8
SEATS: Final = 8
# Room for all contexts, and room for half of them.
ROOMY_TOKENS: Final = 160_000
TIGHT_TOKENS: Final = 40_000
SPEED: Final = 2.0
_STEP_S: Final = 0.01 / SPEED
_PREFILL_TOKENS_PER_S: Final = 20_000 * SPEED
_CHUNK_TOKENS: Final = 1024
_REPORT_TOKENS: Final = 4  # tokens of a turn that an engine reports together
# The trace's contexts and outputs are divided by these, and its tools' times limited.
_CONTEXT_SHARE: Final = 10
_OUTPUT_SHARE: Final = 4
_OUTPUT_TOKENS_MAX: Final = 400
_CONTEXT_TOKENS_MAX: Final = 30_000
_TOOL_S_MAX: Final = 60.0
_TOOL_SHARE: Final = 20 * SPEED
_DEDICATED_EVERY: Final = 4
_FAULT_EVERY_S: Final = 1.5 / SPEED
_DEATH_SHARE: Final = 0.25
_AWAY_S: Final = 1.0 / SPEED  # from a death to the engine that replaces it
_REVOKED_S: Final = 0.5 / SPEED


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation: tokens that its prompt adds, its output, and the tool's time."""

    new_tokens: int
    output_tokens: int
    tool_s: float


Conversation = tuple[Turn, ...]


def conversations(count: int, turns: int) -> list[Conversation]:
    """Return the first conversations of the trace that have enough turns and fit an engine."""
    rows: OrderedDict[str, list[dict[str, str]]] = OrderedDict()
    with gzip.open(TRACE, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            rows.setdefault(row["trace_id"], []).append(row)
    found = [_scaled(one[:turns]) for one in rows.values() if len(one) >= turns]
    return [one for one in found if _length(one) < _CONTEXT_TOKENS_MAX][:count]


def _scaled(rows: list[dict[str, str]]) -> Conversation:
    turns, held = [], 0
    for row in rows:
        context = max(int(row["input_tokens"]) // _CONTEXT_SHARE, held + 4)
        output = int(row["output_tokens"]) // _OUTPUT_SHARE
        output = max(4, min(_OUTPUT_TOKENS_MAX, output))
        tool_s = min(float(row["think_time_s"] or 0), _TOOL_S_MAX) / _TOOL_SHARE
        turns.append(Turn(context - held, output, tool_s))
        held = context + output
    return tuple(turns)


def _length(one: Conversation) -> int:
    return sum(turn.new_tokens + turn.output_tokens for turn in one)


@dataclass(slots=True)
class _Running:
    """A turn on an engine: tokens reported, tokens after these, and prompt tokens to compute."""

    request: TurnRequest
    prefill: int
    reported: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def generated(self) -> int:
        return self.reported + len(self.tokens)


class SimulatedEngine:
    """A `Worker` in real time, whose thread runs its steps.

    Args:
        number: number of the worker.
        kind: dedicated or borrowed.
        report: function that gets the events.
        kv_tokens: tokens that its turns and its prefix cache hold.
    """

    def __init__(
        self, number: int, kind: WorkerKind, report: Callable[[WorkerEvent], None], kv_tokens: int
    ) -> None:
        self.number, self.kind, self._report = number, kind, report
        self._size = kv_tokens
        self._lock = threading.RLock()
        self._turns: dict[int, _Running] = {}
        self._cache: OrderedDict[int, int] = OrderedDict()  # first tokens of a context → length
        self.epoch = self.kv_tokens = 0
        self.is_dead = False
        self.prefilled = self.decoded = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            SEATS, prefill_tokens_per_s=_PREFILL_TOKENS_PER_S, decode_step_ms=_STEP_S * 1e3
        )

    def grant(self) -> None:
        """Accept turns under a new grant."""
        with self._lock:
            self.epoch += 1
            self.kv_tokens = self._size
            self._report(GrantChanged(self.number, self.epoch, self.kv_tokens, 0.0))

    def revoke(self) -> None:
        """Return all turns, lose the cache, and end the grant."""
        with self._lock:
            for trajectory in list(self._turns):
                self.stop_turn(trajectory)
            self._cache.clear()
            self.kv_tokens = 0
            self._report(GrantChanged(self.number, self.epoch, 0, 0.0))

    def die(self, *, is_reported: bool = True) -> None:
        """End, with all turns."""
        with self._lock:
            self.is_dead = True
            self._turns.clear()
        if is_reported:
            self._report(WorkerLost(self.number, "it was killed"))
            return
        self._thread.join(_STEP_S * 1000)

    def start_turn(self, request: TurnRequest) -> None:
        with self._lock:
            if self.is_dead:
                return
            if not self.kv_tokens or request.grant_epoch != self.epoch:
                self._send(_Running(request, 0), TurnEnd.INTERRUPTED)
                return
            count = len(request.prompt)
            held = min(self._cache.pop(_name(request), 0), count - 1)
            self._turns[request.trajectory] = _Running(request, count - held)

    def stop_turn(self, trajectory: int) -> None:
        with self._lock:
            turn = self._turns.pop(trajectory, None)
            if turn is not None:
                self._keep(turn)
                self._send(turn, TurnEnd.INTERRUPTED)

    def _keep(self, turn: _Running) -> None:
        """Put the context of a turn into the cache; the oldest contexts make room."""
        request = turn.request
        self._cache[_name(request)] = len(request.prompt) + turn.generated - turn.prefill
        used = sum(len(one.request.prompt) + one.generated for one in self._turns.values())
        while self._cache and used + sum(self._cache.values()) > self._size:
            self._cache.popitem(last=False)

    def _run(self) -> None:
        while not self.is_dead:
            begin_s = time.monotonic()
            step_s = self._step()
            time.sleep(max(0.001, step_s - (time.monotonic() - begin_s)))

    def _step(self) -> float:
        """Compute one step, and return its duration in seconds."""
        with self._lock:
            running = list(self._turns.items())[:SEATS]
            budget = _CHUNK_TOKENS
            for _, turn in running:
                taken = min(budget, turn.prefill)
                turn.prefill -= taken
                budget -= taken
            computed = _CHUNK_TOKENS - budget
            self.prefilled += computed
            for trajectory, turn in running:
                if turn.prefill == 0:
                    self._decode(trajectory, turn)
        return _STEP_S * bool(running) + computed / _PREFILL_TOKENS_PER_S

    def _decode(self, trajectory: int, turn: _Running) -> None:
        request = turn.request
        place = len(request.prompt) + turn.generated
        turn.tokens.append(trial_token(request.seed, place, 0))
        self.decoded += 1
        if turn.generated == request.max_new_tokens:
            del self._turns[trajectory]
            self._keep(turn)
            self._send(turn, TurnEnd.FINISHED)
        elif len(turn.tokens) == _REPORT_TOKENS:
            self._send(turn, None)

    def _send(self, turn: _Running, end: TurnEnd | None) -> None:
        """Report the tokens that were not reported yet."""
        request, tokens = turn.request, tuple(turn.tokens)
        first = request.first_token + turn.reported
        where = request.trajectory, request.turn, request.grant_epoch, first
        turn.reported += len(tokens)
        turn.tokens.clear()
        count = len(tokens)
        self._report(TurnOutput(self.number, *where, tokens, (0.0,) * count, (0,) * count, end))


def _name(request: TurnRequest) -> int:
    """Return a key of the conversation: contexts of different ones begin differently."""
    return hash(tuple(request.prompt[:16]))


class Door(Protocol):
    """A way to the engines that is compared."""

    def receive(self, event: WorkerEvent) -> None: ...

    async def register(self, engine: SimulatedEngine) -> None: ...

    async def generate(
        self, number: int, turn: int, prompt: list[int], max_tokens: int, seed: int
    ) -> list[int]: ...

    async def finish(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Played:
    """What one run took.

    Args:
        time_s: from the first request to the last answer.
        prefilled: prompt tokens that engines computed.
        least: prompt tokens that one engine with an endless cache would compute.
        decoded_over_needed: tokens that engines generated ÷ tokens of all answers.
        wrong_turns: turns with a wrong, lost or doubled token.
    """

    time_s: float
    prefilled: int
    least: int
    decoded_over_needed: float
    wrong_turns: int


class _Faults:
    """Kills or revokes an engine every 1.5 s, by a schedule that depends on the seed alone."""

    def __init__(self, fleet: "_Engines", seed: int) -> None:
        self._fleet, self._draw = fleet, random.Random(seed)

    async def run(self) -> None:
        draw = self._draw
        while True:
            await asyncio.sleep(draw.uniform(0.6, 1.4) * _FAULT_EVERY_S)
            place, is_death = draw.randrange(ENGINES), draw.random() < _DEATH_SHARE
            if is_death:
                await self._fleet.replace(place)
            elif self._fleet.now[place].kind is WorkerKind.BORROWED:
                engine = self._fleet.now[place]
                engine.revoke()
                await asyncio.sleep(_REVOKED_S)
                engine.grant()


class _Engines:
    """The engines of a run."""

    def __init__(self, door: Door, kv_tokens: int) -> None:
        self._door, self._kv_tokens = door, kv_tokens
        self.all: list[SimulatedEngine] = []
        self.now: list[SimulatedEngine] = []

    async def begin(self) -> None:
        for place in range(ENGINES):
            self.now.append(await self._add(place))

    async def replace(self, place: int) -> None:
        self.now[place].die()
        await asyncio.sleep(_AWAY_S)
        self.now[place] = await self._add(place)

    async def _add(self, place: int) -> SimulatedEngine:
        is_dedicated = place % _DEDICATED_EVERY == 0
        kind = WorkerKind.DEDICATED if is_dedicated else WorkerKind.BORROWED
        engine = SimulatedEngine(len(self.all), kind, self._door.receive, self._kv_tokens)
        self.all.append(engine)
        await self._door.register(engine)
        engine.grant()
        return engine

    def end(self) -> None:
        for engine in self.all:
            engine.die(is_reported=False)


async def play(
    door: Door, talks: list[Conversation], *, kv_tokens: int, faults_seed: int | None
) -> Played:
    """Run all conversations at once through a door."""
    engines = _Engines(door, kv_tokens)
    wrong = 0

    async def one(number: int, talk: Conversation) -> None:
        nonlocal wrong
        draw, context = random.Random(number), list[int]()
        for turn, wanted in enumerate(talk):
            context += [draw.randrange(1, 255) for _ in range(wanted.new_tokens)]
            seed = number * 1000 + turn
            right = list(_tokens(seed, len(context), wanted.output_tokens))
            got = await door.generate(number, turn, context, wanted.output_tokens, seed)
            wrong += got != right
            context += right
            await asyncio.sleep(wanted.tool_s)
        await door.finish(number)

    await engines.begin()
    faults = None
    if faults_seed is not None:
        faults = asyncio.create_task(_Faults(engines, faults_seed).run())
    begin_s = time.monotonic()
    try:
        await asyncio.gather(*(one(number, talk) for number, talk in enumerate(talks)))
        time_s = time.monotonic() - begin_s
    finally:
        if faults is not None:
            faults.cancel()
        engines.end()
    needed = sum(turn.output_tokens for talk in talks for turn in talk)
    return Played(
        time_s=time_s,
        prefilled=sum(engine.prefilled for engine in engines.all),
        least=sum(turn.new_tokens for talk in talks for turn in talk),
        decoded_over_needed=sum(engine.decoded for engine in engines.all) / needed,
        wrong_turns=wrong,
    )


def _tokens(seed: int, place: int, count: int) -> Iterator[int]:
    return (trial_token(seed, place + at, 0) for at in range(count))
