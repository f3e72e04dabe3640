import builtins
import struct
from pathlib import Path

import pytest

from rose.cli.main import main
from rose.traces import generate, write_trace

PNG = b"\x89PNG\r\n\x1a\n"
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


def test_plot_is_a_whole_png_and_the_same_each_time(capsys, tmp_path, code):
    plots = tmp_path / "plots"
    plots.mkdir()
    out = plots / "code.png"
    assert run(capsys, code, "--out", out)[0] == 0
    data = out.read_bytes()
    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    assert width > 800
    assert height > 500
    assert [path.name for path in plots.iterdir()] == ["code.png"]
    assert out.stat().st_mode & 0o777 == 0o644
    status, said, _ = run(capsys, code, "--out", out)
    assert (status, out.read_bytes()) == (0, data)
    assert said.splitlines()[-1] == f"plot: {out}"


@pytest.mark.parametrize("text", ["arrival_s,prompt_tokens,output_tokens\n0,1,1\n"])
def test_one_request_can_be_described_and_drawn(capsys, tmp_path, text):
    (tmp_path / "one.csv").write_text(text)
    status, out, _ = run(capsys, tmp_path / "one.csv", "--out", tmp_path / "one.png")
    assert status == 0
    assert "1 request in 0.0 s" in out
    assert (tmp_path / "one.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("text", "out", "says"),
    [
        (None, "plot.png", "does not exist"),
        ("a,b\n1,2\n", "plot.png", "line 1 is 'a,b'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,x\n", "plot.png", "output_tokens is 'x'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n", "plot.svg", "does not end in .png"),
        (
            "arrival_s,prompt_tokens,output_tokens\n0,1,1\n",
            "no/plot.png",
            "no/plot.png: No such file",
        ),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n", "dir.png", "Is a directory"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(capsys, tmp_path, text, out, says):
    (tmp_path / "dir.png").mkdir()
    if text is not None:
        (tmp_path / "t.csv").write_text(text)
    before = sorted(path.name for path in tmp_path.iterdir())
    status, said, err = run(capsys, tmp_path / "t.csv", "--out", tmp_path / out)
    assert (status, said) == (2, "")
    assert err.startswith("rose: ")
    assert err.count("\n") == 1
    assert says in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_without_matplotlib_there_is_a_sentence(capsys, monkeypatch, code):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("rose.cli.trace_plot"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    status, _, err = run(capsys, code, "--out", code.parent / "plot.png")
    assert status == 2
    assert "a plot needs matplotlib" in err
    assert not Path(code.parent / "plot.png").exists()
    assert run(capsys, code)[0] == 0
