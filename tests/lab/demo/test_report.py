import builtins
import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rose.errors import InvalidArgument
from rose.slo import SLO
from rose_lab.demo import verdict as verdicts
from rose_lab.demo.record import ARMS, Answered, Audit, LendingRecord, SliceTimeline
from rose_lab.demo.report import print_table, render_html, summarise, write_report
from tests.lab.demo.records import EMPTY_RL_LOOP, solo, tiny_broker, tiny_record, tiny_rl_loop


@pytest.fixture(autouse=True, scope="module")
def few_requests_are_enough():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "REQUESTS_MIN", 6)
        yield


def table_of(report, width=100):
    out = io.StringIO()
    print_table(report, Console(file=out, width=width))
    return out.getvalue()


def check_of(report, name):
    (found,) = [c for c in report["verdict"]["checks"] if c["name"] == name]
    return found


def test_numbers_of_an_arm():
    rose = summarise(tiny_record())["arms"]["rose"]
    # All six: 10, 20, 30, 100, 210, 300.
    assert rose["ttft_ms_p50"] == 65.0
    assert rose["ttft_ms_p90"] == 255.0
    assert rose["ttft_ms_p99"] == pytest.approx(295.5)
    # The four that have one: 10, 12, 12, 20.
    assert rose["tpot_ms_p50"] == 12.0
    assert rose["tpot_ms_p90"] == pytest.approx(17.6)
    # Of six, only (300, 20) misses.
    assert rose["slo_attainment"] == pytest.approx(5 / 6)
    assert rose["busy_share"] == 0.4
    assert rose["rollout_tokens_per_s"] == 30.0
    assert rose["harvested_share"] == 0.5
    assert rose["requests"] == 6


def test_harvest_is_tokens_over_the_same_rollouts_alone():
    arms = summarise(tiny_record())["arms"]
    # 30 tokens/s of 60 in the time of segments; these ran for 5 s of 10.
    assert arms["rose"]["harvested_tokens_share"] == 0.5
    assert arms["rose"]["harvested_share"] == 0.5
    assert arms["share_all"]["harvested_tokens_share"] == 1.0  # 60 of 60 tokens/s
    solos = (solo("share_all", 2.0, 120), solo("rose", 4.0, 120, 1.0))
    arms = summarise(tiny_record(solo=solos))["arms"]
    assert arms["rose"]["harvested_tokens_share"] == 0.25
    assert arms["rose"]["harvested_share"] == 0.5


def test_what_was_certifiable_comes_from_alone_and_not_from_rose():
    report = summarise(tiny_record())
    assert report["certifiable_idle_share"] == pytest.approx(0.6)
    assert report["harvest_over_certifiable"] == pytest.approx(0.5 / 0.6)
    # A chunk takes 40 ms and a segment 3 ms with its signal.
    report = summarise(tiny_record(slo=SLO(ttft_ms=42.0, tpot_ms=15.0)))
    assert report["certifiable_idle_share"] == 0.0
    assert report["harvest_over_certifiable"] is None
    verdict = report["verdict"]
    assert verdict["void"] is True
    assert verdict["next_command"] == "rose demo --ttft-ms 130"
    assert "nothing could be certified, because a full chunk takes 40 ms" in verdict["sentence"]


def test_void_slices_count_in_nothing():
    record = tiny_record()
    bad = dataclasses.replace(record.slices[0], round=9, serving_busy_s=9.0, is_void=True)
    assert summarise(dataclasses.replace(record, slices=(*record.slices, bad))) == summarise(record)


def test_a_run_of_void_slices_is_void():
    record = tiny_record()
    void = tuple(dataclasses.replace(one, is_void=True) for one in record.slices)
    verdict = summarise(dataclasses.replace(record, slices=void))["verdict"]
    assert verdict["void"] is True
    assert "foreign CPU time" in verdict["sentence"]


def test_p99_is_compared_when_there_are_enough_requests():
    assert summarise(tiny_record())["ratios"]["aa"]["ttft_p99"] is None
    many = tuple(
        dataclasses.replace(one, requests=one.requests * 50) for one in tiny_record().slices
    )
    ratios = summarise(tiny_record(slices=many))["ratios"]
    assert ratios["aa"]["ttft_p99"] == 1.0
    assert ratios["share_all"]["ttft_p99"] == 2.0


