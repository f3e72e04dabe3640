"""The trajectory state of the asyncio driver: input and output, turn by turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from rose.errors import InternalError, InvalidArgument
from rose.scheduler.checks import Tokens, no_tokens
from rose.scheduler.driver_events import Asked
from rose.scheduler.events import Start
from rose.scheduler.turns import Sampling, TrajectoryRecord, TurnResult
from rose.scheduler.versions import ANY, VersionRange
from rose.scheduler.worker import TurnEnd, TurnOutput, TurnRequest

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


_OF_TURN: Final = ("tokens", "logprobs", "versions", "top_logprobs")
_ROWS: Final = ("context", "turns", "workers", *_OF_TURN)


def _shared(one: Tokens, other: Tokens) -> int:
    """Return the number of leading tokens that two contexts share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # They differ between the two places.
        place = (low + high) // 2
        if one[low:place] == other[low:place]:
            low = place
        else:
            high = place
    return low


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
        accepted: versions of weights that may generate its tokens.
        cut: number of tokens with which it is complete; None if it was not cut.
        top_logprobs, cached_tokens, stop_reason, extras: as in `TurnResult`.
    """

    number: int
    group: int
    job: int
    seed: int
    phase: Phase = Phase.WAITING
    context: Tokens = field(default_factory=no_tokens)
    turns: list[TurnResult] = field(default_factory=list)
    sampling: Sampling | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    grant_epoch: int = 0
    error: str | None = None
    accepted: VersionRange = ANY
    cut: int | None = None
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    cached_tokens: int = 0
    stop_reason: int | str | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> "DriverTrajectory":
        """Return a deep copy."""
        copies: dict[str, Any] = {name: getattr(self, name)[:] for name in _ROWS}
        return replace(self, extras=dict(self.extras), **copies)

    def token_count(self) -> int:
        """Return about how many numbers a copy holds."""
        return len(self.context) + 3 * len(self.tokens)

    def asked(
        self, turn: int, prompt: Tokens, sampling: Sampling, versions: VersionRange
    ) -> Asked | None:
        """Return the journal entry for a requested turn; None if the turn was requested before.

        Raises:
            InvalidArgument: the turn was requested before with other arguments.
        """
        if turn < len(self.turns):
            return None
        if self.phase is Phase.SPEAKING and turn == len(self.turns):
            if (self.context, self.sampling, self.accepted) == (prompt, sampling, versions):
                return None
            raise InvalidArgument(
                f"trajectory {self.number}: turn {turn} was requested before with another prompt, "
                "sampling or versions"
            )
        kept = _shared(self.context, prompt)
        return Asked(self.number, turn, kept, prompt[kept:].tobytes(), sampling, versions)

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
        self.context.frombytes(asked.tail)
        self.sampling = asked.sampling
        self.accepted = asked.versions
        self.workers.clear()
        self._clear()

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

    def append(self, output: TurnOutput, skip: int, count: int) -> None:
        """Append the `count` tokens of an output after the first `skip` to the current turn."""
        if output.top_logprobs or self.top_logprobs:
            self._append_top(output, skip, count)
        if skip == 0 and count == len(output.tokens):
            self.tokens += output.tokens
            self.logprobs += output.logprobs
            self.versions += output.versions
            return
        self.tokens += output.tokens[skip : skip + count]
        self.logprobs += output.logprobs[skip : skip + count]
        self.versions += output.versions[skip : skip + count]

    def _append_top(self, output: TurnOutput, skip: int, count: int) -> None:
        """Append the top logprobs of an output; tokens of a worker without any have none."""
        self.top_logprobs += [()] * (len(self.tokens) - len(self.top_logprobs))
        self.top_logprobs += output.top_logprobs[skip : skip + count] or ((),) * count

    def note(self, output: TurnOutput) -> None:
        """Take what an output says about the turn besides its tokens, if it answers the request.

        A part of the turn that starts at a later token does not replace earlier extras, because
        its engine takes the turn's first tokens for a part of the prompt.
        """
        if (output.worker, output.turn, output.grant_epoch) != (
            self.worker,
            len(self.turns),
            self.grant_epoch,
        ):
            return
        if output.end is TurnEnd.FAILED or output.end is TurnEnd.REFUSED:
            self.error = output.error
        if output.end is TurnEnd.FINISHED:
            self.stop_reason = output.stop_reason
        if len(self.workers) == 1:
            self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        if output.extras:
            is_first = len(self.workers) == 1 or not self.tokens
            pair = (self.extras, output.extras) if is_first else (output.extras, self.extras)
            self.extras = {**pair[0], **pair[1]}

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
            seed=self.seed if sampling.seed is None else sampling.seed,
            options=sampling.options,
        )

    def has_ended(self) -> bool:
        """Return True if the current turn has its last token."""
        sampling = self._wanted()
        return (
            len(self.tokens) > sampling.options.min_tokens
            and self.tokens[-1] in sampling.stop_tokens
        )

    def conclude(self) -> TurnResult:
        """Finish the current turn."""
        sampling = self._wanted()
        count = len(self.tokens) if self.cut is None else min(self.cut, len(self.tokens))
        end = self._end_before(count)
        count = count if end is None else end
        result = TurnResult(
            trajectory=self.number,
            turn=len(self.turns),
            tokens=tuple(self.tokens[:count]),
            logprobs=tuple(self.logprobs[:count]),
            versions=tuple(self.versions[:count]),
            workers=tuple(self.workers),
            is_cut=(
                end is None
                and self.cut is None
                and self.stop_reason is None
                and count >= sampling.max_new_tokens
            ),
            top_logprobs=tuple(self.top_logprobs[:count]),
            cached_tokens=self.cached_tokens,
            stop_reason=self.stop_reason if self.cut is None else None,
            extras=self.extras,
        )
        self.phase = Phase.THINKING
        self.context.extend(result.tokens)
        self.turns.append(result)
        self._clear()
        return result

    def _end_before(self, count: int) -> int | None:
        """Return the number of tokens up to the first stop token; later ones were not requested."""
        sampling = self._wanted()
        if not sampling.stop_tokens:
            return None
        stops = frozenset(sampling.stop_tokens)
        places = range(sampling.options.min_tokens, count)
        return next((place + 1 for place in places if self.tokens[place] in stops), None)

    def _clear(self) -> None:
        """Forget the output of the current turn."""
        for name in _OF_TURN:
            getattr(self, name).clear()
        self.error = self.cut = self.stop_reason = None
        self.cached_tokens = 0
        self.extras = {}

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
