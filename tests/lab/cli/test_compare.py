"""`rose compare` from the command line, in virtual time and on real engines."""

import json
import threading
from pathlib import Path
from typing import Final

import pytest

from rose.cli.main import main
from rose.errors import InvalidArgument
from rose_lab.demo import virtual
from rose_lab.demo.experiment import pieces_of
from rose_lab.demo.schemes import SCHEMES
from rose_lab.demo.virtual import piece_of
from rose_lab.sim.simulation import SCHEMES as SIMULATED
from rose_lab.traces import generate, write_trace

QUICK = ("compare", "--virtual", "--seconds", "4", "--profile", "steady")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def written(folder: Path) -> dict[str, object]:
    report: dict[str, object] = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    return report


def test_virtual_time_shows_every_scheme_and_every_certificate_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    status, said, _ = run(capsys, *QUICK, "--without", "gate", "--load", "0.8", "--out", str(out))
    assert status == 0
    report = written(out)
    assert report["mode"] == "modelled"
    assert report["complete"] is True
    (at,) = report["loads"]  # type: ignore[misc]
    names = [one for one in SCHEMES if one in SIMULATED]
    names.insert(names.index("rose_slack") + 1, "rose_slack-gate")
    assert list(at["arms"]) == names
    assert abs(at["arms"]["alone"]["busy_share"] - 0.8) < 0.05
    for name in ("rose_idle", "rose", "rose_slack"):
        certificates = at["certificates"][name]
        assert certificates["granted"] == certificates["verified"] > 0, name
        assert certificates["violations"] == 0
    harvest = {name: arm["harvested_tokens_share"] for name, arm in at["arms"].items()}
    assert (
        harvest["clairvoyant"] > harvest["rose_slack"] > harvest["rose"] > harvest["rose_idle"] > 0
    )
    assert harvest["alone"] == 0
    # Without gates inside it a whole step is one loan.
    granted = {name: found["granted"] for name, found in at["certificates"].items()}
    assert granted["rose_slack-gate"] < granted["rose_slack"]
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "compare.svg"]
    assert "rose slack" in said
    assert said.splitlines()[-1] == f"report: {out / 'compare.json'}, {out / 'compare.svg'}"


def test_equal_arguments_give_equal_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = []
    for name in ("a", "b"):
        line = ("--sweep", "0.5,0.3", "--schemes", "valve,rose_slack", "--seed", "3")
        assert run(capsys, *QUICK, *line, "--out", str(tmp_path / name))[0] == 0
        reports.append(written(tmp_path / name))
    assert [at["load"] for at in reports[0]["loads"]] == [0.3, 0.5]  # type: ignore[attr-defined]
    assert reports[0]["loads"] == reports[1]["loads"]


def test_a_trace_of_a_file_is_what_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(generate("chat", duration_s=300.0, seed=5), tmp_path / "t.csv")
    line = ("compare", "--virtual", "--trace", str(tmp_path / "t.csv"), "--schemes", "priority")
    out = tmp_path / "out"
    assert run(capsys, *line, "--seconds", "5", "--load", "0.3", "--out", str(out))[0] == 0
    settings: dict[str, object] = written(out)["settings"]  # type: ignore[assignment]
    assert settings["trace"] == "t.csv"


def test_an_interrupt_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = virtual.simulate

    def until_valve(requests, device, scheme, **more):  # type: ignore[no-untyped-def]
        if scheme == "valve":
            raise KeyboardInterrupt
        return real(requests, device, scheme, **more)

    monkeypatch.setattr(virtual, "simulate", until_valve)
    out = tmp_path / "out"
    status, said, _ = run(capsys, *QUICK, "--schemes", "priority,valve", "--out", str(out))
    assert status == 130
    assert "interrupted" in said
    report = written(out)
    assert report["complete"] is False
    (at,) = report["loads"]  # type: ignore[misc]
    assert [name for name, arm in at["arms"].items() if arm["requests"]] == ["alone", "priority"]


def test_a_short_trace_is_refused() -> None:
    trace = generate("steady", duration_s=60.0, seed=1)
    with pytest.raises(InvalidArgument, match="lower --seconds or --load"):
        piece_of(trace, 2 * trace.mean_rate_rps, seconds=60.0, seed=0)
    with pytest.raises(InvalidArgument, match="give a longer trace, or lower the load"):
        pieces_of(trace, count=2, seconds=31.0, seed=0)


