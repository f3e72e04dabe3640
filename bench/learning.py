"""Whether a policy learns the same through borrowed engines: statistics of the runs."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RUNS: Final = ROOT / "bench" / "results" / "learning-runs.jsonl"
ARMS: Final = ("dedicated", "borrowed", "chaos")
SEEDS_MIN: Final = 8
# Largest difference of areas that counts as equal: 15 % of 0.3. If the area of the dedicated arm
# gains less than 0.3 over its start, the judgement is void. 0.3 was chosen before any judged run,
# from the task: the reward starts near 0.3, because the model calls one tool of four nearly at
# random, and 0.3 is on average half of the way to 0.9.
MARGIN: Final = 0.045
MARGIN_SHARE: Final = 0.15
TARGET: Final = 0.6  # reward whose wall-clock time is reported
CEILING_SHARE: Final = 0.9  # above it, two saturated curves are equal whatever else differs
POWER_MIN: Final = 0.8
LEVEL: Final = 0.05

Run = dict[str, Any]


def read_runs(path: Path, commit: str | None = None) -> list[Run]:
    """Return the runs of a commit, by default the newest one's."""
    if not path.exists():
        return []
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    wanted = commit or (runs[-1]["commit"] if runs else None)
    return [one for one in runs if one["commit"] == wanted]


def area(curve: Sequence[float]) -> float:
    """Return the mean height of a curve of equal steps, by the trapezoid rule."""
    return (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)


def t_below(t: float, freedom: int) -> float:
    """Return Student's distribution function, by Simpson's rule over the angle atan(t/√n)."""
    angle = math.atan(t / math.sqrt(freedom))
    parts = 2000
    heights = [math.cos(angle * at / parts) ** (freedom - 1) for at in range(parts + 1)]
    odd, even = sum(heights[1:-1:2]), sum(heights[2:-1:2])
    integral = angle / parts / 3 * (heights[0] + 4 * odd + 2 * even + heights[-1])
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    return 0.5 + scale / math.sqrt(math.pi) * integral


def t_quantile(share: float, freedom: int) -> float:
    """Return the value below which a share of Student's distribution lies."""
    low, high = -1e4, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < share else (low, middle)
    return low


def p_above(values: Sequence[float], bound: float) -> float:
    """Return the p-value of the one-sided t-test that their mean is above `bound`."""
    error, distance = _error_of(values), statistics.fmean(values) - bound
    if error == 0:
        return float(distance <= 0)
    return 1 - t_below(distance / error, len(values) - 1)


def mean_within(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the mean, and the interval that has it with 95 % confidence."""
    mean = statistics.fmean(values)
    half = t_quantile(0.975, len(values) - 1) * _error_of(values)
    return mean, (mean - half, mean + half)


def _error_of(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Two one-sided t-tests of paired differences.

    Args:
        mean: mean difference.
        p_value: the larger p-value of the two; below `LEVEL` the arms are equivalent.
        power: probability of that result if the arms do not differ at all.
    """

    mean: float
    p_value: float
    power: float

    @property
    def is_equivalent(self) -> bool:
        """Whether both tests reject."""
        return self.p_value < LEVEL


def equivalence(differences: Sequence[float], margin: float = MARGIN) -> Equivalence:
    """Test whether the mean of paired differences is within ± `margin`."""
    freedom, error = len(differences) - 1, _error_of(differences)
    p_value = max(p_above(side, -margin) for side in (differences, [-one for one in differences]))
    power = 1.0
    if error:
        beyond = margin / error - t_quantile(1 - LEVEL, freedom)
        power = max(0.0, 2 * t_below(beyond, freedom) - 1)
    return Equivalence(statistics.fmean(differences), p_value, power)


class Learning:
    """Runs of every arm with equal seeds."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._by_seed: dict[int, dict[str, Run]] = {}
        for run in runs:
            self._by_seed.setdefault(run["seed"], {})[run["arm"]] = run
        self.seeds = sorted(seed for seed, arms in self._by_seed.items() if set(arms) >= set(ARMS))

    def of(self, arm: str) -> list[Run]:
        """Return the runs of an arm, in the order of seeds."""
        return [self._by_seed[seed][arm] for seed in self.seeds]

    def each(self, arm: str, figure: Callable[[Run], float]) -> list[float]:
        """Return a figure of every run of an arm."""
        return [figure(run) for run in self.of(arm)]

    def equivalence(self, arm: str) -> Equivalence:
        """Compare an arm's areas with the dedicated ones."""
        areas = [self.each(one, lambda run: area(run["curve"])) for one in (arm, ARMS[0])]
        return equivalence([own - other for own, other in zip(*areas, strict=True)])

    def gain_p_value(self, arm: str) -> float:
        """Return the p-value of the last held-out reward being above the first."""
        return p_above(self.each(arm, lambda run: run["curve"][-1] - run["curve"][0]), 0.0)

    def why_void(self) -> str | None:
        """Return why equivalence would prove nothing, or None."""
        areas = self.each(ARMS[0], lambda run: area(run["curve"]))
        starts = self.each(ARMS[0], lambda run: run["curve"][0])
        gained = statistics.fmean(areas) - statistics.fmean(starts)
        power = min(self.equivalence(arm).power for arm in ARMS[1:])
        if statistics.fmean(areas) > CEILING_SHARE:
            return f"the area {statistics.fmean(areas):.3f} is above {CEILING_SHARE}: saturated"
        if MARGIN_SHARE * gained < MARGIN:
            return f"the area gained {gained:.3f}, but must gain {MARGIN / MARGIN_SHARE:g}"
        return None if power >= POWER_MIN else f"its power is {power:.2f}, below {POWER_MIN}"

    def borrowed_share(self, arm: str) -> float:
        """Return the share of an arm's tokens that borrowed workers generated."""
        tokens: Counter[str] = Counter()
        for run in self.of(arm):
            tokens.update(run["tokens_by_kind"])
        return float(tokens["borrowed"] / tokens.total())

    def seconds_to_target(self, arm: str) -> list[float]:
        """Return the time to `TARGET` of each run that reached it, in seconds."""
        firsts = (
            next(
                (s for s, one in zip(run["curve_s"], run["curve"], strict=True) if one >= TARGET),
                None,
            )
            for run in self.of(arm)
        )
        return [one for one in firsts if one is not None]

    def latency_ratios(self, arm: str, metric: str) -> list[float]:
        """Return a median latency of serving in each run, divided by that without lending."""
        own, alone = (
            self.each(
                one,
                lambda run: statistics.median(asked[metric] for asked in run["served"]["requests"]),
            )
            for one in (arm, ARMS[0])
        )
        return [beside / without for beside, without in zip(own, alone, strict=True)]

    def excess_misses(self, arm: str) -> int:
        """Return how many requests missed a target that they met without lending."""
        return sum(
            alone["is_met"] and not beside["is_met"]
            for with_loans, without in zip(self.of(arm), self.of(ARMS[0]), strict=True)
            for beside, alone in zip(
                with_loans["served"]["requests"], without["served"]["requests"], strict=False
            )
        )
