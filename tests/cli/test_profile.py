"""`rose profile`: an engine over a real socket, and traces in virtual time."""

import json
import signal
import threading

import pytest

from rose.cli import profile as profile_module
from rose.cli.main import main
from rose.cli.profile_engine import token_bytes
from rose.cli.profile_report import Pool
from rose.cli.profile_trace import ServedRequests, StepEnds, device_of
from rose.errors import InvalidArgument
from rose.sim import DeviceModel, Request, simulate
from rose.slo import SLO
from rose.traces import generate, write_trace
from rose.units import GIB, NS_PER_S
from tests.cli import engine_pages
from tests.cli.engine_pages import serving, sglang, vllm


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


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.csv"
    write_trace(generate("chat", duration_s=40.0, seed=0), path)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to be in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


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
    assert (report["kind"], report["readings"], report["complete"]) == ("engine", 39, True)
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
        (vllm(kv=float("nan")), "negative or no number"),
        (vllm(running=-1), "negative or no number"),
        (vllm().replace("kv_cache_usage", "x"), "does not say vllm:kv_cache_usage_perc"),
        (engine_pages.endless, "more than 4 MiB"),
        (engine_pages.not_http, "does not answer"),
        (vllm(blocks="None"), "give --kv-gib"),
        (vllm(model="acme/secret"), "of which rose knows no shape; give --kv-gib"),
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


def test_a_trace_is_served_under_each_pair_of_targets(capsys, tmp_path, chat):
    out = tmp_path / "out"
    arguments = ("--seconds", 30, "--every", 1, "--slo", "200:12", "--slo", "500:50")
    status, text, error = run(capsys, chat, *arguments, "--out", out)
    assert (status, error) == (0, "")
    report = written(out)
    assert report["kind"] == "trace"
    assert report["readings"] >= 30
    tight, loose = report["rows"]
    assert 0 <= tight["compute_share"] < loose["compute_share"] < 1
    assert loose["excess_late_share"] <= 0.01
    assert 1 < tight["tpot_p50_times_alone"] < loose["tpot_p50_times_alone"]
    assert f"{loose['tpot_p50_times_alone']:.2f} / {loose['tpot_p99_times_alone']:.2f}" in text
    # Rows are those of the simulator under the same targets.
    assert "500/50" in text
    again = tmp_path / "again"
    run(capsys, chat, *arguments, "--out", again)
    assert written(again)["rows"] == report["rows"]


def test_what_an_engine_would_have_said_is_what_the_simulator_did():
    """Against the plain count, for one request after the other and for two at once."""
    requests = [Request(0.0, 1000, 50), Request(2000.0, 500, 20), Request(2001.0, 200, 100)]
    device, steps = DeviceModel(), StepEnds()
    alone = simulate(requests, device, "alone", slo=SLO(1e6, 1e6), seed=0, observer=steps)
    served = ServedRequests(requests, alone, steps)
    pool = Pool(kv_bytes=10_000, reserve_bytes=0, slab_bytes=1).device(SLO(500, 50))

    def at(ms):
        return served.observation(ms, pool, token_bytes=1, batch_max=64)

    first = alone.requests[0]
    end_ms = first.ttft_ms + 49 * first.mean_tpot_ms
    assert at(0.0).running == 1
    assert at(end_ms - 1e-3).kv_used == pytest.approx((1000 + 50) / 10_000, abs=1e-4)
    middle = at(first.ttft_ms + 24.5 * first.mean_tpot_ms)
    assert middle.kv_used == pytest.approx((1000 + 25.5) / 10_000, abs=1e-4)
    assert (at(end_ms + 1).running, at(end_ms + 1).kv_used) == (0, 0.0)
    assert at(2001.5).running + at(2001.5).waiting == 2
    quiet = at(1990.0)
    assert quiet.ttft_ms_p99 == pytest.approx(first.ttft_ms)
    assert quiet.tpot_ms_p99 == pytest.approx(first.mean_tpot_ms, rel=0.1)
    # The first token came 15 s before at most, and so did all others.
    assert at(10_000.0).ttft_ms_p99 == max(one.ttft_ms for one in alone.requests)
    said = [(one.output_tokens - 1, one.mean_tpot_ms) for one in alone.requests]
    count = sum(n for n, _ in said)
    gaps_ms, waited = served._gaps(10_000.0)
    assert waited.sum() == count
    assert (gaps_ms * waited).sum() / count == pytest.approx(sum(n * ms for n, ms in said) / count)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-file.csv"], "no-such-file.csv"),
        (["{chat}", "--slo", "500"], "no pair of targets"),
        (["{chat}", "--slo", "0:50"], "no pair of targets"),
        (["{chat}", "--slo", "nan:50"], "no pair of targets"),
        (["{chat}", "--seconds", "0"], "--seconds must be above 0"),
        (["{chat}", "--seconds", "nan"], "--seconds must be above 0"),
        (["{chat}", "--every", "-1"], "--every must be above 0"),
        (["{chat}", "--every", "0.0001"], "larger --every"),
        (["{chat}", "--seconds", "0.01", "--every", "0.01"], "longer piece with --seconds"),
        (["{chat}", "--load", "1.5"], "a load of 1.5 is not possible"),
        (["{chat}", "--kv-gib", "nan"], "--kv-gib of nan is no size"),
        (["{chat}", "--kv-gib", "0"], "holds nothing"),
        (["{chat}", "--reserve-gib", "-1"], "--reserve-gib of -1 is no size"),
        (["{chat}", "--reserve-gib", "90"], "leaves nothing of a KV pool"),
        (["{chat}", "--noise", "-1"], "DeviceModel(noise=-1.0) is out of range"),
        (["{chat}", "--gpu", "H200"], "--gpu needs --model"),
        (["{chat}", "--model", "Qwen3-8B"], "needs --gpu"),
        (["{chat}", "--model", "Qwen3-8B", "--gpu", "Z80"], "no figures for --gpu Z80"),
        (["{chat}", "--model", "Who", "--gpu", "H200"], "no model 'Who'"),
        (["{chat}", "--out", "{chat}"], "is a file: name a folder"),
        (["http://localhost:port"], "is no URL"),
        (["ftp://localhost"], "is no URL"),
        (["http://localhost:1", "--load", "0.5"], "--load is of a trace"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_left_behind(
    capsys, here, chat, arguments, sentence
):
    given = [one.format(chat=chat) for one in arguments]
    status, text, error = run(capsys, *given)
    assert (status, text) == (2, "")
    assert error.count("\n") == 1
    assert sentence in error
    assert not list(here.iterdir())


def test_a_pool_is_as_large_as_the_model_makes_it():
    # 36 layers, 8 heads of 128 for K and for V, two bytes each.
    assert token_bytes("Qwen/Qwen3-8B") == 36 * 8 * 128 * 2 * 2
    assert token_bytes("meta-llama/Llama-3.1-8B-Instruct") == 32 * 8 * 128 * 2 * 2
    with pytest.raises(InvalidArgument, match="of which rose knows no shape"):
        token_bytes("")


def test_a_device_of_the_table_takes_what_its_roofline_says():
    small = device_of(model="Qwen3-8B", gpu="H200", noise=None)
    large = device_of(model="Qwen3-32B", gpu="H200", noise=None)
    assert 3 < large.device.base_ms / small.device.base_ms < 5
    assert small.token_bytes == 147456
    assert small.name == "Qwen3-8B on H200 SXM"