_BAD: Final = (
    (("--trace", "nowhere.csv"), "nowhere.csv does not exist"),
    (("--trace", "t.csv", "--profile", "code"), "--trace and --profile both define"),
    (("--load", "0.5", "--sweep", "0.5"), "--load and --sweep both define"),
    (("--load", "1"), "more than 0 and less than 1, not 1"),
    (("--load", "0"), "more than 0 and less than 1, not 0"),
    (("--sweep", "0.3,x"), "--sweep must be a list of numbers such as 0.3,0.5,0.7, not 0.3,x"),
    (("--sweep", "nan"), "more than 0 and less than 1, not nan"),
    (("--schemes", "valve,magic"), "--schemes magic is not known: use alone, "),
    (("--without", "luck"), "--without luck is not a mechanism of rose: use gate"),
    (("--tpot-ms", "0"), "tpot_ms must be above 0 and at most 9e12, got 0.0"),
    (("--ttft-ms", "-1"), "ttft_ms must be above 0 and at most 9e12, got -1.0"),
    (("--seconds", "0"), "--seconds must be above 0 and at most a day, not 0"),
    (("--length-scale", "0"), "length scale is 0"),
    (("--seed", "-1"), "seed is -1"),
    (("--out", "file"), "--out file is a file: name a folder"),
    (("--out", "file/below"), "cannot write to --out file/below: Not a directory; name a folder"),
    (("--out", "o" * 300), "File name too long"),
)
_BAD_VIRTUAL: Final = (
    (("--seconds", "1e9"), "--seconds must be above 0 and at most a day, not 1e+09"),
    (("--seconds", "80000"), "lower --seconds or --load"),
    (("--schemes", "alone_again"), "--schemes alone_again"),
    (("--noise", "-1"), "noise=-1.0"),
    (("--noise", "1e308"), "noise=1e+308) must be at most 3"),
    (("--noise", "inf"), "noise=inf) must be at most 3"),
    (("--noise", "nan"), "noise=nan"),
)
_BAD_REAL: Final = (
    (("--noise", "-1"), "--noise needs --virtual"),
    (("--trace", "nowhere.csv"), "nowhere.csv does not exist"),
)


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [(("--virtual",), *one) for one in _BAD + _BAD_VIRTUAL] + [((), *one) for one in _BAD_REAL],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(  # noqa: PLR0917 (fixtures)
    kind: tuple[str, ...],
    arguments: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path.with_name(f"{tmp_path.name}-scratch")
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    (tmp_path / "file").write_text("")
    threads = set(threading.enumerate())
    assert main(["compare", *kind, *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("rose: ")
    assert named in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert list(scratch.glob("rose-*")) == []
    assert set(threading.enumerate()) == threads


def test_real_engines_without_a_second_core_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    status, _, error = run(capsys, "compare", "--out", str(tmp_path / "out"))
    assert status == 2
    assert "there is one usable core" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # eight engines, in turns, whatever else the machine does
def test_real_engines_run_rivals_and_rose_on_the_same_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    names = "share_all,priority,rose_paper,valve,rose_slack"
    line = ("compare", "--seconds", "2", "--schemes", names, "--out", str(out))
    status, said, error = run(capsys, *line)
    assert status == 0, error
    report = written(out)
    assert report["mode"] == "measured"
    (at,) = report["loads"]  # type: ignore[misc]
    assert list(at["arms"]) == ["alone", *names.split(",")]
    certificates = at["certificates"]["rose_slack"]
    assert certificates["granted"] == certificates["verified"]
    # Slices in which somebody else used the core are void, and their requests do not count.
    judged = {name: arm for name, arm in at["arms"].items() if arm["requests"]}
    assert len({arm["requests"] for arm in judged.values()}) == (1 if judged else 0)
    assert report["slices"]["judged"] == len(judged)  # type: ignore[index]
    for name in judged.keys() & {"share_all", "priority", "rose_paper", "rose_slack"}:
        assert judged[name]["rollout_tokens_per_s"] > 0, name
    if "rose_slack" in judged:
        assert certificates["granted"] > 0
    assert "static_split" in said
