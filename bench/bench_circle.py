"""Whether a policy learns the same with and without borrowed time. Takes minutes per seed.

`make bench SUITE=circle`; without FULL=1 with fewer seeds and versions. The RL loop is the demo's,
within one process, with a policy that learns in minutes.
"""

import statistics
from pathlib import Path

from bench.conftest import Report
from bench.rows import Bar, Peer
from bench.small_circle import Learned, SmallCircle, small_world
from bench.warm_policy import save_warm_policy

SEEDS = (0, 1, 2)
VERSIONS = 60
BRIEF_SEEDS, BRIEF_VERSIONS = 2, 24
# The reward of a run is the mean over this share of its steps, at the end.
TAIL = 0.25
# The initial reward is the mean over the first steps.
HEAD = 0.1


def tail_mean(learned: Learned) -> float:
    last = max(1, int(len(learned.rewards) * TAIL))
    return statistics.fmean(learned.rewards[-last:])


def head_mean(learned: Learned) -> float:
    first = max(1, int(len(learned.rewards) * HEAD))
    return statistics.fmean(learned.rewards[:first])


def test_reward_with_and_without_borrowing(report: Report, tmp_path: Path) -> None:
    versions = report.count(VERSIONS, brief=BRIEF_VERSIONS)
    seeds = SEEDS[: report.count(len(SEEDS), at_least=2, brief=BRIEF_SEEDS)]
    runs: dict[bool, list[Learned]] = {False: [], True: []}

    def every_seed() -> None:
        for number, seed in enumerate(seeds):
            for has_borrower in (False, True) if number % 2 else (True, False):
                folder = tmp_path / f"policy-{seed}"
                if not folder.exists():
                    save_warm_policy(folder, model="micro-policy", seed=seed, world=small_world())
                circle = SmallCircle(str(folder), seed=seed, has_borrower=has_borrower)
                runs[has_borrower].append(circle.learn(versions))
                reward = tail_mean(runs[has_borrower][-1])
                report.say(f"seed {seed}, {has_borrower=}: reward {reward:.3f}")

    report.once(every_seed)
    rewards = {has: [tail_mean(run) for run in learned] for has, learned in runs.items()}
    start = statistics.fmean(head_mean(run) for learned in runs.values() for run in learned)
    mean = {has: statistics.fmean(values) for has, values in rewards.items()}
    # The typical difference of two means of this many seeds without a true difference.
    noise = (sum(statistics.variance(values) for values in rewards.values()) / len(seeds)) ** 0.5
    peer = Peer("without borrowing", mean[False], "reward")
    report.add("reward_with_borrowing", mean[True], "reward", peer=peer)
    report.add("reward_gained_over_start", mean[True] - start, "reward", bar=Bar(at_least=0.05))
    report.add(
        "reward_difference_in_seed_noise",
        abs(mean[True] - mean[False]) / noise,
        "standard errors",
        bar=Bar(at_most=2.0),
    )
    borrowed = runs[True]
    report.add("borrowed_tokens", sum(one.borrowed_tokens for one in borrowed), "tokens")
    report.add("resumed_trajectories", sum(one.resumed for one in borrowed), "trajectories")
    both = [*runs[False], *borrowed]
    report.add("lost_trajectories", sum(one.lost for one in both), "count", bar=Bar(at_most=0.0))
    report.add(
        "digests_differing", sum(one.mismatched for one in both), "count", bar=Bar(at_most=0.0)
    )
