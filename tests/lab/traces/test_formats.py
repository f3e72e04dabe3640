"""Every format beside Azure's: what is read, what is refused, and what is written."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose_lab.traces import Trace, generate, read_trace, write_trace
from rose_lab.traces.burst_gpt import COLUMNS, FIRST_COLUMNS

BURST = {
    COLUMNS: [
        "5,1,2.5,ChatGPT,472,18,490,Conversation log",
        "45.25,2,0,ChatGPT,1087,0,1087,Conversation log",
        "45.5,3,9.1,GPT-4,0,0,0,API log",
        "118,,7,GPT-4,417,276,693,API log",
    ],
    FIRST_COLUMNS: [
        "5,ChatGPT,472,18,490,Conversation log",
        "45.25,ChatGPT,1087,0,1087,Conversation log",
        "45.5,GPT-4,0,0,0,API log",
        "118,GPT-4,417,276,693,API log",
    ],
}
OWN = "arrival_s,prompt_tokens,output_tokens"


def write(tmp_path, *lines, name="t.csv", end="\n"):
    path = tmp_path / name
    data = end.join(lines).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def message(path):
    with pytest.raises(InvalidArgument) as caught:
        read_trace(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


# --- BurstGPT ---


@pytest.mark.parametrize("columns", BURST)
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_burst_gpt_leaves_failures_out(tmp_path, columns, name, end):
    trace = read_trace(write(tmp_path, ",".join(columns), *BURST[columns], name=name, end=end))
    assert trace.arrival_s.tolist() == [0.0, 113.0]
    assert trace.prompt_tokens.tolist() == [472, 417]
    assert trace.output_tokens.tolist() == [18, 276]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("soon,A,5,2,7,x", "Timestamp 'soon' is malformed"),
        ("-5,A,5,2,7,x", "Timestamp '-5' is malformed"),
        ("nan,A,5,2,7,x", "Timestamp 'nan' is malformed"),
        ("9,A,0,2,2,x", "Request tokens is '0'"),
        ("9,A,5,-2,3,x", "Response tokens is '-2'; give a whole number of tokens from 0"),
        ("9,A,5,2.5,3,x", "Response tokens is '2.5'"),
        ("9,A,x,0,3,x", "Request tokens is 'x'"),
        (
            "4,A,5,2,7,x",
            "Timestamp '4' is earlier than that of the previous request; sort the file",
        ),
        ("9,A,5,2,7", "has 5 values, not 6"),
    ],
)
def test_bad_row_of_burst_gpt_is_named(tmp_path, row, says):
    text = message(write(tmp_path, ",".join(FIRST_COLUMNS), "5,A,5,2,7,x", "", row))
    assert "line 4" in text
    assert says in text


# --- Mooncake ---


def mooncake(*timestamps, **more):
    return [
        json.dumps({"timestamp": at, "input_length": 10 + i, "output_length": 1, **more})
        for i, at in enumerate(timestamps)
    ]


def test_mooncake_steps_are_spread_inside_themselves(tmp_path):
    timestamps = np.repeat(np.arange(0, 600_000, 3000), 7)
    path = write(tmp_path, *mooncake(*timestamps.tolist(), hash_ids=[1]), name="t.jsonl")
    trace = read_trace(path)
    arrival_s = trace.arrival_s
    # Each stays in its step, in its order, and they fill it evenly rather than sit at its start.
    assert (np.floor(arrival_s / 3).astype(int) * 3000 == timestamps).all()
    assert trace.prompt_tokens.tolist() == [10 + i for i in range(timestamps.size)]
    places = arrival_s % 3
    shares = np.histogram(places, bins=3, range=(0, 3))[0] / places.size
    assert shares == pytest.approx([1 / 3] * 3, abs=0.06)
    assert trace.duration_s == 600.0
    assert trace.mean_rate_rps == pytest.approx(7 / 3)


def test_equal_seeds_spread_equally_and_others_do_not(tmp_path):
    path = write(tmp_path, *mooncake(0, 0, 3000, 3000), name="t.jsonl")
    one, same, other = (read_trace(path, seed=seed).arrival_s for seed in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_mooncake_with_finer_timestamps_is_taken_at_its_word(tmp_path):
    path = write(tmp_path, *mooncake(3000, 3017, 6000.5, 9000), "", name="t.jsonl.gz")
    trace = read_trace(path)
    assert trace.arrival_s == pytest.approx([0.0, 0.017, 3.0005, 6.0])
    assert trace.duration_s == 6.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("3000,5,2", "'3000,5,2' is not a JSON object"),
        ("[3000]", "is not a JSON object"),
        ('{"timestamp": 3000', "is not a JSON object"),
        ('{"timestamp": ' + "[" * 100_000, "is not a JSON object"),
        ('{"timestamp": ' + "9" * 5000 + "}", "is not a JSON object"),
        ('{"timestamp": 3000, "input_length": 5}', "has no output_length"),
        ('{"timestamp": "3", "input_length": 5, "output_length": 1}', "timestamp is '\"3\"'"),
        (
            f'{{"timestamp": {10**400}, "input_length": 5, "output_length": 5}}',
            "timestamp is '1000",
        ),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1}', "timestamp is 'NaN'"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 1}', "timestamp is '-1'"),
        ('{"timestamp": true, "input_length": 5, "output_length": 1}', "timestamp is 'true'"),
        ('{"timestamp": 1e300, "input_length": 5, "output_length": 1}', "timestamp is '1e+300'"),
        ('{"timestamp": 3000, "input_length": 0, "output_length": 1}', "input_length is '0'"),
        ('{"timestamp": 3000, "input_length": 5, "output_length": 1.0}', "output_length is '1.0'"),
        ('{"timestamp": 3000, "input_length": true, "output_length": 1}', "input_length is 'true'"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}', "sort the file by timestamp"),
    ],
)
def test_bad_line_of_mooncake_is_named(tmp_path, line, says):
    text = message(write(tmp_path, *mooncake(3000), "", line, name="t.jsonl"))
    assert "line 3" in text
    assert says in text
    assert len(text) < 400 + len(str(tmp_path))


# --- rose ---


@st.composite
def traces(draw):
    arrivals = sorted(draw(st.lists(st.floats(0, 1e9), min_size=1, max_size=20)))
    lengths = st.lists(st.integers(1, 1 << 24), min_size=len(arrivals), max_size=len(arrivals))
    return Trace(np.array(arrivals), np.array(draw(lengths)), np.array(draw(lengths)), name="t")


@given(traces(), st.sampled_from(["t.csv", "t.csv.gz"]))
def test_what_is_written_is_read_back_equal(tmp_path_factory, trace, name):
    path = tmp_path_factory.mktemp("written") / name
    write_trace(trace, path)
    back = read_trace(path)
    assert np.array_equal(back.arrival_s, trace.arrival_s)
    assert np.array_equal(back.prompt_tokens, trace.prompt_tokens)
    assert np.array_equal(back.output_tokens, trace.output_tokens)
    first = path.read_bytes()
    write_trace(trace, path)
    assert path.read_bytes() == first
    assert [at.name for at in path.parent.iterdir()] == [name]


def test_own_arrivals_count_from_the_start_that_was_written(tmp_path):
    trace = read_trace(write(tmp_path, OWN, "2.5,10,3", "7,20,4"))
    assert trace.arrival_s.tolist() == [2.5, 7.0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("-1,5,2", "arrival_s is '-1'"),
        ("nan,5,2", "arrival_s is 'nan'"),
        ("inf,5,2", "arrival_s is 'inf'"),
        ("1e999,5,2", "arrival_s is '1e999'"),
        ("1_0,5,2", "arrival_s is '1_0'"),
        ("9,5,0", "output_tokens is '0'"),
        ("1,5,2", "arrival_s '1' is earlier"),
        ("9,5", "has 2 values, not 3"),
    ],
)
def test_bad_row_of_our_own_is_named(tmp_path, row, says):
    text = message(write(tmp_path, OWN, "2,5,2", row))
    assert "line 3" in text
    assert says in text


def test_trace_that_cannot_be_written_leaves_nothing(tmp_path):
    trace = generate("steady", duration_s=10.0, seed=0)
    with pytest.raises(InvalidArgument, match=r"nowhere.*No such file or directory"):
        write_trace(trace, tmp_path / "nowhere" / "t.csv")
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InvalidArgument, match="Is a directory"):
        write_trace(trace, tmp_path / "t.csv")
    with pytest.raises(InvalidArgument, match="has no requests to write"):
        write_trace(trace.head(0), tmp_path / "none.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


# --- every format ---


@pytest.mark.parametrize("header", [",".join(COLUMNS), ",".join(FIRST_COLUMNS), OWN])
def test_header_alone_is_no_trace(tmp_path, header):
    assert "has no requests; give a trace" in message(write(tmp_path, header))


@pytest.mark.parametrize("lines", [[OWN, "1,5,2"], mooncake(3000)])
def test_byte_order_mark_is_harmless(tmp_path, lines):
    path = write(tmp_path, *lines)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_trace(path)) == 1
