"""The drawn scenarios: what was simulated is kept, and a verdict is the worst of the baselines."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from bench import drawn, drawn_kept
from bench.drawn_json import drawn_json
from bench.drawn_kept import Kept, KeptRun, code_digest, code_paths
from bench.drawn_runs import SEEDS_FILE, Trial, drawn_seeds, run_seed, simulate_seed
from bench.drawn_table import print_drawn
from bench.drawn_verdict import Against, verdict_of
from rose.errors import CorruptData, InternalError
from rose.sim.scenario.cost import Cost
from rose.sim.study.figures import ArmFigures, ServedFigures

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


ROOT: Final = Path(__file__).resolve().parent.parent.parent
# Prints the files of this repository whose functions a simulation calls, or that it opens.
WATCHED: Final = """
import sys
from pathlib import Path
from bench.drawn_runs import simulate_seed
from rose.sim.cluster import lending
from bench.drawn_scenarios import drawn

root, read = Path(sys.argv[1]), set()
sys.addaudithook(lambda event, about: read.add(str(about[0])) if event == "open" else None)
sys.setprofile(lambda frame, *_: read.add(frame.f_code.co_filename))
lending.PIECES, lending._WARM_BINS = 1, 5
simulate_seed(30, drawn(30).arms, {})
sys.setprofile(None)
for path in map(Path, read):
    if path.suffix in {".py", ".json"} and path.is_relative_to(root):
        print(path.relative_to(root))
