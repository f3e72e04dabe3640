"""A finished trajectory, as the trainer needs it."""

from dataclasses import dataclass
from math import isfinite
from typing import Final

from rose.errors import InvalidArgument

NOT_GENERATED: Final = -1  # stands for the version of a token that the policy did not say
TEMPERATURE: Final = 1.0  # of all sampling
# A longer one is not learned from.
TRAJECTORY_TOKENS_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Everything that was read and said, token by token, and what it was worth.

    Args:
        number: names it; it is learned from once, however often it is sent.
        group: trajectories of one group had the same task.
        seed: of the task.
        environment: name of the world it played in.
        tokens: ids of the whole context, at least one of them not the first and generated.
        is_generated: of each token, whether the policy said it.
        logprobs: natural, at the time it was said; 0.0 for tokens that were read.
        versions: of the weights that said it; `NOT_GENERATED` for tokens that were read.
        reward: sum over its turns.
        turns: how often the policy spoke, > 0.

    Raises:
        InvalidArgument: the rows differ in length or contradict each other.
    """

    number: int
    group: int
    seed: int
    environment: str
    tokens: tuple[int, ...]
    is_generated: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    reward: float
    turns: int

    def __post_init__(self) -> None:
        """Refuse what could not be learned from."""
        if reason := self._fault():
            raise InvalidArgument(f"trajectory {self.number}: {reason}")

    @property
    def version_min(self) -> int:
        """The oldest version of the weights that said a token of it."""
        return min(version for version in self.versions if version != NOT_GENERATED)

    @property
    def generated_tokens(self) -> int:
        """How many tokens the policy said."""
        return sum(self.is_generated)

    def _fault(self) -> str | None:
        rows = {len(self.tokens), len(self.is_generated), len(self.logprobs), len(self.versions)}
        if len(rows) != 1:
            return "tokens, is_generated, logprobs and versions differ in length"
        if not any(self.is_generated):
            return "no token of it was generated"
        if self.is_generated[0]:
            return "its first token was generated from nothing"
        if min(self.tokens) < 0:
            return "a token is below 0"
        if self.turns <= 0 or not isfinite(self.reward):
            return f"{self.turns} turns and a reward of {self.reward} are not what a play gives"
        for is_generated, logprob, version in zip(
            self.is_generated, self.logprobs, self.versions, strict=True
        ):
            if is_generated and not (logprob <= 1e-6 and isfinite(logprob) and version >= 0):
                return f"a generated token has logprob {logprob} and version {version}"
            if not is_generated and not (logprob == 0.0 and version == NOT_GENERATED):
                return f"a token that was read has logprob {logprob} and version {version}"
        return None
