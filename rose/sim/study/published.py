"""What others published of a set-up that a scenario repeats, to be shown beside what came out.

Source: arXiv 2605.06534 as four public notes report it, and arXiv 2609.35158. The inputs of those
experiments (trajectories, traffic, engines) are not public, so these are no targets to fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Published:
    """Factors in favour of the paper's system on one set-up.

    Args:
        throughput_over: an arm that stands for a published one, and the factor over it.
        rollout_time_under: likewise, of the time to roll a batch out.
    """

    throughput_over: Mapping[str, float]
    rollout_time_under: Mapping[str, float]


# Table 1, by size: rollout time with what the paper compared its system with, over that with it.
# The first shares without a promise, the second sets memory aside.
TABLE_1: Final[Mapping[str, Mapping[str, float]]] = {
    "8b": {"share-all": 651.7 / 496.3, "reserved-share": 731.7 / 496.3},
    "32b": {"share-all": 1161.8 / 960.1, "reserved-share": 1301.2 / 960.1},
}
PUBLISHED: Final[Mapping[str, Published]] = {
    "paper-8b": Published({"resource-fixed": 1.31}, {"elastic": 1.20}),
    "paper-32b": Published({"resource-fixed": 1.46}, {"elastic": 1.26}),
    "paper-8b-dapo": Published({"resource-fixed": 1.42}, {}),
    "paper-32b-dapo": Published({"resource-fixed": 3.31}, {}),
    "paper-table1-8b": Published({}, TABLE_1["8b"]),
    "paper-table1-32b": Published({}, TABLE_1["32b"]),
}
