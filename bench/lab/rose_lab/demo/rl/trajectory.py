"""A finished trajectory, as input of the trainer."""

from dataclasses import dataclass
from math import isfinite
from typing import Final

from rose.errors import InvalidArgument

NOT_GENERATED: Final = -1  # version of tokens that the policy did not generate
TEMPERATURE: Final = 1.0  # sampling temperature
# The trainer refuses longer trajectories.
TRAJECTORY_TOKENS_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All tokens of a trajectory, with its reward.

    Args:
        number: unique number; duplicates are learned once.
        group: number of the group, whose trajectories share a task.
        seed: seed of the task.
        environment: name of the environment.
        tokens: ids of the whole context; at least one token is generated, and the first one is not.
        is_generated: whether the policy generated each token.
        logprobs: natural logprob of each generated token when it was generated; 0.0 for all other
            tokens.
        versions: weight version that generated each token; `NOT_GENERATED` for all other tokens.
        reward: sum of the rewards of all turns.
        turns: number of turns, > 0.

    Raises:
        InvalidArgument: the fields with one value per token differ in length or contradict each
            other, or the trajectory has no turns or no finite reward.
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
        """Refuse a trajectory that cannot be learned from."""
        if reason := self._fault():
            raise InvalidArgument(f"trajectory {self.number}: {reason}")

    @property
    def version_min(self) -> int:
        """The oldest weight version that generated a token of the trajectory."""
        return min(version for version in self.versions if version != NOT_GENERATED)

    @property
    def generated_tokens(self) -> int:
        """Number of generated tokens."""
        return sum(self.is_generated)

    def _fault(self) -> str | None:
        rows = {len(self.tokens), len(self.is_generated), len(self.logprobs), len(self.versions)}
        if len(rows) != 1:
            return "tokens, is_generated, logprobs and versions must have the same length"
        if not any(self.is_generated):
            return "at least one token must be generated"
        if self.is_generated[0]:
            return "the policy must not have generated the first token"
        if min(self.tokens) < 0:
            return f"token ids must be >= 0, got {min(self.tokens)}"
        if self.turns <= 0 or not isfinite(self.reward):
            return f"turns must be > 0 and reward finite, got {self.turns} and {self.reward}"
        for is_generated, logprob, version in zip(
            self.is_generated, self.logprobs, self.versions, strict=True
        ):
            if is_generated and not (logprob <= 1e-6 and isfinite(logprob) and version >= 0):
                return (
                    f"a generated token must have a logprob <= 0 and a version >= 0, got {logprob} "
                    f"and {version}"
                )
            if not is_generated and not (logprob == 0.0 and version == NOT_GENERATED):
                return (
                    f"a token that was not generated must have logprob 0.0 and version "
                    f"{NOT_GENERATED}, got {logprob} and {version}"
                )
        return None
