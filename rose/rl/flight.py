"""A trajectory on its way: what was heard and said so far."""

from dataclasses import dataclass, field
from typing import Final

from rose.environments import Environment, Tokenizer, task
from rose.errors import check
from rose.rl.trajectory import NOT_GENERATED, Trajectory

# Episodes and sampling have streams of numbers of their own.
_SAMPLING_STRIDE: Final = 1_000_003


@dataclass(slots=True)
class Flight:
    """A trajectory that is not finished. One thread, that of the loop, touches it.

    Args:
        number: unique in a run.
        group: those that share a task.
        seed: of the task, >= 0.
        sampling_seed: of what it says, >= 0.
        environment: its own; reset, and heard once.
    """

    number: int
    group: int
    seed: int
    sampling_seed: int
    environment: Environment
    turn: int = 0
    reward: float = 0.0
    tokens: list[int] = field(default_factory=list)
    is_generated: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    _turn_at: int = 0

    @property
    def said(self) -> list[int]:
        """The tokens of the present turn."""
        return self.tokens[self._turn_at :]

    def hear(self, observation: tuple[int, ...]) -> None:
        """Take in what the environment says; the next turn starts behind it."""
        self.tokens += observation
        self.is_generated += [False] * len(observation)
        self.logprobs += [0.0] * len(observation)
        self.versions += [NOT_GENERATED] * len(observation)
        self._turn_at = len(self.tokens)

    def say(
        self, tokens: tuple[int, ...], logprobs: tuple[float, ...], versions: tuple[int, ...]
    ) -> None:
        """Add tokens to the present turn."""
        check(len(tokens) == len(logprobs) == len(versions), "a token lacks logprob or version")
        self.tokens += tokens
        self.is_generated += [True] * len(tokens)
        self.logprobs += logprobs
        self.versions += versions

    def finished(self) -> Trajectory:
        """Return what is learned from."""
        return Trajectory(
            number=self.number,
            group=self.group,
            seed=self.seed,
            environment=self.environment.name,
            tokens=tuple(self.tokens),
            is_generated=tuple(self.is_generated),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            reward=self.reward,
            turns=self.turn + 1,
        )


def new_flight(
    number: int, group: int, *, group_size: int, seed: int, tokenizer: Tokenizer
) -> Flight:
    """Return a trajectory that has heard what its task begins with.

    Args:
        number: unique in a run.
        group: its task is that of all in the group, and depends on the seed.
        group_size: trajectories in it.
        seed: of tasks and sampling, >= 0.
        tokenizer: of what it hears.
    """
    drawn = task(seed, group * group_size, group_size=group_size)
    flight = Flight(
        number=number,
        group=group,
        seed=drawn.seed,
        sampling_seed=seed * _SAMPLING_STRIDE + number,
        environment=drawn.environment,
    )
    flight.hear(tokenizer.prompt(drawn.environment.reset(drawn.seed)))
    return flight
