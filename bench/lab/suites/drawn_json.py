"""The content of a result file for the drawn scenarios."""

import json
from collections.abc import Sequence
from typing import Any

from bench.lab.suites.drawn_verdict import LEAST, Verdict, first_runs, median_over_bound, verdict_of
from rose_lab.sim.study.figures import ArmFigures
from rose_lab.sim.study.paired import by_seed


def drawn_json(figures: Sequence[ArmFigures], *, command: str) -> str:
    """Return the figures of the first table, for all runs and for each scenario's first run.

    Args:
        figures: figures of all arms of the drawn scenarios.
        command: command that reproduces them.
    """
    mine = list(by_seed(figures, "rose").values())
    verdict = verdict_of(figures)
    content = {
        "command": command,
        "scenarios": len(verdict.best),
        "runs": len(mine),
        "throughput_of_rose_over": _rows(verdict),
        "in_the_first_run_of_each": _rows(verdict_of(first_runs(figures))),
        "rose": {
            "median_over_bound": round(median_over_bound(figures), 2),
            "tokens_lost": sum(one.tokens_lost for one in mine),
            "dropped": sum(one.dropped for one in mine),
            "incomplete": sum(not one.is_complete for one in mine),
        },
    }
    return json.dumps(content, indent=2) + "\n"


def _rows(verdict: Verdict) -> dict[str, Any]:
    return {
        one.arm: {
            "geometric_mean": round(one.geometric_mean, 3),
            **{f"at_least_{least:g}": round(one.share_at_least(least), 3) for least in LEAST},
            "worst": round(one.worst[0], 3),
            "worst_scenario": one.worst[1],
        }
        for one in verdict.rows
    }
