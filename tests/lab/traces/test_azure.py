import gzip

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose_lab.traces import read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = [
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:50.9951690,879,55",
]


def write(tmp_path, *lines, name="t.csv", end="\n"):
    path = tmp_path / name
    data = end.join([HEADER, *lines]).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def message(path):
    with pytest.raises(InvalidArgument) as caught:
        read_trace(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_reads_plain_and_compressed(tmp_path, name, end):
    trace = read_trace(write(tmp_path, *GOOD, name=name, end=end))
    assert trace.name == name
    assert trace.arrival_s == pytest.approx([0.0, 4.314579, 4.314579], abs=1e-12)
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.arrival_s.dtype == np.float64
    assert trace.prompt_tokens.dtype == np.int64


def test_seventh_digit_counts(tmp_path):
    trace = read_trace(
        write(tmp_path, "2023-11-16 18:15:46.0000001,1,1", "2023-11-16 18:15:46.0000004,1,1")
    )
    assert trace.arrival_s[1] == pytest.approx(3e-7)


def test_later_release_has_an_offset_of_zero(tmp_path):
    trace = read_trace(
        write(tmp_path, "2024-05-10 00:00:00.009930+00:00,1,1", "2024-05-11 00:00:00+00:00,2,2")
    )
    assert trace.duration_s == pytest.approx(86400 - 0.00993)


def test_blank_lines_and_byte_order_mark_are_harmless(tmp_path):
    path = write(tmp_path, GOOD[0], "", GOOD[1], "", "")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_trace(path)) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("2023-11-16 18:15:51.0,1", "has 2 values"),
        ("2023-11-16 18:15:51.0,1,2,3", "has 4 values"),
        ("yesterday,1,2", "'yesterday' is malformed"),
        ("2023-13-16 18:15:51.0,1,2", "'2023-13-16 18:15:51.0' is malformed"),
        ("2023-11-16 18:15:51.,1,2", "is malformed"),
        ("2023-11-16 18:15:51.0,0,2", "ContextTokens is '0'"),
        ("2023-11-16 18:15:51.0,5,-2", "GeneratedTokens is '-2'"),
        ("2023-11-16 18:15:51.0,1.5,2", "ContextTokens is '1.5'"),
        ("2023-11-16 18:15:51.0,,2", "ContextTokens is ''"),
        ("2023-11-16 18:15:51.0,1_0,2", "ContextTokens is '1_0'"),
        ("2023-11-16 18:15:51.0," + "9" * 5000 + ",2", "ContextTokens is '9999"),
        ("2023-11-16 18:15:46.0,1,2", "earlier than that of the previous request; sort"),
        ('2023-11-16 18:15:51.0,"1,2', "is not CSV"),
        ("2023-11-16 18:15:51.0,\u0663,2", "ContextTokens is"),
    ],
)
def test_bad_line_is_named_by_number_and_value(tmp_path, line, says):
    text = message(write(tmp_path, *GOOD[:2], "", line, GOOD[0]))
    assert "line 5" in text
    assert says in text
    assert len(text) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("first_line", ["a,b,c", "", "\0", '"a', "TIMESTAMP,ContextTokens"])
def test_an_unknown_format_is_refused_with_the_four_known_ones(tmp_path, first_line):
    path = tmp_path / "other.csv"
    path.write_text(first_line + "\n1,2,3\n")
    text = message(path)
    assert f"line 1 is {first_line!r}" in text
    for word in (HEADER, "Azure", "BurstGPT", "Mooncake", "rose", "arrival_s"):
        assert word in text


def test_missing_directory_and_unreadable(tmp_path):
    assert "does not exist" in message(tmp_path / "none.csv")
    assert "does not exist" in message(tmp_path / "none.csv.gz")
    assert "is a directory" in message(tmp_path)
    (tmp_path / "file").touch()
    assert "cannot be read: Not a directory" in message(tmp_path / "file" / "below.csv")


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz"])
def test_empty_and_header_only(tmp_path, name):
    path = tmp_path / name
    path.touch()
    assert "is empty" in message(path)
    assert "no requests" in message(write(tmp_path, "", name=name))


def test_damaged_gzip(tmp_path):
    whole = write(tmp_path, *(GOOD[1:] * 500), name="t.csv.gz")
    data = whole.read_bytes()
    cut = tmp_path / "cut.gz"
    for size in (1, 5, 10, 11, len(data) // 2, len(data) - 1):
        cut.write_bytes(data[:size])
        assert "cut off" in message(cut) or "not a sound gzip" in message(cut)
    flipped = tmp_path / "flipped.gz"
    for at in range(10, len(data), 7):
        flipped.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        message(flipped)
    plain = tmp_path / "plain.csv.gz"
    plain.write_text(HEADER)
    assert "ends in .gz" in message(plain)
    hidden = tmp_path / "hidden.csv"
    hidden.write_bytes(data)
    assert "ends in .gz" in message(hidden)
    twice = tmp_path / "twice.csv.gz"
    twice.write_bytes(gzip.compress(data))
    assert "twice" in message(twice)


@pytest.mark.parametrize("data", [bytes(range(256)) * 10, b"\0" * 100, b"\xff\xfeT\0I\0"])
def test_binary_garbage(tmp_path, data):
    path = tmp_path / "garbage.csv"
    path.write_bytes(data)
    assert "TIMESTAMP" in message(path)
