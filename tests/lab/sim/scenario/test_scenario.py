"""A scenario file that makes no sense is refused in one sentence with the field and the mend."""

from pathlib import Path

import pytest

from rose.errors import InvalidArgument
from rose.scheduler.settings import SchedulerSettings
from rose_lab.sim.scenario.parts import StalledTrainer
from rose_lab.sim.scenario.scenario import scenario_from
from rose_lab.sim.scenario.yaml_file import parsed, read_scenarios, scenarios_from
from tests.lab.sim.scenario.files import TEXT, changed, content, scenario

FOLDER = Path(__file__).parents[4] / "bench/scenarios"
STALLED = {"kind": "stalled-trainer", "factor": 2}

# path, value, what the sentence says after the path
BAD = [
    ("naem", "x", "no such field"),
    ("name", "  ", "expected `str` matching regex"),
    ("model", "Qwen9-8B", "no model 'Qwen9-8B'"),
    ("versions", 0, "expected `int` >= 1"),
    ("horizon_s", 0, "expected `float` >= 1e-06"),
    ("horizon_s", 10**400, "number out of range"),
    ("seeds", [], "the list is empty"),
    ("seeds", [1, 1], "but one is listed twice"),
    ("seeds", [*range(1001)], "at most 1000 are allowed, got 1001"),
    ("arms", ["rose", "rose"], "but one is listed twice"),
    ("arms[0]", "rosé", "did you mean rose?"),
    ("arms[0]", "rose@-1", "'rose@-1': a slowdown must be"),
    ("arms[0]", "elastic@0.1", "'elastic@0.1': a slowdown must be"),
    ("arms", [], "the list is empty"),
    ("jobs", [], "the list is empty"),
    ("dedicated", [], "the list is empty"),
    ("trainer.tp", 3, "must divide the 4 GPUs, got 3"),
    ("jobs[0].batch", 30, "must be a multiple of the group size 8, got 30"),
    ("jobs[0].algorithm", "ppo", "invalid enum value 'ppo'"),
    ("jobs[0].environment", {"name": "frozen-lake"}, "kind: is missing"),
    ("jobs[0].environment.kind", "nmaed", "invalid value 'nmaed'"),
    ("jobs[0].environment.name", "lake", "got 'lake'"),
    ("jobs[0].redundancy", {"kind": "log-uniform", "least": 3, "most": 1}, "1 is below least"),
    (
        "jobs[0].redundancy",
        {"kind": "mixture", "parts": [{"weight": 0.5, "of": {"kind": "constant", "value": 1}}]},
        "weights add up to 0.5",
    ),
    (
        "jobs[0].redundancy",
        {"kind": "mixture", "parts": [{"weight": 1, "of": {"kind": "mixture", "parts": []}}]},
        "parts[0].of.kind",
    ),
    ("dedicated[0].gpu", "B300", "invalid enum value 'B300'"),
    ("dedicated[0].tp", 3, "must divide the 4 GPUs, got 3"),
    ("borrowed[0].serving_model", "Qwen2.5-6B", "no model"),
    ("borrowed[0].slo", {"ttft_ms": 500}, "tpot_ms: is missing; add it"),
    ("borrowed[0].traffic.load", 19, "expected `float` <= 0.95"),
    ("borrowed[0].traffic.second_peak", 1.1, "1.1 is below minute_peak"),
    ("borrowed[0].traffic.kind", ["daily"], "expected `str`, got `list`"),
    ("network.link_gbit_per_s", 0, "expected `float` > 0.0"),
    ("stress", [{"kind": "revoke"}], "invalid value 'revoke'"),
    ("stress", [{"kind": "revoke-all", "at_s": 5}], "for_s: is missing"),
    ("scheduler", {"stall": 5}, "is not a setting; choose one of"),
    ("scheduler", {"max_staleness": 5}, "is a field of each job"),
    ("scheduler", {"stall_ms": -5}, "must be a number above 0 and at most"),
    ("scheduler", {"worker_lag_max": 1.5}, "must be a whole number, got 1.5"),
    ("scheduler", {5: 5}, "expected `str`, got `int`"),
]


def place_in(path: str, sentence: str) -> bool:
    """Whether a sentence starts with the path, or with that of a field in or around it."""
    named = sentence.split(": ", maxsplit=1)[0]
    return named.startswith(path) or path.startswith(named)


