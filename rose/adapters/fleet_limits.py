"""Limits that requests are checked against: those of all engines of a fleet together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The real limits of a fleet, from its ready and joining workers.

    Args:
        vocabulary: number of token ids; None if no engine told it.
        context_tokens: most tokens of a prompt and its output on any worker; 0: not known yet.
        eos_token_ids: ids that end the model's output.
        features: fields of sampling that every engine has.
        model: name of the model at the engines; None: not known yet.
    """

    vocabulary: int | None
    context_tokens: int
    eos_token_ids: tuple[int, ...]
    features: frozenset[str]
    model: str | None
