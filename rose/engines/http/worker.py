"""A worker of the scheduler that is an engine behind HTTP routes, on any machine."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import aiohttp
import msgspec

from rose.clock import BootClock, Clock
from rose.engines.http.bodies import body_of, is_streamed, path_of
from rose.engines.http.events import EventStream
from rose.engines.http.exchange import Exchanges, Reply
from rose.engines.http.facts import Dialect, EngineFacts, EngineSpeed
from rose.engines.http.link import Disconnected, Link, message_of
from rose.engines.http.speed import ASSUMED, Pace
from rose.engines.http.streams import TurnPart, add_completion, add_sglang
from rose.errors import CorruptData, InvalidArgument, RoseError, Unavailable, sentence
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerLost,
)
from rose.units import NS_PER_MS

# Sequences at once, if the engine does not tell: the default of vLLM.
SEATS: Final = 256
_HEALTH_S: Final = 1.0  # between two checks
_FAILURES: Final = 3  # checks in a row, after which the engine counts as lost
# Time limits of a check. SGLang generates a token for each, and takes at least a second.
_DEADLINE_S: Final = {Dialect.SGLANG: 5.0}
_DEADLINE_ELSE_S: Final = 2.0
_RETRY_AFTER_S: Final = 1.0
_RETRY_AFTER_MAX_S: Final = 30.0
_REST_S: Final = 1.0  # for the rest of an answer whose turn has ended
# Answers that another try may change, and answers for which the worker is to blame.
_LATER: Final = frozenset({408, 409, 425, 429, 503})
_NOT_OURS: Final = frozenset({401, 403, 404, 405})
_OK: Final = 200
_SERVER_ERROR: Final = 500


class _Turn:
    """A turn on the engine."""

    __slots__ = ("made", "part", "request", "rest", "task", "told_ns")

    def __init__(self, request: TurnRequest, version: int) -> None:
        self.request = request
        self.part = TurnPart(version, request.options.logprobs)
        self.made = 0  # tokens that were reported
        self.told_ns = 0  # time of the last of them
        self.rest = b""  # the beginning of an event
        self.task: asyncio.Task[None] | None = None


class HttpWorker:
    """Runs turns on an engine. All its methods belong to the event loop's thread.

    Life: `run` opens the worker and watches the engine until it is lost; the last event is then a
    `WorkerLost`, and later requests are dropped. An engine that comes back gets another HttpWorker
    under the same number, whose grant epochs are higher.

    Args:
        number: number of the worker.
        url: URL of the engine.
        on_event: receives the worker's events; it must not wait.
        session: session of `open_session`.
        facts: facts of the engine.
        token: bearer token of the engine.
        tls: context for https; None: the system's authorities.
        epoch: epoch of the last grant that the number had before.
        speed: speed by which the scheduler places turns.
        on_speed: receives a measured speed that differs much from the last one.
        clock: source of times.
    """

    def __init__(
        self,
        number: int,
        url: str,
        on_event: Callable[[WorkerEvent], None],
        *,
        session: aiohttp.ClientSession,
        facts: EngineFacts,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        epoch: int = 0,
        speed: EngineSpeed = ASSUMED,
        on_speed: Callable[[EngineSpeed], Coroutine[Any, Any, None]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.number = number
        self.kind = facts.kind
        self.facts = facts
        self.version = facts.version or 0
        self.is_torn = facts.version is None  # whether nobody knows the engine's weights
        self.is_following = False  # whether the engine was told the publisher's address
        self.epoch = epoch
        self.kv_tokens = 0  # of the present grant; 0: there is none
        self.wait: dict[str, Any] | None = None  # why a borrower gets no step
        self.link = Link(session, url, token, tls)
        self._exchanges = Exchanges(url, token=token, tls=tls)
        self._is_sglang = facts.dialect is Dialect.SGLANG
        self._report = on_event
        self._on_speed = on_speed
        self._clock = clock or BootClock()
        self._pace = Pace(speed, self._clock)
        self._turns: dict[int, _Turn] = {}
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # The present grant at an engine with events: epoch there, tokens, life.
        self._told: tuple[int, int, float] | None = None
        self._is_held = False  # whether no grant is reported, because weights are loaded
        self._checking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Number of turns on the engine."""
        return len(self._turns)

    @property
    def speed(self) -> EngineSpeed:
        """EngineSpeed of the engine, as it was measured last."""
        return self._pace.speed

    # ---- life -----------------------------------------------------------------------------------

    async def run(self) -> str:
        """Open the worker, watch its engine until it is lost, and return the reason."""
        watching = [self._watch_health()]
        if self.facts.dialect is Dialect.ROSE:
            watching.append(EventStream(self.link, self._on_event, self._on_silence).follow())
        elif not self.is_torn:
            self.release()
        for one in watching:
            self.accompany(one)
        try:
            return await asyncio.shield(self._lost)
        finally:
            self.lose("it was closed")

    def lose(self, reason: str, *, is_death: bool = False) -> None:
        """Report the worker as lost, and close all its streams. A second call does nothing.

        Args:
            reason: why.
            is_death: whether a turn may be what ended the engine. Otherwise all turns are returned
                before the loss, so that none is blamed for it.
        """
        if self._lost.done():
            return
        if not is_death:
            for trajectory in tuple(self._turns):
                self.stop_turn(trajectory)
        self._lost.set_result(reason)
        self._turns.clear()
        for task in self._tasks:
            task.cancel()
        self._exchanges.close()
        self._report(WorkerLost(self.number, reason))

    def accompany(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until the worker is lost; if the work fails, the worker is lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.lose(f"its worker failed inside rose ({sentence(error)})")

    # ---- grants and versions --------------------------------------------------------------------

    def grant(self, kv_tokens: int, ttl_ms: float = 0.0, *, is_new: bool = True) -> None:
        """Report a grant, or another size or life of the present one."""
        if kv_tokens == 0:
            self.revoke()
            return
        self.epoch += is_new or self.kv_tokens == 0
        self.kv_tokens = kv_tokens
        self._report(GrantChanged(self.number, self.epoch, kv_tokens, ttl_ms))

    def revoke(self) -> None:
        """Return all turns, then report that there is no grant."""
        if self.kv_tokens:
            self.kv_tokens = 0
            for trajectory in tuple(self._turns):
                self.stop_turn(trajectory)
            self._report(GrantChanged(self.number, self.epoch, 0, 0.0))

    def hold(self) -> None:
        """Return all turns, and report no grant until `release`."""
        self._is_held = True
        self.revoke()

    def release(self) -> None:
        """Report a new grant of what the engine has now.

        A dedicated engine that does not tell its KV tokens is limited by its seats only.
        """
        self._is_held = False
        if self._lost.done():
            return
        facts = self.facts
        if facts.dialect is Dialect.ROSE:
            if self._told is not None:
                self.grant(*self._told[1:])
        else:
            self.grant(facts.kv_tokens or (facts.seats or SEATS) * (facts.context_tokens or 1))

    def commit(self, version: int, *, is_match: bool = True, pause_ms: float = 0.0) -> None:
        """Report the version that the engine has now."""
        self.version, self.is_torn = version, False
        for turn in self._turns.values():
            turn.part.version = version
        self._report(VersionCommitted(self.number, version, is_match, pause_ms))

    def _on_event(self, name: str, data: dict[str, Any]) -> None:
        """Act on an event of `/rose/events`."""
        try:
            if not self._lost.done():
                self._act(name, data)
        except (KeyError, TypeError, ValueError) as error:
            self.lose(f"its event '{name}' is invalid: {sentence(error)}")

    def _act(self, name: str, data: dict[str, Any]) -> None:
        match name:
            case "status" if data.get("instance") != self.facts.instance:
                self.lose("its process was restarted", is_death=True)
            case "grant":
                was = self._told
                self._told = int(data["grant_epoch"]), int(data["kv_tokens"]), float(data["ttl_ms"])
                if not self._is_held:
                    self.grant(*self._told[1:], is_new=was is None or was[0] != self._told[0])
            case "version":
                version, is_match = int(data["version"]), bool(data["is_match"])
                if version != self.version or not is_match:
                    self.commit(version, is_match=is_match, pause_ms=float(data["pause_ms"]))
            case "wait":
                self.wait = data if data["reason"] else None
            case "lost":
                self.lose(str(data["reason"]))

    def _on_silence(self, reason: str) -> None:
        """Treat missing events as a revocation, because one may be among them."""
        self._told = None
        self.wait = {"reason": reason}
        self.revoke()

    # ---- turns ----------------------------------------------------------------------------------

    def start_turn(self, request: TurnRequest) -> None:
        """Start a turn. A turn for an earlier grant is interrupted at once."""
        if self._lost.done():
            return
        turn = _Turn(request, self.version)
        if not self.kv_tokens or request.grant_epoch != self.epoch:
            self._send(turn, TurnEnd.INTERRUPTED)
            return
        self._turns[request.trajectory] = turn
        turn.task = self.accompany(self._run(turn))

    def stop_turn(self, trajectory: int) -> None:
        """Close the stream of a turn; its last output has all tokens that were received."""
        turn = self._turns.get(trajectory)
        if turn is None:
            return
        if turn.task is not None:
            turn.task.cancel()
        # The tokens of an ended turn wait for the answer's usage only.
        self._end(turn, turn.part.end or TurnEnd.INTERRUPTED)

    async def _run(self, turn: _Turn) -> None:
        """Run a turn. Every path ends in one `_end`, or in the loss of the worker."""
        try:
            error = await self._attempt(turn)
            if error is not None and not turn.part.seen and not isinstance(error, Disconnected):
                error = await self._attempt(turn)  # An idle connection was closed just then.
        except InvalidArgument as refusal:
            self._end(turn, TurnEnd.REFUSED, str(refusal))
        except (msgspec.DecodeError, CorruptData, ValueError) as fault:
            self._end(turn, TurnEnd.FAILED, f"the answer of {self.link.url} is invalid: {fault}")
        else:
            if error is not None:
                await self._verify()
                end = TurnEnd.INTERRUPTED if turn.part.seen else TurnEnd.FAILED
                self._end(turn, end, None if turn.part.seen else str(error))

    async def _attempt(self, turn: _Turn) -> Unavailable | None:
        """Send the request and read the answer; return the error of a broken connection."""
        part, is_one_by_one = turn.part, is_streamed(turn.request)
        body = body_of(turn.request, self.facts)
        on_data = partial(self._read if is_one_by_one else self._gather, turn)
        turn.rest = b""
        try:
            reply = await self._exchanges.run(path_of(self.facts), body, on_data)
        except Unavailable as error:
            if part.end is None:
                return error
        else:
            if reply.status != _OK:
                await self._rejected(turn, reply)
                return None
            if not is_one_by_one:
                add_completion(part, turn.rest, is_whole=True)
            if part.end is None:
                return Unavailable(f"{self.link.url} ended its answer early")
        if part.end is TurnEnd.FAILED:
            await self._verify()
        self._end(turn, part.end, part.error)
        return None

    def _gather(self, turn: _Turn, data: bytes, _: Callable[[float], None]) -> None:
        turn.rest += data

    def _read(self, turn: _Turn, data: bytes, expire: Callable[[float], None]) -> None:
        """Read a piece of a stream; the tokens of all its events are one output."""
        part = turn.part
        lines = (turn.rest + data if turn.rest else data).split(b"\n")
        turn.rest = lines.pop()
        for line in lines:
            if line[:5] != b"data:" or part.is_complete:
                continue
            if line[6:7] == b"[":
                part.is_complete = part.end is not None
            elif self._is_sglang:
                add_sglang(part, line[5:], is_cumulative=not self.facts.is_incremental)
            else:
                add_completion(part, line[5:])
        if part.is_complete:
            expire(_REST_S)
            if part.end is not TurnEnd.FAILED:
                self._end(turn, part.end or TurnEnd.FAILED, part.error)
        elif part.tokens and part.end is None and not turn.request.options.is_whole:
            self._send(turn)

    async def _rejected(self, turn: _Turn, reply: Reply) -> None:
        """End a turn whose request got another status than 200."""
        message = message_of(reply.status, reply.body)
        if reply.status in _NOT_OURS:
            self.lose(message)
        elif reply.status in _LATER:
            await asyncio.sleep(wait_s(reply.retry_after))
            self._end(turn, TurnEnd.INTERRUPTED)
        elif reply.status < _SERVER_ERROR:
            self._end(turn, TurnEnd.REFUSED, message)
        else:
            await self._verify()
            self._end(turn, TurnEnd.FAILED, message)

    def _end(self, turn: _Turn, end: TurnEnd, error: str | None = None) -> None:
        """Report the end of a turn, unless it was reported before."""
        number = turn.request.trajectory
        if self._turns.get(number) is turn:
            del self._turns[number]
            if turn.request.options.is_whole and end is not TurnEnd.FINISHED:
                turn.part.clear()
            self._send(turn, end, error)

    def _send(self, turn: _Turn, end: TurnEnd | None = None, error: str | None = None) -> None:
        part, of, now_ns = turn.part, turn.request, self._clock.now_ns()
        count, stop = len(part.tokens), part.stop_reason
        if turn.told_ns and count:
            self._pace.add(count, (now_ns - turn.told_ns) / NS_PER_MS, len(self._turns) or 1)
        turn.told_ns = now_ns
        output = TurnOutput(
            self.number,
            of.trajectory,
            of.turn,
            of.grant_epoch,
            of.first_token + turn.made,
            tuple(part.tokens),
            tuple(part.logprobs),
            tuple(part.versions),
            end,
            error,
            tuple(part.top_logprobs),
            part.cached_tokens,
            stop if isinstance(stop, str) or stop in of.stop_tokens else None,
            part.extras,
        )
        turn.made += count
        part.clear()
        self._report(output)

    # ---- health ---------------------------------------------------------------------------------

    async def _watch_health(self) -> None:
        failures = 0
        while not self._lost.done():
            await asyncio.sleep(_HEALTH_S)
            try:
                await self._check()
                failures = 0
            except Disconnected as error:
                self.lose(str(error), is_death=True)
            except RoseError as error:
                failures += 1
                if failures == _FAILURES:
                    reason = f"{failures} health checks in a row failed: {error}"
                    self.lose(reason, is_death=True)
            if (speed := self._pace.changed()) is not None and self._on_speed is not None:
                await self._on_speed(speed)

    async def _check(self) -> None:
        deadline_s = _DEADLINE_S.get(self.facts.dialect, _DEADLINE_ELSE_S)
        await self.link.ask("/health", deadline_s=deadline_s)

    async def _verify(self) -> None:
        """After a failure of a turn, lose the worker at once if its engine is not healthy."""
        if self._checking is None or self._checking.done():
            self._checking = self.accompany(self._check_once())
        await asyncio.wait({self._checking})

    async def _check_once(self) -> None:
        try:
            await self._check()
        except RoseError as error:
            self.lose(str(error), is_death=True)


def wait_s(told: str) -> float:
    """Return the seconds to wait after a refusal, from the header `Retry-After`."""
    return min(float(told), _RETRY_AFTER_MAX_S) if told.isdecimal() else _RETRY_AFTER_S
