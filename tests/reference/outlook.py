"""The remaining length of a turn, the plain way: counts of lengths, in order."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace


def bin_of(length: int) -> tuple[int, int]:
    """Return the first length of the bin and how many it has: one below 16, else 1/8 octave."""
    width = 1 if length < 8 else 1 << (length.bit_length() - 4)
    return length // width * width, width


@dataclass
class PlainLengths:
    """Weights by bin; all of them halve when they are more than the window."""

    window: int
    weights: dict[tuple[int, int], float] = field(default_factory=dict)

    def observe(self, length: int, weight: float = 1.0) -> None:
        self.weights[bin_of(length)] = self.weights.get(bin_of(length), 0.0) + weight
        if sum(self.weights.values()) > self.window:
            self.weights = {where: each / 2 for where, each in self.weights.items()}

    def assume(self, mean: float) -> None:
        parts = [-math.log(1 - (part + 0.5) / 8) for part in range(8)]
        for part in parts:
            # To seven digits, as the core's table has them.
            share = float(f"{part * 8 / sum(parts):.7f}")
            self.observe(max(1, math.floor(share * mean + 0.5)), 1 / 8)


def mean_left(
    near: PlainLengths | None, far: PlainLengths, *, far_count: float, given: int
) -> float:
    """Return the mean remaining length of the lengths above `given`."""
    scale = 1.0 if near is None else far_count / sum(far.weights.values())
    weights = {where: each * scale for where, each in far.weights.items()}
    for where, each in near.weights.items() if near else ():
        weights[where] = weights.get(where, 0.0) + each
    parts = []  # first length above `given`, number of lengths, weight of each
    for (begin, width), weight in sorted(weights.items()):
        first = max(begin, given + 1)
        if first < begin + width:
            parts.append((first, begin + width - first, weight / width))
    total = sum(count * each for _, count, each in parts)
    if total < 1e-6:
        return max(given, 1)
    return (
        sum(count * each * (first + (count - 1) / 2 - given) for first, count, each in parts)
        / total
    )


@dataclass
class PlainMean:
    mean: float
    window: int
    count: int = 1

    def observe(self, value: float) -> None:
        self.count = min(self.count + 1, self.window + 1)
        self.mean += (value - self.mean) / self.count


class PlainOutlook:
    """Turn lengths of one job, by group and for the whole job."""

    def __init__(self, settings: SimpleNamespace) -> None:
        self.settings = settings
        self.job = PlainLengths(settings.turn_window)
        self.job.assume(settings.turn_tokens_prior)
        self.groups: dict[int, PlainLengths] = {}
        self.members: dict[int, int] = {}

    def enter(self, group: int) -> None:
        self.groups.setdefault(group, PlainLengths(self.settings.turn_window))
        self.members[group] = self.members.get(group, 0) + 1

    def leave(self, group: int) -> None:
        self.members[group] -= 1
        if self.members[group] == 0:
            del self.groups[group]

    def observe_turn(self, group: int, tokens: int) -> None:
        self.job.observe(tokens)
        if group in self.groups:
            self.groups[group].observe(tokens)

    def turn_left(self, group: int, known: int) -> float:
        """Return the mean number of tokens that a turn with `known` tokens still generates."""
        near, count = self.groups.get(group), self.settings.job_weight
        return mean_left(near, self.job, far_count=count, given=known)
