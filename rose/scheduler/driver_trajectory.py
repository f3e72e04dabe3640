"""The trajectory state of the asyncio driver: input and output, turn by turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from rose.errors import InternalError, InvalidArgument, check
from rose.scheduler.driver_events import Asked
from rose.scheduler.events import Start
from rose.scheduler.turns import Sampling, TrajectoryRecord, TurnResult
from rose.scheduler.worker import TurnRequest

# Limits of a slice of `SlowCopy`: the trajectory that reaches either limit is the last of its
# slice. A slice takes about a third of a millisecond, which no caller notices.
SLICE_TOKENS: Final = 1 << 16
SLICE_TRAJECTORIES: Final = 128


class Phase(Enum):
    """Phase of a trajectory."""

    WAITING = "admission has not let it start"
    THINKING = "its environment has it"
    SPEAKING = "a turn of it is wanted"
    ENDING = "it was given up, and the core has not confirmed it yet"


# The values of `Phase` are part of the checkpoint's format, so errors have texts of their own.
_BUSY: Final = {
    Phase.WAITING: "it is not admitted yet",
    Phase.THINKING: "it is between two turns",
    Phase.SPEAKING: "its current turn is not finished",
    Phase.ENDING: "it was given up",
}


@dataclass(slots=True)
class DriverTrajectory:
    """A trajectory that is not over.

    Args:
        number: number of the trajectory.
        group: number shared by the trajectories of one task.
        job: number of its job.
        seed: seed of its sampling.
        phase: current phase.
        context: prompt of the current turn; between turns, all input and output so far.
        turns: finished turns.
        sampling: sampling of the current turn; all fields below belong to this turn, too.
        tokens: output so far.
        logprobs: log probability of each token.
        versions: version of the weights for each token.
        workers: numbers of the workers that ran a part of the turn, in order.
        grant_epoch: grant epoch of the last request.
        error: error of the last failed attempt.
    """

    number: int
    group: int
    job: int
    seed: int
    phase: Phase = Phase.WAITING
    context: list[int] = field(default_factory=list)
    turns: list[TurnResult] = field(default_factory=list)
    sampling: Sampling | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    grant_epoch: int = 0
    error: str | None = None

    def copy(self) -> "DriverTrajectory":
        """Return a deep copy."""
        rows = ("context", "turns", "tokens", "logprobs", "versions", "workers")
        copies: dict[str, Any] = {name: list(getattr(self, name)) for name in rows}
        return replace(self, **copies)

    def token_count(self) -> int:
        """Return about how many numbers a copy holds."""
        return len(self.context) + 3 * len(self.tokens)

    def asked(self, turn: int, prompt: tuple[int, ...], sampling: Sampling) -> Asked | None:
        """Return the journal entry for a requested turn; None if the turn was requested before.

        Raises:
            InvalidArgument: the turn was requested before with another prompt or sampling.
        """
        if turn < len(self.turns):
            return None
        if self.phase is Phase.SPEAKING and turn == len(self.turns):
            if (self.context, self.sampling) == (list(prompt), sampling):
                return None
            raise InvalidArgument(
                f"trajectory {self.number}: turn {turn} was requested before with another prompt "
                "or sampling"
            )
        pairs = enumerate(zip(self.context, prompt, strict=False))
        same = min(len(self.context), len(prompt))
        kept = next((place for place, (before, now) in pairs if before != now), same)
        return Asked(self.number, turn, kept, prompt[kept:], sampling)

    def ask(self, asked: Asked) -> None:
        """Request the next turn.

        Raises:
            InvalidArgument: no turn may start now, the turn is not the next one, or its prompt is
                empty. Nothing has changed.
        """
        where = f"trajectory {self.number}, turn {asked.turn}"
        if self.phase is not Phase.THINKING:
            raise InvalidArgument(f"{where}: cannot be generated now, because {self.why_busy()}")
        if asked.turn != len(self.turns):
            raise InvalidArgument(
                f"{where}: request turns in order; the next turn is {len(self.turns)}"
            )
        if asked.kept + len(asked.tail) == 0:
            raise InvalidArgument(f"{where}: the prompt must have at least one token")
        self.phase = Phase.SPEAKING
        del self.context[asked.kept :]
        self.context += asked.tail
        self.sampling = asked.sampling
        for row in (self.tokens, self.logprobs, self.versions, self.workers):
            row.clear()

    def record(self) -> TrajectoryRecord:
        """Return the public state."""
        return TrajectoryRecord(
            trajectory=self.number,
            group=self.group,
            job=self.job,
            seed=self.seed,
            is_admitted=self.phase in (Phase.THINKING, Phase.SPEAKING),
            turns=tuple(self.turns),
            has_turn=self.phase is Phase.SPEAKING,
        )

    def why_busy(self) -> str:
        """Return the phase as a clause of an error message."""
        return _BUSY[self.phase]

    @property
    def worker(self) -> int | None:
        """Worker that received the current turn last; None if no worker did."""
        return self.workers[-1] if self.phase is Phase.SPEAKING and self.workers else None

    def append(
        self, tokens: tuple[int, ...], logprobs: tuple[float, ...], versions: tuple[int, ...]
    ) -> None:
        """Append tokens to the current turn."""
        check(len(tokens) == len(logprobs) == len(versions), "a token lacks logprob or version")
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += versions

    def request(self, start: Start) -> TurnRequest:
        """Return the request for a worker, and record the worker."""
        sampling = self._wanted()
        self.workers.append(start.worker)
        self.grant_epoch = start.grant_epoch
        return TurnRequest(
            trajectory=self.number,
            turn=start.turn,
            grant_epoch=start.grant_epoch,
            prompt=(*self.context, *self.tokens),
            first_token=start.first_token,
            max_new_tokens=start.max_new_tokens,
            stop_tokens=sampling.stop_tokens,
            temperature=sampling.temperature,
            seed=self.seed,
        )

    def has_ended(self) -> bool:
        """Return True if the current turn has its last token."""
        return bool(self.tokens) and self.tokens[-1] in self._wanted().stop_tokens

    def conclude(self) -> TurnResult:
        """Finish the current turn."""
        sampling = self._wanted()
        stops = sampling.stop_tokens
        ends = [place for place, token in enumerate(self.tokens) if token in stops]
        # Tokens after a stop token were not requested.
        count = ends[0] + 1 if ends else len(self.tokens)
        result = TurnResult(
            trajectory=self.number,
            turn=len(self.turns),
            tokens=tuple(self.tokens[:count]),
            logprobs=tuple(self.logprobs[:count]),
            versions=tuple(self.versions[:count]),
            workers=tuple(self.workers),
            is_cut=not ends and count >= sampling.max_new_tokens,
        )
        self.phase = Phase.THINKING
        self.context += result.tokens
        self.turns.append(result)
        self.error = None
        for row in (self.tokens, self.logprobs, self.versions):
            row.clear()
        return result

    def _wanted(self) -> Sampling:
        if self.sampling is None:
            raise InternalError(f"trajectory {self.number}: no turn was requested")
        return self.sampling


class SlowCopy:
    """Copies trajectories slice by slice; a copy has the state from the start of the copying.

    Call `keep` before each change of a trajectory. So a step copies only trajectories that it
    changes. One thread at a time.

    Args:
        states: trajectories by number; trajectories that are added later are not copied.
    """

    def __init__(self, states: Mapping[int, DriverTrajectory]) -> None:
        self._left = dict(states)
        self._copies: dict[int, DriverTrajectory] = {}
        self._order = tuple(states.values())
        self._at = 0  # all trajectories before this index are copied

    def keep(self, state: DriverTrajectory) -> None:
        """Copy a trajectory now, if it is not copied yet."""
        if self._left.pop(state.number, None) is not None:
            self._copies[state.number] = state.copy()

    def advance(self) -> bool:
        """Copy one more slice, and return whether all are copied."""
        tokens = 0
        for state in self._order[self._at : self._at + SLICE_TRAJECTORIES]:
            self._at += 1
            if state.number in self._left:
                tokens += state.token_count()
                self.keep(state)
            if tokens >= SLICE_TOKENS:
                break
        return not self._left

    def whole(self) -> tuple[DriverTrajectory, ...]:
        """Return all copies, in order, once all are made."""
        return tuple(self._copies[state.number] for state in self._order)