def test_little_lent_is_explained():
    binding = {"shape": "chunk", "predicted_ms": 60.0, "bound_ms": 245.0, "target_ms": 200.0}
    lending = LendingRecord(
        {"slo_at_risk": 500, "no_evidence": 0}, {}, 0.0, binding | {"sentence": "a chunk is long"}
    )
    slices = tuple(
        dataclasses.replace(one, rollout_tokens=1) if one.arm == "rose" else one
        for one in tiny_record().slices
    )
    report = summarise(tiny_record(lending=lending, slices=slices))
    assert report["refusals"]["slo_at_risk"] == 500
    assert report["binding"]["bound_ms"] == 245.0
    text = table_of(report)
    assert "Quanta refused: slo_at_risk 500." in text
    assert "The last refusal: a chunk is long." in text
    assert "Quanta refused" not in table_of(summarise(tiny_record(lending=lending)))


def test_ratios_are_paired_by_window():
    ratios = summarise(tiny_record())["ratios"]
    # Median TTFT is 204/200 and 20/20.
    assert ratios["aa"]["ttft_p50"] == pytest.approx(1.01)
    assert ratios["aa"]["tpot_p50"] == 1.0
    # 400/200 and 80/20; 45/15 and 40/10.
    assert ratios["share_all"]["ttft_p50"] == 3.0
    assert ratios["share_all"]["tpot_p50"] == 3.5
    # 210/200 and 20/20; 15/15 and 12/10. P90 TPOT: 19/19 and 12/10.
    assert ratios["rose"]["ttft_p50"] == pytest.approx(1.025)
    assert ratios["rose"]["tpot_p50"] == pytest.approx(1.1)
    assert ratios["rose"]["tpot_p90"] == pytest.approx(1.1)


def test_keys_are_those_that_were_promised():
    report = summarise(tiny_record())
    assert tuple(report["arms"]) == ARMS
    arm = {f"{name}_ms_p{p}" for name in ("ttft", "tpot") for p in (50, 90, 99)}
    arm |= {"slo_attainment", "busy_share", "rollout_tokens_per_s", "harvested_share", "requests"}
    arm |= {"harvested_tokens_share"}
    assert all(set(numbers) == arm for numbers in report["arms"].values())
    assert set(report["ratios"]) == {"aa", "share_all", "rose"}
    ratio = {f"{name}_p{p}" for name in ("ttft", "tpot") for p in (50, 90, 99)}
    assert all(set(ratios) == ratio for ratios in report["ratios"].values())
    assert report["certificates"] == {"granted": 40, "verified": 40, "violations": 0}
    assert report["revocations"] == {
        "count": 2,
        "latency_ms_p50": 2.0,
        "latency_ms_p99": pytest.approx(2.98),
        "aborted_steps": 3,
    }
    assert report["blocked_by_rollout_ms_p99"] == 1.0
    assert report["segment_ms_p99"] == 2.0
    assert (report["pauses"], report["seed"], report["command"]) == (6, 7, "rose demo")
    assert report["machine"] == {"cpu": "<Acme & Sons>", "cores": 2}
    assert report["settings"] == {"load": 0.5, "slowdown": 0.05}
    assert report["complete"] is True
    assert set(report["verdict"]) == {"void", "sentence", "next_command", "checks"}
    assert report["slices"] == {"judged": 8, "void": 1, "repeated": 1}
    assert report["slo"] == {"ttft_ms": 250.0, "tpot_ms": 15.0, "from": "calibration"}
    assert report["setup_s"] == 60.0
    assert all(set(c) == {"name", "value", "bar", "ok"} for c in report["verdict"]["checks"])


def test_broker_is_in_report_and_table_and_in_none_without_one():
    record = tiny_record(broker=tiny_broker())
    report = summarise(record)
    assert report["broker"] == {
        "decisions": 6,
        "pool_bytes": 64 << 20,
        "mean_cap_bytes": 16 << 20,
        "mean_cap_share": 0.25,
        "lent_time_share": pytest.approx(4 / 6),
        "begun": 1,
        "grown": 1,
        "shrunk": 1,
        "ended": 1,
        "last_why": "first tokens <are> late",
    }
    table = table_of(report)
    assert max(map(len, table.splitlines())) <= 104
    assert re.search(r"6 +16\.0 +25 % +67 % +1/1 +1/1", table)
    assert "The broker's last reason: first tokens <are> late." in table
    without = summarise(tiny_record())
    assert without["broker"] is None
    assert "broker" not in table_of(without)
    undecided = summarise(tiny_record(broker=dataclasses.replace(tiny_broker(), decisions=())))
    assert undecided["broker"]["mean_cap_bytes"] is undecided["broker"]["lent_time_share"] is None
    assert "The broker's last reason: -." in table_of(undecided)


