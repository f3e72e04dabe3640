import pytest

from rose.cli.main import main
from rose.traces import generate, write_trace

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def run(capsys, *arguments):
    status = main(["trace", "describe", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "code.csv.gz"
    write_trace(generate("code", duration_s=300.0, seed=0), path)
    return path


def test_table_says_what_the_trace_is_like(capsys, tmp_path):
    path = tmp_path / "[b].csv"
    rows = [f"{i},A,{100 + i},{i % 5},9,x\n" for i in range(121)]
    path.write_text(BURST + "".join(rows))
    status, out, err = run(capsys, path)
    assert (status, err) == (0, "")
    # Every fifth failed, and so did the first: 96 requests from the second 1 to the second 119.
    assert "[b].csv: BurstGPT trace, 96 requests in 118.0 s, 25 rows skipped" in out
    words = [line.split() for line in out.splitlines()]
    assert "by the second 0.81 1.00 (1.23) 1.00 (1.23) 1.00 (1.23)".split() in words
    assert "by the minute 0.81 0.80 (0.98) 0.80 (0.98) 0.80 (0.98)".split() in words
    # 95 of 118 seconds hold one request: a variance of 0.157 over a mean of 0.805.
    (burstiness,) = [line for line in words if line[:3] == ["variance", "/", "mean"]]
    assert burstiness[-3:] == ["0.19", "0.00", "-"]
    assert "prompt 160 160 208 218 219".split() in words
    assert "output 2 2 4 4 4".split() in words


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_no_cell_is_cut(capsys, monkeypatch, code, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run(capsys, code)
    assert "…" not in out if int(columns) >= 80 else "tokens" in out


def test_one_request_can_be_described(capsys, tmp_path):
    (tmp_path / "one.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    status, out, _ = run(capsys, tmp_path / "one.csv")
    assert status == 0
    assert "1 request in 0.0 s" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "does not exist"),
        ("a,b\n1,2\n", "line 1 is 'a,b'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,x\n", "output_tokens is 'x'"),
    ],
)
def test_bad_input_is_one_sentence(capsys, tmp_path, text, says):
    if text is not None:
        (tmp_path / "t.csv").write_text(text)
    status, said, err = run(capsys, tmp_path / "t.csv")
    assert (status, said) == (2, "")
    assert err.startswith("rose: ")
    assert err.count("\n") == 1
    assert says in err
