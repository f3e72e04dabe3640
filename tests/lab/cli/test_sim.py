"""`rose sim` as a user meets it: what it writes, what it refuses, and what an interrupt leaves."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from rose.cli.main import main
from rose_lab.cli import sim as sim_run
from rose_lab.demo.progress import Phases
from tests.lab.sim.scenario.files import content

ARMS: Final = ("rose", "resource-fixed", "least-loaded-sticky")


def write_scenario(path: Path, **fields: object) -> Path:
    """Write a small scenario of three arms and two seeds, with some fields changed."""
    small = {**content(), "arms": list(ARMS), "seeds": [1, 2], "horizon_s": 300, **fields}
    path.write_text(yaml.safe_dump(small), encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["sim", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def report_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sim.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a small scenario."""
    folder = tmp_path_factory.mktemp("sim")
    assert main(["sim", str(write_scenario(folder / "small.yaml")), "--out", str(folder)]) == 0
    return folder


def test_every_arm_is_run_under_every_seed(reported: Path) -> None:
    report = report_in(reported)
    assert set(report) == {"scenarios", "validation", "is_complete", "machine", "command"}
    assert report["is_complete"] is True
    assert report["validation"] == []
    (scenario,) = report["scenarios"]
    assert (scenario["name"], scenario["subject"], scenario["seeds"]) == ("small", "rose", [1, 2])
    assert list(scenario["arms"]) == list(ARMS)
    runs = [(one["arm"], one["seed"]) for one in scenario["runs"]]
    assert runs == [(arm, seed) for seed in (1, 2) for arm in ARMS]


def test_the_figures_of_the_report_are_those_of_its_runs(reported: Path) -> None:
    (scenario,) = report_in(reported)["scenarios"]
    for name, arm in scenario["arms"].items():
        mine = [one for one in scenario["runs"] if one["arm"] == name]
        rates = [one["used"] / one["ended_s"] * 3600 for one in mine]
        assert arm["throughput_per_hour"] == pytest.approx(sum(rates) / 2)
        assert [one["used"] for one in mine] == [64, 64]
        assert arm["tokens_lost"] == 0
        assert arm["gap"] >= 1
    ratio = 1.0
    of = {(one["arm"], one["seed"]): one["throughput_per_hour"] for one in scenario["runs"]}
    for seed in (1, 2):
        ratio *= of["rose", seed] / of["resource-fixed", seed]
    factor = scenario["arms"]["resource-fixed"]["subject_throughput_over"]
    assert factor["factor"] == pytest.approx(ratio**0.5)
    assert factor["low"] <= factor["factor"] <= factor["high"]
    assert scenario["arms"]["rose"]["subject_throughput_over"] is None
    assert scenario["arms"]["resource-fixed"]["borrowed_tokens_share"] == 0
    assert scenario["arms"]["rose"]["borrowed_tokens_share"] > 0


def test_the_table_says_what_the_report_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_scenario(tmp_path / "small.yaml")
    line = ("--arms", "rose,elastic", "--seeds", 1, "--out", tmp_path / "out")
    status, said, _ = run(capsys, path, *line)
    assert status == 0
    (scenario,) = report_in(tmp_path / "out")["scenarios"]
    assert (list(scenario["arms"]), scenario["seeds"]) == (["rose", "elastic"], [1])
    rows = {row.split()[0]: row.split() for row in said.splitlines() if row.strip()}
    for name, arm in scenario["arms"].items():
        assert rows[name][1] == f"{arm['throughput_per_hour']:.0f}"
        assert rows[name][2] == f"{arm['rollout_s']:.2f}"


def test_a_sweep_is_a_scenario_for_each_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = {"field": "dedicated[0].count", "values": [2, 4]}
    path = write_scenario(tmp_path / "small.yaml", sweep=sweep)
    line = ("--arms", "rose", "--seeds", 1, "--out", tmp_path / "out")
    assert run(capsys, path, *line)[0] == 0
    few, many = report_in(tmp_path / "out")["scenarios"]
    assert few["name"].endswith("2")
    assert few["arms"]["rose"]["rollout_s"] > many["arms"]["rose"]["rollout_s"]


def test_what_others_measured_is_simulated_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_scenario(tmp_path / "small.yaml", seeds=[1], arms=["rose"])
    names = ["rose-published", "share-all"]
    known = write_scenario(
        tmp_path / "known.yaml", name="paper-table1-8b", seeds=[1], arms=names, versions=1
    )
    status, said, _ = run(capsys, path, "--validate", known, "--out", tmp_path / "out")
    assert status == 0
    report = report_in(tmp_path / "out")
    assert [one["name"] for one in report["scenarios"]] == ["small"]
    (found,) = report["validation"]
    assert found["error"] == pytest.approx(found["predicted"] / (651.7 / 496.3) - 1)
    assert (found["warning"] is None) == (abs(found["error"]) <= 0.15)
    assert found["name"] in said


def test_an_interrupt_reports_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = sim_run.study

    def until_the_last(scenario, inputs, *, on_share):  # type: ignore[no-untyped-def]
        for one in real(scenario, inputs, on_share=on_share):
            if one.built.arm == "least-loaded-sticky":
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(sim_run, "study", until_the_last)
    out = tmp_path / "out"
    status, said, _ = run(capsys, write_scenario(tmp_path / "small.yaml"), "--out", out)
    assert status == 130
    assert "interrupted" in said
    report = report_in(out)
    assert report["is_complete"] is False
    assert list(report["scenarios"][0]["arms"]) == ["rose", "resource-fixed"]


def test_an_interrupt_in_a_simulation_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_about: object, **_also: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Phases, "advance", never)
    path = write_scenario(tmp_path / "small.yaml", versions=40, horizon_s=3000)
    status, _, _ = run(capsys, path, "--out", tmp_path / "out")
    assert status == 130
    assert report_in(tmp_path / "out")["scenarios"] == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("--arms", "rose,best"), "arms[1]: 'best' is unknown"),
        (("--seeds", "3"), "--seeds must be 1 to 2, the number of seeds of small, got 3"),
        (("--seeds", "0"), "--seeds must be 1 to 2, the number of seeds of small, got 0"),
        (("--validate", "nowhere.yaml"), "cannot read nowhere.yaml"),
    ],
)
def test_what_is_not_there_is_named_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: tuple[str, ...], says: str
) -> None:
    out = tmp_path / "out"
    status, _, err = run(capsys, write_scenario(tmp_path / "small.yaml"), *line, "--out", out)
    assert status == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [", "not YAML"),
        ("name: small\n", "model"),
        ("just words", "scenario"),
    ],
)
def test_a_file_that_is_no_scenario_is_named_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path, out = tmp_path / "bad.yaml", tmp_path / "out"
    path.write_text(text, encoding="utf-8")
    status, _, err = run(capsys, path, "--out", out)
    assert status == 2
    assert "bad.yaml" in err
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()


def test_a_world_that_cannot_be_built_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_scenario(tmp_path / "small.yaml", model="Qwen3-32B")
    out = tmp_path / "out"
    status, _, err = run(capsys, path, "--out", out)
    assert (status, len(err.strip().splitlines())) == (2, 1)
    assert not out.exists()