@pytest.mark.parametrize(("path", "value", "says"), BAD)
def test_a_bad_field_is_named_with_its_mend(path: str, value: object, says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        scenario_from(changed(path, value))
    sentence = str(error.value)
    assert says in sentence
    assert place_in(path, sentence), sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("field", ["name", "jobs"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    short = content()
    del short[field]
    with pytest.raises(InvalidArgument, match=rf"^{field}: is missing; add it"):
        scenario_from(short)


@pytest.mark.parametrize("nonsense", [None, "rose"])
def test_a_file_without_fields_is_refused(nonsense: object) -> None:
    with pytest.raises(InvalidArgument, match="the scenario: expected `object`"):
        scenario_from(nonsense)


def test_what_no_single_field_shows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^jobs\[0\]\.max_staleness: 0 leaves nothing"):
        scenario_from(changed("jobs[0].mode", "one-step-off"))
    with pytest.raises(InvalidArgument, match=r"^stress: needs borrowed GPUs"):
        scenario(borrowed=[], stress=[STALLED, {"kind": "flapping", "lent_s": 9, "away_s": 9}])
    assert scenario(borrowed=[], stress=[STALLED]).stress == (StalledTrainer(factor=2),)
    without = content()
    del without["trainer"]
    with pytest.raises(InvalidArgument, match=r"^trainer: is missing; the arm"):
        scenario_from({**without, "arms": ["training-gpus"]})
    twins = content()["jobs"] * 2
    with pytest.raises(InvalidArgument, match=r"^jobs: all must differ, but one is listed twice"):
        scenario(jobs=twins)


def test_settings_are_the_jobs_own_and_the_overrides() -> None:
    made = scenario(scheduler={"stall_ms": 750, "attempts_max": 5})
    settings = made.settings(made.jobs[0])
    assert settings == SchedulerSettings(
        max_staleness=0, batch_trajectories=32, tuning={"stall_ms": 750.0, "attempts_max": 5}
    )


# --- YAML -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", "line 2: duplicate key a"),
        ("x: {b: 1, b: 2}", "line 1: duplicate key b"),
        ("a: &x [1]\nb: *x", "line 1: aliases of YAML are not supported"),
        ("? [1, 2]\n: 3", "line 1: the name of a field must be a text"),
        ("a: 1\n? {b: 1}\n: 3", "line 2: the name of a field must be a text"),
        ("a: [1", "this is not YAML"),
        ("a: \x01", "this is not YAML"),
        ("a: !!python/object/apply:os.system ['true']", "this is not YAML"),
        ("a: 2020-99-99", "this is not YAML"),
    ],
)
def test_yaml_that_is_not_what_it_looks_like_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parsed(text)


def test_a_file_is_named_with_its_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(TEXT.replace("load: 0.25", "load: 20"), encoding="utf-8")
    with pytest.raises(InvalidArgument, match=r"bad\.yaml: borrowed\[0\]\.traffic\.load: expected"):
        read_scenarios(path)
    with pytest.raises(InvalidArgument, match="cannot read"):
        read_scenarios(tmp_path / "none.yaml")
    path.write_bytes(b"#" * (1 << 21))
    with pytest.raises(InvalidArgument, match="more than 1 MiB"):
        read_scenarios(path)


# --- sweeps ---------------------------------------------------------------------------------------


def test_a_sweep_is_one_scenario_for_each_value() -> None:
    swept = {**content(), "sweep": {"field": "borrowed[0].count", "values": [2, 6]}}
    made = scenarios_from(swept)
    assert [one.borrowed[0].count for one in made] == [2, 6]
    assert made[1].name == "small, borrowed[0].count 6"
    assert made[0].jobs == made[1].jobs


def test_a_value_with_fields_is_named_as_the_file_says_it() -> None:
    values = [[{"kind": "flapping", "lent_s": 15, "away_s": 10}], []]
    swept = {**content(), "stress": [], "sweep": {"field": "stress", "values": values}}
    names = [scenario.name for scenario in scenarios_from(swept)]
    assert names == ["small, stress [{kind: flapping, lent_s: 15, away_s: 10}]", "small, stress []"]


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        (3, "sweep: give the two fields"),
        ({"field": "versions"}, "sweep: give the two fields"),
        ({"field": "versions", "values": 3}, "sweep.values: give a list"),
        ({"field": "versions", "values": []}, "sweep.values: give a list"),
        ({"field": "jobs.batch", "values": [1]}, "jobs.batch is not in the file"),
        ({"field": "jobs[4].batch", "values": [1]}, "is not in the file"),
        ({"field": "seeds", "values": [[1]]}, "seeds is not in the file"),
        ({"field": "a b", "values": [1]}, "is not a path"),
        ({"field": "versions", "values": [0]}, "versions: expected `int` >= 1"),
    ],
)
def test_a_bad_sweep_is_refused(sweep: object, says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        scenarios_from({**content(), "sweep": sweep})
    assert says in str(error.value)


# --- the project's own files ----------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_of_the_bench_can_be_read(path: Path) -> None:
    for one in read_scenarios(path):
        assert one.about != "-"
        assert one.arms
