"""Runs the sequences of requests as turns of their conversations."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from rose.adapters.conversations import Conversation, Conversations, Prompt
from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.generation import RequestInFlight
from rose.adapters.limits import ServiceLimits
from rose.adapters.sequences import Ask, SequenceInFlight
from rose.adapters.text import Tokenizer
from rose.adapters.watch import ServiceWatch
from rose.errors import RoseError, Unavailable
from rose.scheduler.checks import no_tokens
from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.turns import Sampling

_SEED_BITS: Final = 40
# Seconds that admission may hold a trajectory before an idle conversation ends in its favour.
_ADMISSION_S: Final = 0.5


class Turns:
    """The turns in flight, and the conversations that they belong to.

    Args:
        scheduler: scheduler that places the turns.
        watch: observer that passes tokens to sequences.
        limits: limits of conversations.
        later: function that runs a coroutine to its end.
        is_limited: whether a limit of staleness may hold trajectories before their first turn.
    """

    def __init__(
        self,
        scheduler: ElasticRolloutScheduler,
        watch: ServiceWatch,
        limits: ServiceLimits,
        *,
        later: Callable[[Coroutine[Any, Any, None]], None],
        is_limited: bool,
    ) -> None:
        self.count = 0  # sequences that have not ended
        self.draw = random.Random()
        self.conversations = Conversations(
            count_max=limits.conversations, tokens_max=limits.conversation_tokens
        )
        self._scheduler = scheduler
        self._watch = watch
        self._idle_s = limits.conversation_s
        self._later = later
        self._is_limited = is_limited
        self._next = 0
        self._sweep: asyncio.TimerHandle | None = None

    # ---- the start of turns ---------------------------------------------------------------------

    def talks(
        self, prompts: Sequence[Prompt], *, session: str | None, job: int
    ) -> list[Conversation]:
        """Begin a turn for each prompt of a request, and return their conversations."""
        talks = []
        for prompt in prompts:
            talk = None
            if len(prompts) == 1:
                talk = self.conversations.find(prompt, session=session, job=job)
            if talk is None:
                talk = self.conversations.open(self._next, prompt, session=session, job=job)
                self._next += 1
            self.conversations.begin(talk, prompt)
            talks.append(talk)
        return talks

    def begin(
        self,
        request: RequestInFlight,
        asks: Sequence[Ask],
        talks: Sequence[Conversation],
        *,
        fleet: FleetLimits,
        eos: Sequence[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        """Run the sequences of a request.

        Args:
            request: request that gets the sequences.
            asks: what the client wants, by sequence.
            talks: conversations of the sequences, as from `talks`.
            fleet: limits of the fleet.
            eos: end tokens of the model.
            tokenizer: tokenizer for the text.
        """
        request.begin(
            [
                SequenceInFlight(
                    talk.number,
                    ask,
                    eos=() if ask.sampling.options.ignore_eos else eos,
                    tokenizer=tokenizer,
                    take=self._watch.take,
                    changed=request.wake,
                    ended=partial(self._ended, request, talk),
                )
                for ask, talk in zip(asks, talks, strict=True)
            ]
        )
        self.count += len(asks)
        loop = asyncio.get_running_loop()
        for one, talk in zip(request.sequences, talks, strict=True):
            turn = self._run(one, talk, self._sampling(one, fleet), talk.task)
            talk.task = loop.create_task(turn)

    def _sampling(self, one: SequenceInFlight, fleet: FleetLimits) -> Sampling:
        """Return the sampling of a turn, with the model's end tokens and stop texts."""
        asked = one.ask.sampling
        options = replace(asked.options, has_seed=one.ask.seed is not None)
        if one.ask.stop and "stop" in fleet.features:
            # An engine that finds the stop text generates no tokens after it.
            options = replace(options, fields={**options.fields, "stop": list(one.ask.stop)})
        seed = self.draw.getrandbits(_SEED_BITS) if one.ask.seed is None else one.ask.seed
        # No engine generates an id beyond the vocabulary, and some fail if they get one.
        most = fleet.vocabulary
        stops = tuple(token for token in one.stops if most is None or token < most)
        return Sampling(asked.max_new_tokens, asked.temperature, stops, seed, options)

    async def _run(
        self,
        one: SequenceInFlight,
        talk: Conversation,
        sampling: Sampling,
        before: "asyncio.Task[None] | None",
    ) -> None:
        """Run one turn to its end, after the conversation's turn `before`.

        The client may have its answer, and ask for the next turn, before the scheduler has ended
        a turn that was cut at a stop text.
        """
        try:
            if before is not None:
                await asyncio.wait({before})
            if not talk.turn:
                await self._admit(talk, sampling.seed)
            if one.is_over:
                return  # Its client has left, and the trajectory is being given up.
            self._watch.sequences[talk.number] = one
            prompt = no_tokens()
            prompt.frombytes(talk.prompt)  # a copy of the tokens costs 30 times as much
            result = await self._scheduler.generate(
                talk.number,
                turn=talk.turn,
                prompt=prompt,
                sampling=sampling,
                versions=one.ask.versions,
            )
        except RoseError as error:
            one.fail(error)
            self._close(talk, is_finished=False)
        except asyncio.CancelledError:
            one.fail(Unavailable("the conversation has ended: retry"))
            raise
        else:
            talk.turn += 1
            one.finish(result)

    async def _admit(self, talk: Conversation, seed: int | None) -> None:
        """Start a trajectory. While staleness admission holds it, idle conversations end."""
        start = self._scheduler.start(talk.number, group=talk.group, job=talk.job, seed=seed)
        if not self._is_limited:
            await start
            return
        starting = asyncio.ensure_future(start)
        try:
            while not (await asyncio.wait({starting}, timeout=_ADMISSION_S))[0]:
                oldest = self.conversations.oldest(job=talk.job)
                if oldest is not None:
                    self._close(oldest, is_finished=True)
        finally:
            starting.cancel()
        await starting

    # ---- the end of turns -----------------------------------------------------------------------

    def _ended(self, request: RequestInFlight, talk: Conversation, one: SequenceInFlight) -> None:
        """Make the conversation of an ended sequence ready for its next turn, or give it up."""
        self.count -= 1
        if self._watch.sequences.get(talk.number) is one:
            del self._watch.sequences[talk.number]
        if one.error is not None or not one.tokens:
            self._close(talk, is_finished=one.is_done)
        else:
            now_s = asyncio.get_running_loop().time()
            self.conversations.rest(talk, one.tokens, now_s=now_s)
            if not one.is_done:
                self._later(self._cut(talk.number, talk.turn, len(one.tokens)))
        request.ended()

    async def _cut(self, number: int, turn: int, tokens: int) -> None:
        with suppress(RoseError):  # The turn has ended meanwhile, or the trajectory was given up.
            await self._scheduler.cut(number, turn=turn, tokens=tokens)

    # ---- the end of conversations ---------------------------------------------------------------

    def open(self) -> None:
        """Begin to end conversations that are idle for too long, or too many."""
        loop = asyncio.get_running_loop()
        for one in self.conversations.surplus(older_than_s=loop.time() - self._idle_s):
            self._close(one, is_finished=True)
        self._sweep = loop.call_later(min(1.0, self._idle_s / 4), self.open)

    def close(self) -> None:
        """End all conversations; no turn may be in flight."""
        if self._sweep is not None:
            self._sweep.cancel()
        for one in self.conversations:
            self._close(one, is_finished=True)

    def _close(self, talk: Conversation, *, is_finished: bool) -> None:
        """End a conversation. A repeated call does nothing."""
        if self.conversations.close(talk):
            self._later(self._finish(talk) if is_finished else self._abort(talk))

    async def _finish(self, talk: Conversation) -> None:
        if talk.task is not None:
            await asyncio.wait({talk.task})
        with suppress(RoseError):  # The scheduler has ended, and all its trajectories with it.
            await self._scheduler.finish(talk.number)
            await self._scheduler.consumed(1, job=talk.job)

    async def _abort(self, talk: Conversation) -> None:
        if talk.task is not None:
            talk.task.cancel()
        with suppress(RoseError):
            await self._scheduler.abort(talk.number)
