"""The files that scenarios name are read once, and what they say is checked."""

from pathlib import Path

import pytest

from rose.errors import InvalidArgument
from rose_lab.cli.sim import read_inputs
from rose_lab.sim.scenario.loans import ServingGroups
from rose_lab.sim.scenario.scenario import Scenario, scenario_from
from tests.lab.sim.scenario.files import changed

RATES = "model,t_s,rate_rps,n\nm,0,2,1\nm,600,6,1\nn,0,5,1\n"


def with_traffic(**traffic: object) -> Scenario:
    return scenario_from(changed("borrowed[0].traffic", traffic))


def test_rates_shape_the_traffic(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(RATES, encoding="utf-8")
    one = with_traffic(kind="daily", rates="rates.csv", model="m", load=0.3)
    inputs = read_inputs([one], beside=tmp_path)
    assert inputs.rates["rates.csv"]["m"].tolist() == [2, 6]
    (loan,) = ServingGroups(one, seed=1, inputs=inputs).loans("rose")
    assert len(loan.lendings) == 4
    other = with_traffic(kind="daily", rates="rates.csv", model="other", load=0.3)
    with pytest.raises(InvalidArgument, match=r"rates\.csv has no other"):
        ServingGroups(other, seed=1, inputs=inputs)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n", "line 1"),
        ("model,t_s,rate_rps\nm,0\n", "line 2"),
        ("model,t_s,rate_rps\nm,0,x\n", "line 2"),
        ("model,t_s,rate_rps\nm,600,1\n", "line 2: the rates of m .* this rate is at 600 s"),
        ("model,t_s,rate_rps\nm,0,-1\n", "got -1"),
        ("model,t_s,rate_rps\nm,0,nan\n", "got nan"),
        ("model,t_s,rate_rps\nm,0,0\n", "a rate above 0 for each model"),
        ("model,t_s,rate_rps\n", "a rate above 0 for each model"),
    ],
)
def test_invalid_rates_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rates.csv").write_text(text, encoding="utf-8")
    one = with_traffic(kind="daily", rates="rates.csv", model="m", load=0.3)
    with pytest.raises(InvalidArgument, match=says):
        read_inputs([one], beside=tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    one = with_traffic(kind="daily", rates="none.csv", model="m", load=0.1)
    with pytest.raises(InvalidArgument, match=r"none\.csv"):
        read_inputs([one], beside=tmp_path)
    with pytest.raises(InvalidArgument, match=r"none\.csv was not read"):
        ServingGroups(one, seed=1, inputs=read_inputs([], beside=tmp_path))
