import gzip
from pathlib import Path

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose.traces import read_agent_trace, tool_waits

REAL = Path(__file__).parents[3] / "shared/traces/weka_agentic_compact.csv.gz"
HEADER = "trace_id,turn,t_s,input_tokens,prefix_reused_tokens,output_tokens,api_time_s,think_time_s"
GOOD = [
    "a,0,0.0,100,0,10,2.5,0.0",
    "a,1,19.0,130,100,20,,12.0",
    "a,2,40.0,160,130,0,3.0,",
    "b,0,0.0,50,0,5,1.0,7.0",
    "b,1,9.0,70,50,5,1.0,0.0",
    "b,2,20.0,70,50,5,1.0,4.5",
]


def write(tmp_path, *lines, name="agents.csv"):
    path = tmp_path / name
    data = "\n".join([HEADER, *lines]).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["agents.csv", "agents.csv.gz"])
def test_sessions_turns_and_waits(tmp_path, name):
    trace = read_agent_trace(write(tmp_path, *GOOD, name=name))
    assert (len(trace), trace.name) == (6, name)
    assert trace.session.tolist() == [0, 0, 0, 1, 1, 1]
    assert trace.turns_per_session().tolist() == [3, 3]
    assert np.isnan(trace.api_time_s).tolist() == [False, True, False, False, False, False]
    assert trace.output_tokens.tolist() == [10, 20, 0, 5, 5, 5]
    with pytest.raises(ValueError, match="read-only"):
        trace.think_time_s[0] = 1.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("b,1,9.0,70,50,5,1.0,0.0", "'b' has turn '1' where 0 should be"),
        ("a,1,9.0,70,50,5,1.0,0.0", "'a' has turn '1' where 2 should be"),
        ("a,two,29.0,70,50,5,1.0,0.0", "turn is 'two'"),
        ("a,2,9.0,70,50,5,1.0,0.0", "t_s '9.0' is earlier than the turn before it"),
        ("a,2,,70,50,5,1.0,0.0", "t_s is ''"),
        ("a,2,29.0,0,0,5,1.0,0.0", "input_tokens is '0'"),
        ("a,2,29.0,70,71,5,1.0,0.0", "71 tokens are reused of 70"),
        ("a,2,29.0,70,50,-5,1.0,0.0", "output_tokens is '-5'"),
        ("a,2,29.0,70,50,5,fast,0.0", "api_time_s is 'fast'"),
        ("a,2,29.0,70,50,5,1.0,-1", "think_time_s is '-1'"),
        ("a,2,29.0,70,50,5,1.0", "has 7 values, not 8"),
    ],
)
def test_bad_line_is_named(tmp_path, line, says):
    path = write(tmp_path, *GOOD[:2], line)
    with pytest.raises(InvalidArgument, match="line 4") as caught:
        read_agent_trace(path)
    assert says in str(caught.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="has a header but no turns"):
        read_agent_trace(write(tmp_path))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match=r"line 1 is 'a,b'; expected the columns trace_id"):
        read_agent_trace(tmp_path / "other.csv")


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_built_in_waits_ascend_and_bound_their_distribution(n):
    waits_s = tool_waits(n)
    assert waits_s.shape == (n,)
    assert (np.diff(waits_s) >= 0).all()
    assert waits_s.min() >= 1.0
    # Half of the waits are below the median of the distribution, half above it.
    assert abs((waits_s < 10.0).sum() - (waits_s > 10.0).sum()) <= 1


def test_one_built_in_wait_is_the_median_and_finer_parts_keep_the_middles_of_coarse_ones():
    assert tool_waits(1) == pytest.approx([10.0])
    assert tool_waits(15)[1::3] == pytest.approx(tool_waits(5))


def test_number_of_built_in_waits_is_checked():
    for n in (0, -1, 10_000_000):
        with pytest.raises(InvalidArgument, match="n_quantiles is"):
            tool_waits(n)


@pytest.mark.skipif(not REAL.exists(), reason="the agents' trace is not beside the repository")
def test_built_in_waits_are_those_of_the_file():
    trace = read_agent_trace(REAL)
    assert (len(trace), trace.turns_per_session().size) == (48_658, 710)
    # A wait that is not known is NaN, and so not above 0.
    real_s = trace.think_time_s[(trace.turn > 0) & (trace.think_time_s > 0)]
    built_in_s = tool_waits(real_s.size)
    assert built_in_s.mean() == pytest.approx(real_s.mean(), rel=0.03)
    for percent in (5, 10, 25, 50, 75, 90, 95, 99, 99.9):
        expected = np.percentile(real_s, percent)
        # The file counts in whole seconds, between which the built-in waits lie.
        close = pytest.approx(expected, rel=0.05, abs=0.6)
        assert np.percentile(built_in_s, percent) == close, percent
