"""`rose profile`: an engine over a real socket."""

import json
import signal
import threading

import pytest

from rose.cli.main import main
from rose.errors import InvalidArgument
from rose.units import GIB, NS_PER_S
from rose_lab.cli import profile as profile_module
from rose_lab.cli.profile_engine import token_bytes
from tests.lab.cli import engine_pages
from tests.lab.cli.engine_pages import serving, sglang, vllm


def run(capsys, *arguments):
    status = main(["profile", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def written(out):
    return json.loads((out / "profile.json").read_text())


class JumpClock:
    """A clock whose sleeps are over at once."""

    def __init__(self):
        self.ns = 0

    def now_ns(self):
        self.ns += 1000  # whatever is done takes a moment
        return self.ns

    def sleep(self, seconds):
        self.ns += round(seconds * NS_PER_S)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(profile_module, "BootClock", JumpClock)


def engine_day(polls=40):
    """Pages of an engine that is idle for half of its time and then works at 20 ms a token."""
    for n in range(polls):
        busy = max(0, n - polls // 2)
        yield vllm(kv=0.3 if busy else 0.0, running=3 if busy else 0,
                   ttft=(0.09,) * busy, tpot=(0.02,) * 10 * busy)  # fmt: skip


def test_an_engine_is_asked_and_a_report_is_left(capsys, tmp_path):
    out = tmp_path / "out"
    with serving(*engine_day()) as server:
        status, text, error = run(capsys, server.url, "--seconds", 191, "--out", out)
    assert (status, error) == (0, "")
    assert set(server.paths) == {"/metrics"}
    report = written(out)
    assert (report["readings"], report["complete"]) == (39, True)
    assert report["settings"]["engine"] == "vLLM"
    # 16384 blocks of 16 tokens of Qwen3-8B, 144 KiB each.
    assert report["kv_gib"] == pytest.approx(16384 * 16 * 147456 / GIB)
    strict, middle, loose = report["rows"]
    assert strict["compute_share"] < middle["compute_share"] < loose["compute_share"]
    # Half of the time is idle, and a token takes 10 to 25 ms, as the buckets tell.
    p99_ms = 10 + 0.99 * 15
    assert middle["compute_share"] == pytest.approx(0.5 + 0.5 * (1 - p99_ms / 50), abs=0.02)
    assert middle["met_alone"] == 1.0
    assert middle["lent_gib_mean"] > 0
    assert "500/50" in text


def test_an_engine_of_the_other_kind_and_a_pool_that_is_given(capsys, tmp_path):
    with serving(sglang()) as server:
        status, _, _ = run(
            capsys, server.url, "--seconds", 30, "--kv-gib", 40, "--slo", "300:30",
            "--out", tmp_path / "out",
        )  # fmt: skip
    report = written(tmp_path / "out")
    assert (status, report["kv_gib"], len(report["rows"])) == (0, 40, 1)
    assert report["settings"]["engine"] == "SGLang"


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (500, "answers with status 500"),
        ("", "there are no metrics of vLLM"),
        (vllm(blocks="None"), "give --kv-gib"),
        (vllm(model="acme/secret"), "whose shape rose does not know; give --kv-gib"),
        (vllm(blocks=1), "leaves nothing of a KV pool"),
    ],
)
def test_a_bad_engine_is_one_sentence_and_nothing_is_left_behind(capsys, tmp_path, page, sentence):
    with serving(page) as server:
        status, text, error = run(capsys, server.url, "--out", tmp_path / "out")
    assert (status, text) == (2, "")
    assert error.startswith("rose: ")
    assert error.count("\n") == 1
    assert sentence in error
    assert not (tmp_path / "out").exists()


def test_an_engine_that_goes_away_is_reported_until_then(capsys, tmp_path):
    with serving(*[vllm()] * 20, 500) as server:
        status, text, _ = run(capsys, server.url, "--seconds", 500, "--out", tmp_path / "out")
    report = written(tmp_path / "out")
    assert status == 130
    assert (report["complete"], report["readings"], len(report["failures"])) == (False, 19, 5)
    assert report["verdict"].startswith("Stopped early: ")
    assert "status 500" in text


def test_an_interrupt_reports_what_there_is(capsys, tmp_path):
    def interrupted(handler, given):
        signal.pthread_kill(main_thread.ident, signal.SIGINT)
        engine_pages.silent(handler, given)

    main_thread = threading.main_thread()
    with serving(*[vllm()] * 12, interrupted) as server:
        status, text, _ = run(capsys, server.url, "--seconds", 500, "--out", tmp_path / "out")
    assert status == 130
    assert "stopped early" in text
    report = written(tmp_path / "out")
    assert (report["readings"], report["failures"]) == (11, [])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--slo", "500"], "must be a pair of targets"),
        (["--slo", "0:50"], "must be a pair of targets"),
        (["--slo", "nan:50"], "must be a pair of targets"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--seconds", "nan"], "--seconds must be above 0"),
        (["--every", "-1"], "--every must be above 0"),
        (["--every", "0.0001"], "larger --every"),
        (["--kv-gib", "nan"], "--kv-gib must be from 0 to 1048576 GiB, got nan"),
        (["--kv-gib", "0"], "leaves nothing of a KV pool"),
        (["--reserve-gib", "-1"], "--reserve-gib must be from 0 to 1048576 GiB, got -1"),
        (["--reserve-gib", "90"], "leaves nothing of a KV pool"),
        (["--model", "Who"], "whose shape rose does not know"),
        (["--out", __file__], "is a file: name a folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_left_behind(
    capsys, tmp_path, monkeypatch, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    with serving(vllm()) as server:
        status, text, error = run(capsys, server.url, *arguments)
    assert (status, text) == (2, "")
    assert error.count("\n") == 1
    assert sentence in error
    assert not list(tmp_path.iterdir())


def test_an_invalid_url_is_one_sentence(capsys, tmp_path):
    status, text, error = run(capsys, "trace.csv", "--out", tmp_path / "out")
    assert (status, text) == (2, "")
    assert "'trace.csv' must be a URL" in error


def test_a_pool_is_as_large_as_the_model_makes_it():
    # 36 layers, 8 heads of 128 for K and for V, two bytes each.
    assert token_bytes("Qwen/Qwen3-8B") == 36 * 8 * 128 * 2 * 2
    assert token_bytes("meta-llama/Llama-3.1-8B-Instruct") == 32 * 8 * 128 * 2 * 2
    with pytest.raises(InvalidArgument, match="whose shape rose does not know"):
        token_bytes("")