def test_verdict_when_all_is_well():
    report = summarise(tiny_record())
    verdict = report["verdict"]
    assert verdict["void"] is False
    assert verdict["sentence"].startswith("All 11 bars are met")
    assert len(verdict["checks"]) == 11
    # Harvest 0.5 of an idle share of 0.6.
    harvest = check_of(report, "rose harvest / certifiable idle")
    assert harvest["value"] == pytest.approx(0.5 / 0.6)


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        (
            {"solo": (solo("share_all", 2.0, 120), solo("rose", 4.0, 120, 1.2))},
            "rose harvest / certifiable idle",
            0.5,
        ),
        ({"audits": (Audit("rose", 40, 40, 1),)}, "certificates not verified", 1),
        ({"audits": (Audit("rose", 40, 38, 0),)}, "certificates not verified", 2),
        ({"revocations": ()}, "revocations", 0),
    ],
)
def test_missed_bar_is_named(change, name, value):
    report = summarise(tiny_record(**change))
    missed = check_of(report, name)
    assert missed["ok"] is False
    assert missed["value"] == pytest.approx(value)
    assert [c["name"] for c in report["verdict"]["checks"] if c["ok"] is False] == [name]
    assert f"{name} is" in report["verdict"]["sentence"]
    assert not report["verdict"]["void"]


def test_few_requests_miss_their_bar(monkeypatch):
    monkeypatch.setattr(verdicts, "REQUESTS_MIN", 7)
    found = check_of(summarise(tiny_record()), "requests of an arm")
    assert (found["ok"], found["value"]) == (False, 6)


def test_a_quick_run_is_judged_by_what_needs_no_long_run():
    quick = {"settings": {"quick": True}}
    report = summarise(slowed(tiny_record(**quick), "alone_again", 1.2))
    judged = [c["name"] for c in report["verdict"]["checks"] if c["ok"] is not None]
    assert judged == ["certificates not verified"]
    assert report["verdict"]["void"] is False
    assert "too short to judge latency and harvest. All 1 bars" in report["verdict"]["sentence"]
    unverified = summarise(tiny_record(audits=(Audit("rose", 40, 38, 0),), **quick))
    assert "1 of 1 bars missed: certificates not verified" in unverified["verdict"]["sentence"]


def slowed(record, arm, factor):
    def slow(r):
        tpot_ms = None if r.tpot_ms is None else r.tpot_ms * factor
        return dataclasses.replace(r, ttft_ms=r.ttft_ms * factor, tpot_ms=tpot_ms)

    windows = tuple(
        dataclasses.replace(w, requests=tuple(slow(r) for r in w.requests)) if w.arm == arm else w
        for w in record.slices
    )
    return dataclasses.replace(record, slices=windows)


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_control_outside_its_range_voids_the_run(factor):
    verdict = summarise(slowed(tiny_record(), "alone_again", factor))["verdict"]
    assert verdict["void"] is True
    assert "Void" in verdict["sentence"]
    assert "A/A TTFT P50" in verdict["sentence"]


def test_slow_serving_and_harmless_sharing_miss_their_bars():
    report = summarise(slowed(tiny_record(), "rose", 1.2))
    assert check_of(report, "rose TTFT P50 / alone")["ok"] is False
    assert check_of(report, "rose TPOT P50 / alone")["ok"] is False
    report = summarise(slowed(tiny_record(), "share_all", 0.4))
    assert check_of(report, "share_all TPOT P50 / alone")["value"] == pytest.approx(1.4)
    assert check_of(report, "share_all TPOT P50 / alone")["ok"] is False


def test_an_unlimited_slowdown_is_judged_by_the_targets_it_may_spend():
    slack = tiny_record(settings={"slowdown": 10.0})
    report = summarise(slowed(slack, "rose", 2.0))
    assert check_of(report, "rose TPOT P50 / alone")["ok"] is None
    below = check_of(report, "rose SLO shortfall against alone")
    assert below["value"] > 0.02
    assert below["ok"] is False
    assert check_of(summarise(slack), "rose SLO shortfall against alone")["ok"] is True


def empty_record():
    return tiny_record(
        slices=(),
        solo=(),
        audits=(),
        revocations=(),
        timeline=SliceTimeline((), (), ()),
        complete=False,
    )