"""


def of(arm: str, seed: int, rate: float) -> ArmFigures:
    return replace(ONE, arm=arm, seed=seed, throughput_per_hour=rate)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "build" / "kept.jsonl"
    Kept(path).add([KeptRun("a", ONE), KeptRun("a", replace(ONE, served=None, cost=None))])
    Kept(path).add([KeptRun("b", replace(ONE, used=31))])
    again = Kept(path)
    assert again.find(1, "rose", "a") == replace(ONE, served=None, cost=None)
    assert again.find(1, "rose", "b") == replace(ONE, used=31)
    assert again.find(1, "rose", None) == replace(ONE, used=31)
    assert again.find(1, "rose", "c") is None
    assert again.find(2, "rose", "a") is None
    assert again.find(1, "resource-fixed", "a") is None


def test_a_line_that_was_cut_short_is_left_out_and_another_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    line = json.dumps({"code": "a", **asdict(ONE)})
    path.write_text(f"{line}\n{line[:50]}", encoding="utf-8")
    cut = Kept(path)
    assert cut.find(1, "rose", "a") == ONE
    cut.add([KeptRun("a", replace(ONE, seed=2))])
    assert Kept(path).find(2, "rose", "a") == replace(ONE, seed=2)
    path.write_text(f"no JSON\n{line}\n", encoding="utf-8")
    with pytest.raises(CorruptData, match=r"kept\.jsonl line 1 is no run"):
        Kept(path)


def test_a_run_with_other_figures_than_there_are_now_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    older = {"code": "a", **asdict(ONE)}
    del older["digest"]
    newer = {"code": "a", **asdict(ONE), "seed": 2, "more": 1}
    rows = [older, {"code": "a", **asdict(ONE), "seed": 3}, newer]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    kept = Kept(path)
    found = [kept.find(seed, "rose", None) for seed in (1, 2, 3)]
    assert found == [None, None, replace(ONE, seed=3)]


def test_the_code_s_name_changes_with_the_settings_that_are_tried() -> None:
    names = [code_digest({}), code_digest({"tail_seats": 2.0}), code_digest({"tail_seats": 3.0})]
    assert len(set(names)) == 3
    assert code_digest({}) == names[0]


@pytest.mark.parametrize(
    "changed",
    [
        "bench/drawn_runs.py",
        "rose/executor/certified.py",
        "rose/executor/model_cost.py",
        "rose/memory/presets.json",
        "bench/drawn_scenarios.py",
        "rose/slo/priors.json",
        "rose/transfer/plan/traffic.py",
        "rose/units.py",
    ],
)
def test_the_code_s_name_changes_with_every_file_that_an_outcome_depends_on(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in [ROOT / changed, *code_paths()]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    monkeypatch.setattr(drawn_kept, "_ROOT", tmp_path)
    before = code_digest({})
    (tmp_path / changed).write_text("{}", encoding="utf-8")
    assert code_digest({}) != before


def test_all_that_a_simulation_runs_and_reads_is_in_the_code_s_name() -> None:
    line = [sys.executable, "-c", WATCHED, str(ROOT)]
    found = subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True)
    read = {ROOT / path for path in found.stdout.split() if not path.startswith(".venv")}
    assert ROOT / "rose/slo/priors.json" in read
    assert read - set(code_paths()) == set()


def test_a_file_that_is_no_longer_there_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn_kept, "_ROOT", tmp_path)
    with pytest.raises(InternalError, match="an outcome no longer depends on"):
        code_digest({})


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


def test_a_scenario_in_which_rose_came_to_nothing_counts_and_another_s_does_not() -> None:
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
    print_drawn(figures, console, lost_below=1.0)
    said = console.export_text()
    (row,) = (line for line in said.splitlines() if "0.500" in line and "synchronous" in line)
    assert row.split()[0] == "7"
    assert "1 more, whose first run was not simulated" in said
    print_drawn([*figures, of("rose", 8, 40.0)], console, lost_below=1.0)
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
    print_drawn(figures, console, lost_below=1.0)
    assert "median over the bound 2.00" in console.export_text()
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
    said = json.loads(drawn_json(figures, command="python -m bench.drawn --runs 2"))
    assert said["command"] == "python -m bench.drawn --runs 2"
    assert (said["scenarios"], said["runs"]) == (2, 3)
    assert said["throughput_of_rose_over"]["the best of them"]["at_least_1"] == 0.5
    assert said["throughput_of_rose_over"]["mlfq"]["worst_scenario"] == 8
    first_runs = said["in_the_first_run_of_each"]
    assert first_runs["mlfq"]["geometric_mean"] == pytest.approx((0.8 * 0.5) ** 0.5, abs=0.001)
    assert "elastic" not in first_runs


def test_runs_of_a_scenario_have_trajectories_of_their_own() -> None:
    first, second = (simulate_seed(run_seed(30, run), ("rose",), {})[0] for run in (0, 1))
    assert (first.seed, second.seed) == (30, run_seed(30, 1))
    assert first == simulate_seed(30, ("rose",), {})[0]
    assert second.digest != first.digest
    assert second.tokens_dedicated + second.tokens_borrowed != (
        first.tokens_dedicated + first.tokens_borrowed
    )


def test_settings_that_are_tried_are_those_of_rose() -> None:
    seed = 30
    plain, sticky = simulate_seed(seed, ("rose", "least-loaded-sticky"), {})
    assert plain.digest != sticky.digest
    tried, as_before = simulate_seed(
        seed, ("rose", "least-loaded-sticky"), {"reserve_quantile": 0.1}
    )
    assert as_before == sticky
    assert tried.digest != plain.digest


def test_the_seeds_are_the_first_of_the_file() -> None:
    assert len(drawn_seeds(None)) == 200
    assert drawn_seeds(3) == drawn_seeds(None)[:3]
    assert SEEDS_FILE.exists()


def test_a_seed_is_simulated_once_and_tried_settings_are_held_against_what_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    line = ["--seeds", "30", "--processes", "1", "--kept", str(kept)]
    table = tmp_path / "table.json"
    assert drawn.main([*line, "--json", str(table)]) == 0
    said = json.loads(table.read_text(encoding="utf-8"))
    assert (said["scenarios"], said["command"]) == (1, "python -m bench.drawn --seeds 30")
    first = capsys.readouterr().out
    size = kept.stat().st_size
    assert drawn.main(line) == 0
    assert capsys.readouterr().out == first
    assert kept.stat().st_size == size
    assert drawn.main([*line, "--arms", "rose", "--set", "leave_home_margin_s=9"]) == 0
    tried = capsys.readouterr().out
    assert tried != first
    assert "least-loaded-sticky" in tried
    assert len(kept.read_text(encoding="utf-8").splitlines()) == 9


def test_a_setting_that_is_none_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--seeds", "3", "--processes", "1", "--kept", str(tmp_path / "kept.jsonl")]
    assert drawn.main([*line, "--arms", "rose", "--set", "speed=9"]) == 2
    assert "speed: is no such setting" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        drawn.main([*line, "--arms", "best"])
    with pytest.raises(SystemExit):
        drawn.main([*line, "--set", "speed"])


def test_an_arm_that_no_drawn_scenario_has_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    line = ["--seeds", "3", "--processes", "1", "--kept", str(kept)]
    with pytest.raises(SystemExit) as ended:
        drawn.main([*line, "--arms", "training-gpus"])
    assert ended.value.code == 2
    assert "no drawn scenario has training-gpus; there are rose" in capsys.readouterr().err
    assert not kept.exists()


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        (["--runs", "2"], "python -m bench.drawn --runs 2"),
        ([], "python -m bench.drawn"),
        (["--count", "2", "--processes", "1"], "python -m bench.drawn --count 2"),
        (["--seeds", "3,5", "--runs", "3"], "python -m bench.drawn --seeds 3,5 --runs 3"),
    ],
)
def test_a_file_of_results_names_what_gives_them(
    asked: list[str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(trial: Trial, _kept: Kept) -> Iterator[list[ArmFigures]]:
        for run in range(trial.runs):
            for seed in trial.seeds:
                yield [of(arm, run_seed(seed, run), 100.0) for arm in ("rose", "mlfq")]

    monkeypatch.setattr(drawn, "simulated", simulated)
    table = tmp_path / "table.json"
    line = ["--kept", str(tmp_path / "kept.jsonl"), "--json", str(table)]
    assert drawn.main([*asked, *line]) == 0
    assert json.loads(table.read_text(encoding="utf-8"))["command"] == command


def test_results_are_of_all_arms_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.json"
    for tried in (["--arms", "rose"], ["--set", "leave_home_margin_s=9"]):
        with pytest.raises(SystemExit) as ended:
            drawn.main(["--seeds", "3", "--json", str(table), *tried])
        assert ended.value.code == 2
        assert "leave --arms and --set out" in capsys.readouterr().err
    assert not table.exists()
