"""The drawn scenarios: rose is judged against the best baseline, and a file names its command."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.lab.suites import drawn
from bench.lab.suites.drawn_json import drawn_json
from bench.lab.suites.drawn_runs import SEEDS_FILE, drawn_seeds, run_seed, simulate_run
from bench.lab.suites.drawn_table import print_drawn
from bench.lab.suites.drawn_verdict import Against, verdict_of
from rose_lab.sim.scenario.cost import Cost
from rose_lab.sim.study.figures import ArmFigures, ServedFigures

ONE = ArmFigures(
    arm="rose",
    seed=1,
    versions=3,
    is_complete=True,
    ended_s=10.0,
    used=30,
    throughput_per_hour=100.0,
    rollout_s=(1.0, 2.5),
    bound_s=0.5,
    tokens_dedicated=10,
    tokens_borrowed=20,
    borrowed_busy=0.5,
    revocations=1,
    recalls=2,
    reprefill_tokens=3,
    tokens_lost=0,
    dropped=0,
    stale=0.0,
    length_bias=None,
    staleness=0.5,
    recovery_s=0.25,
    unrecovered=0,
    served=ServedFigures(5, 1.0, 2.0, 1.0, 1.1, 1.2, 1.3, 0.2, None),
    cost=Cost(1.0, 2.0, 3.0, 4.0, 30),
    events=99,
    digest="0123456789abcdef",
)


def of(arm: str, seed: int, rate: float) -> ArmFigures:
    return replace(ONE, arm=arm, seed=seed, throughput_per_hour=rate)


def test_rose_is_held_against_the_best_baseline_of_each_scenario() -> None:
    figures: Sequence[ArmFigures] = [
        *(of("rose", seed, 100.0) for seed in (1, 2, 3, 4)),
        *(of("elastic", seed, rate) for seed, rate in ((1, 50.0), (2, 100.0), (3, 100.5))),
        *(of("mlfq", seed, rate) for seed, rate in ((1, 80.0), (2, 20.0), (3, 125.0), (5, 1.0))),
        of("elastic", 4, 0.0),
    ]
    verdict = verdict_of(figures)
    assert verdict.best == pytest.approx({1: 1.25, 2: 1.0, 3: 0.8, 4: float("inf")})
    assert verdict.worst == (pytest.approx(0.8), 3)
    assert verdict.share_at_least(1.0) == 0.75
    elastic, mlfq = verdict.against
    assert (elastic.arm, elastic.share_at_least(1.0), elastic.share_at_least(0.99)) == (
        "elastic",
        0.75,
        1.0,
    )
    assert mlfq.worst == (pytest.approx(0.8), 3)
    assert mlfq.geometric_mean == pytest.approx((1.25 * 5 * 0.8) ** (1 / 3))


def test_a_scenario_with_no_throughput_counts_for_rose_but_not_for_a_baseline() -> None:
    assert Against("mlfq", {1: 2.0, 2: 0.0}).geometric_mean == 0.0
    assert Against("mlfq", {1: 2.0, 2: float("inf")}).geometric_mean == pytest.approx(2.0)
    assert Against("mlfq", {1: float("inf")}).geometric_mean == float("inf")


def test_after_an_interrupt_a_scenario_without_its_first_run_is_counted_only() -> None:
    console = Console(width=180, record=True, file=StringIO())
    later = run_seed(8, 1)
    figures = [
        *(of("rose", 7, 50.0), of("mlfq", 7, 100.0)),
        *(of("rose", later, 40.0), of("mlfq", later, 100.0)),
    ]
    print_drawn(figures, console)
    said = console.export_text()
    (row,) = (line for line in said.splitlines() if "0.500" in line and "synchronous" in line)
    assert row.split()[0] == "7"
    assert "1 more, whose first run was not simulated" in said
    print_drawn([*figures, of("rose", 8, 40.0)], console)
    assert "1 more, whose first run" in console.export_text()


def test_the_table_and_the_file_have_one_median() -> None:
    gaps = (1.0, 3.0)
    figures = [
        *(
            replace(of("rose", seed, 100.0), rollout_s=(gap,), bound_s=1.0)
            for seed, gap in enumerate(gaps, 1)
        ),
        *(of("mlfq", seed, 100.0) for seed in (1, 2)),
    ]
    console = Console(width=180, record=True, file=StringIO())
    print_drawn(figures, console)
    assert "median duration over the bound 2.00" in console.export_text()
    assert json.loads(drawn_json(figures, command="-"))["rose"]["median_over_bound"] == 2.0


def test_runs_of_a_scenario_count_as_their_mean() -> None:
    first, second = run_seed(7, 0), run_seed(7, 1)
    figures = [
        *(of("rose", first, 100.0), of("rose", second, 140.0), of("rose", 8, 50.0)),
        *(of("mlfq", first, 125.0), of("mlfq", second, 75.0), of("mlfq", 8, 100.0)),
        *(of("elastic", second, 70.0), of("elastic", run_seed(7, 2), 1.0)),
    ]
    verdict = verdict_of(figures)
    assert verdict.best == pytest.approx({7: 1.2, 8: 0.5})
    assert verdict.geometric_mean == pytest.approx(0.6**0.5)
    mlfq, elastic = verdict.against
    assert mlfq.ratios == pytest.approx({7: 1.2, 8: 0.5})
    assert elastic.ratios == pytest.approx({7: 2.0})
    said = json.loads(drawn_json(figures, command="python -m bench.lab.suites.drawn --runs 2"))
    assert said["command"] == "python -m bench.lab.suites.drawn --runs 2"
    assert (said["scenarios"], said["runs"]) == (2, 3)
    assert said["throughput_of_rose_over"]["the best of them"]["at_least_1"] == 0.5
    assert said["throughput_of_rose_over"]["mlfq"]["worst_scenario"] == 8
    first_runs = said["in_the_first_run_of_each"]
    assert first_runs["mlfq"]["geometric_mean"] == pytest.approx((0.8 * 0.5) ** 0.5, abs=0.001)
    assert "elastic" not in first_runs


def test_runs_of_a_scenario_have_trajectories_of_their_own() -> None:
    first, second = (simulate_run(run_seed(30, run), ("rose",))[0] for run in (0, 1))
    assert (first.seed, second.seed) == (30, run_seed(30, 1))
    assert first == simulate_run(30, ("rose",))[0]
    assert second.digest != first.digest
    assert second.tokens_dedicated + second.tokens_borrowed != (
        first.tokens_dedicated + first.tokens_borrowed
    )


def test_the_seeds_are_the_first_of_the_file() -> None:
    assert len(drawn_seeds(None)) == 200
    assert drawn_seeds(3) == drawn_seeds(None)[:3]
    assert SEEDS_FILE.exists()


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        (["--runs", "2"], "python -m bench.lab.suites.drawn --runs 2"),
        ([], "python -m bench.lab.suites.drawn"),
        (["--count", "2", "--processes", "1"], "python -m bench.lab.suites.drawn --count 2"),
        (
            ["--seeds", "3,5", "--runs", "3"],
            "python -m bench.lab.suites.drawn --seeds 3,5 --runs 3",
        ),
    ],
)
def test_a_file_of_results_names_what_gives_them(
    asked: list[str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(runs: Sequence[int], **_: object) -> Iterator[list[ArmFigures]]:
        for run in runs:
            yield [of(arm, run, 100.0) for arm in ("rose", "mlfq")]

    monkeypatch.setattr(drawn, "simulated", simulated)
    table = tmp_path / "table.json"
    assert drawn.main([*asked, "--json", str(table)]) == 0
    assert json.loads(table.read_text(encoding="utf-8"))["command"] == command
