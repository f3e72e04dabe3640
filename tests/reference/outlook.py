"""What is left of a turn and of a trajectory, the plain way: counts of lengths, walked in order."""

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


@dataclass
class PlainLeft:
    mean: float
    low: float
    high: float


def left_of(
    near: PlainLengths | None, far: PlainLengths, *, far_count: float, given: int, high: float
) -> PlainLeft:
    """Return mean, median and quantile `high` of what a length of more than `given` has left."""
    scale = 1.0 if near is None else far_count / sum(far.weights.values())
    weights = {where: each * scale for where, each in far.weights.items()}
    for where, each in near.weights.items() if near else ():
        weights[where] = weights.get(where, 0.0) + each
    parts = []  # first length above `given`, how many, what each weighs
    for (begin, width), weight in sorted(weights.items()):
        first = max(begin, given + 1)
        if first < begin + width:
            parts.append((first, begin + width - first, weight / width))
    total = sum(count * each for _, count, each in parts)
    if total < 1e-6:
        lasted = max(given, 1)
        return PlainLeft(lasted, lasted, lasted * high / (1 - high))
    mean = sum(count * each * (first + (count - 1) / 2 - given) for first, count, each in parts)

    def quantile(q: float) -> float:
        before = 0.0
        for first, count, each in parts:
            if before + count * each >= q * total * (1 - 1e-12):
                steps = math.ceil((q * total - before) / each)
                return first - 1 + min(max(steps, 1), count) - given
            before += count * each
        raise AssertionError("no such quantile")

    return PlainLeft(mean / total, quantile(0.5), quantile(high))


@dataclass
class PlainMean:
    mean: float
    window: int
    count: int = 1

    def observe(self, value: float) -> None:
        self.count = min(self.count + 1, self.window + 1)
        self.mean += (value - self.mean) / self.count


class PlainOutlook:
    """Turns, tools and trajectories of one job; `settings.reserve_quantile` is not looked at."""

    def __init__(self, settings: SimpleNamespace) -> None:
        self.settings = settings
        self.job = self.lengths()
        self.job["turn"].assume(settings.turn_tokens_prior)
        self.job["turns"].assume(settings.turns_prior)
        self.job["tokens"].assume(settings.turns_prior * settings.turn_tokens_prior)
        self.job["tool_ms"].assume(settings.tool_ms_prior)
        seconds = settings.turn_tokens_prior * settings.token_ms_prior / 1000
        self.turn_s = PlainMean(seconds, settings.turn_window)
        self.turn_tokens = PlainMean(settings.turn_tokens_prior, settings.turn_window)
        self.groups: dict[int, dict[str, PlainLengths]] = {}
        self.members: dict[int, int] = {}
        self.lives: dict[int, float] = {}
        self.changes = 1
        self.median = self.high = 0.0

    def lengths(self) -> dict[str, PlainLengths]:
        window = self.settings.turn_window
        return {name: PlainLengths(window) for name in ("turn", "turns", "tokens", "tool_ms")}

    def enter(self, group: int) -> None:
        self.groups.setdefault(group, self.lengths())
        self.members[group] = self.members.get(group, 0) + 1

    def leave(self, group: int) -> None:
        self.members[group] -= 1
        if self.members[group] == 0:
            del self.groups[group]

    def observe(self, name: str, group: int, length: int) -> None:
        self.job[name].observe(length)
        if group in self.groups:
            self.groups[group][name].observe(length)

    def observe_turn(self, group: int, tokens: int, seconds: float) -> None:
        self.observe("turn", group, tokens)
        self.turn_tokens.observe(tokens)
        self.turn_s.observe(seconds)

    def left(self, name: str, group: int, given: int) -> PlainLeft:
        near = self.groups.get(group)
        return left_of(
            near[name] if near else None,
            self.job[name],
            far_count=self.settings.job_weight,
            given=given,
            high=0.9,
        )

    def forecast(self, group: int, *, known: int, said: int, turns: int) -> tuple[float, float]:
        """Return the tokens that the turn has left, and the seconds of the trajectory."""
        turn_left = self.left("turn", group, known).mean
        tokens = max(self.left("tokens", group, said).low, turn_left)
        more = self.left("turns", group, turns).low - 1
        tool_s = self.left("tool_ms", group, -1).mean / 1000
        pace = self.turn_s.mean / max(self.turn_tokens.mean, 1.0)
        return turn_left, tokens * pace + more * tool_s

    def set_life(self, number: int, life_s: float | None) -> None:
        self.changes += 1
        if life_s is None:
            del self.lives[number]
        else:
            self.lives[number] = life_s

    def lag(self, life_s: float) -> float:
        if self.changes * 8 > len(self.lives):
            self.changes = 0
            lives, last = sorted(self.lives.values()), len(self.lives) - 1
            self.median, self.high = lives[last // 2], lives[(last * 95 + 99) // 100]
        span = self.high - self.median
        return (
            0.0 if life_s <= self.median or span <= 0 else min(1.0, (life_s - self.median) / span)
        )