def test_interrupted_run_is_reported(tmp_path):
    windows = [
        dataclasses.replace(tiny_record(), slices=tiny_record().slices[:n], complete=False)
        for n in range(9)
    ]
    for record in (empty_record(), *windows):
        report = summarise(record)
        assert report["complete"] is False
        assert report["verdict"]["sentence"].startswith("The run was stopped early.")
        assert "alone again" in table_of(report)
    write_report(empty_record(), tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == summarise(empty_record())
    assert report["arms"]["rose"]["ttft_ms_p50"] is None
    assert report["arms"]["rose"]["requests"] == 0
    assert report["ratios"]["aa"]["ttft_p50"] is None
    assert report["revocations"]["latency_ms_p99"] is None
    assert not any(check["ok"] for check in report["verdict"]["checks"])
    assert "Nothing could be judged" in report["verdict"]["sentence"]
    assert summarise(windows[1])["arms"]["alone"]["ttft_ms_p50"] == 200.0


def test_json_is_strict_whatever_the_record_holds(tmp_path):
    nan, inf = float("nan"), float("inf")
    window = tiny_record().slices[0]
    odd = (Answered(0.0, nan, inf, 3), *window.requests)
    record = tiny_record(
        slices=(dataclasses.replace(window, requests=odd),),
        setup_s=inf,
        machine={"ghz": nan, "cores": np.int64(2), "load": np.float64("inf"), "at": (1, tmp_path)},
    )
    write_report(record, tmp_path)

    def forbid(constant):
        raise AssertionError(constant)

    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=forbid)
    assert report["machine"] == {"ghz": None, "cores": 2, "load": None, "at": [1, str(tmp_path)]}
    # The request without a time counts as missed, and in no percentile.
    assert report["arms"]["alone"]["ttft_ms_p50"] == 200.0
    assert report["arms"]["alone"]["requests"] == 4
    assert report["arms"]["alone"]["slo_attainment"] == 0.5


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_table_fits_and_nothing_is_cut(width):
    report = summarise(tiny_record())
    for arm in report["arms"].values():
        arm |= {f"ttft_ms_p{p}": 12345.6 for p in (50, 90, 99)}
    text = table_of(report, width)
    assert "…" not in text
    assert "12346/12346" in text
    rows = [line for line in text.splitlines() if "/" in line and "bars" not in line]
    assert max(len(row) for row in rows) <= max(width, 104)
    for cell in ("share all", "3.00/3.50", "83 %", "40 %", "50 %", "rate alone", "tokens/s"):
        assert cell in text
    assert "All 11 bars are met" in text


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        names = ("href", "src", "xlink:href", "data", "srcset", "action")
        self.links += [value for name, value in attrs if name in names]


@pytest.fixture(scope="module")
def page():
    record = tiny_record(rl_loop=tiny_rl_loop(), broker=tiny_broker())
    return render_html(record, summarise(record))


def test_page_needs_nothing_else(page):
    links = Links()
    links.feed(page)
    assert not links.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert all(link.startswith("#") for link in links.links)
    assert "@import" not in page
    assert all(url.startswith("#") for url in re.findall(r"url\(['\"]?([^)]*)", page))
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_ids_of_the_figures_do_not_collide(page):
    clips = [set(re.findall(r'clipPath id="([^"]+)"', figure)) for figure in page.split("<svg")[1:]]
    assert len(clips) == 3
    assert all(clips)
    assert len(set.union(*clips)) == sum(map(len, clips))


def test_the_page_has_the_figures_of_the_run(page):
    record = tiny_record(rl_loop=tiny_rl_loop(), broker=tiny_broker())
    assert summarise(record)["verdict"]["sentence"] in page
    for text in (
        "&lt;Acme &amp; Sons&gt;",
        *("share of requests", "TTFT (ms, log scale)", "time in the slice (s)", "slabs"),
        *("<h2>The broker</h2>", "last reason: first tokens &lt;are&gt; late."),
        *("Turns, borrowed", "Turns, dedicated", "Versions of the weights", "Staleness"),
        "<b>15.0 s</b> · The trainer &lt;died&gt; and came back",
        "3 versions of the weights",
        "<details open>",
        "currentColor",
    ):
        assert text in page
    assert "#010203" not in page


def test_page_of_an_interrupted_run_leaves_out_what_there_is_not(tmp_path):
    record = tiny_record(slices=(), rl_loop=EMPTY_RL_LOOP, complete=False)
    write_report(record, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    page = (tmp_path / "report.html").read_text()
    assert "The RL loop" in page
    for text in ("Incidents", "<details", "The broker"):
        assert text not in page


@pytest.mark.parametrize("below", ["", "deeper"])
def test_file_in_the_way_is_named(tmp_path, below):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InvalidArgument, match=r"out.*; name a directory that"):
        write_report(tiny_record(), tmp_path / "out" / below)
    assert (tmp_path / "out").read_text() == "mine"


def test_directory_that_cannot_be_written_is_named():
    with pytest.raises(InvalidArgument, match=r"report to /proc/rose: .*; name a directory that"):
        write_report(tiny_record(), Path("/proc/rose"))


def test_without_jinja_there_is_json(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "jinja2":
            raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    # The command makes a sentence of it.
    with pytest.raises(ModuleNotFoundError, match="jinja2"):
        write_report(tiny_record(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
