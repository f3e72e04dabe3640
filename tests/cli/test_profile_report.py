"""The numbers of a profile, its table, and its page."""

import builtins
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from rose.cli.profile_lending import lend, poisson_most
from rose.cli.profile_page import render_profile, write_profile
from rose.cli.profile_report import profile_report
from rose.cli.profile_table import print_profile
from rose.errors import InvalidArgument, Unavailable
from rose.units import GIB
from tests.cli.profile_records import SLOS, measured, seen


def report_of(record=None):
    return profile_report(record or measured(), command="rose profile x", machine={"cores": 2})


def printed(report, width=100):
    out = io.StringIO()
    print_profile(report, Console(file=out, width=width))
    return out.getvalue()


def test_what_is_lent_is_what_the_broker_lends_and_pressure_is_a_revocation():
    strict, loose = report_of()["rows"]
    most = 0.8 * (0.8 * 40 - 4)
    assert strict["lent_gib_peak"] == pytest.approx(most, abs=0.1)
    assert (strict["revocations"], loose["revocations"]) == (1, 0)
    assert strict["revocations_per_hour"] == pytest.approx(1.0)
    assert strict["revocations_per_hour_most"] == pytest.approx(4.744, abs=0.01)
    assert loose["revocations_per_hour_most"] == pytest.approx(math.log(20))
    assert loose["longest_lend_s"] == pytest.approx(3600 - 10)  # calm is seen first
    assert strict["longest_lend_s"] == pytest.approx(1800 - 10)
    assert strict["lent_gib_mean"] < loose["lent_gib_mean"] < most
    assert strict["reasons"][0]["why"] == "the tail of first tokens came too close to its target"


def test_numbers_of_a_row_follow_from_its_series():
    for row in report_of()["rows"]:
        held = [(b[0] - a[0], a[1]) for a, b in zip(row["lent"], row["lent"][1:], strict=False)]
        total_s = sum(s for s, _ in held)
        mean = sum(s * gib for s, gib in held) / total_s
        assert row["lent_gib_mean"] == pytest.approx(mean)
        assert row["lent_share"] == pytest.approx(sum(s for s, gib in held if gib) / total_s)
        assert row["lent_gib_peak"] == max(gib for _, gib in row["lent"])


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_the_bound_of_revocations_is_exceeded_in_one_case_of_twenty(count):
    mean = poisson_most(count)
    at_most = sum(
        math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)
    )
    assert at_most == pytest.approx(0.05, abs=1e-6)
    if count == 0:
        assert mean == pytest.approx(math.log(20))


def test_readings_that_failed_lend_nothing_new_and_are_counted():
    failures = tuple((at_s * 1e3, "http://localhost answers with status 500") for at_s in (1, 2, 3))
    record = measured(observations=(seen(0), seen(60), seen(65)), failures=failures)
    report = report_of(record)
    assert [one["at_s"] for one in report["failures"]] == [1, 2, 3]
    assert all(row["lent_gib_peak"] == 0 for row in report["rows"])
    assert "3 readings failed, the last because http://localhost answers" in printed(report)


def test_loans_outlive_readings_that_come_seldom():
    rare = measured(observations=tuple(seen(at_s) for at_s in range(0, 3601, 120)), every_ms=120e3)
    row = lend(rare, SLOS[1])
    assert row.revocations == 0
    assert row.peak_bytes > 22 * GIB  # and so they grow


def test_json_is_strict_and_says_the_same_whatever_was_measured():
    report = report_of()
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    nothing = report_of(measured(observations=(), compute=(), slos=(), is_complete=False))
    assert set(nothing) == set(report)
    assert nothing["verdict"] == "Stopped early: nothing could have been lent."
    endless = report_of(measured(observations=(seen(0, ttft=math.inf), seen(5, ttft=math.inf))))
    assert endless["series"]["ttft_ms_p99"] == [None, None]
    assert json.dumps(endless, allow_nan=False)


def test_the_verdict_says_the_best_row_or_why_there_is_none():
    assert report_of()["verdict"] == (
        f"70% of the compute and {report_of()['rows'][1]['lent_gib_mean']:.1f} GiB of KV on "
        f"average could have been lent under targets of 500 ms to the first token and 50 ms for "
        f"each later one."
    )
    late = measured(observations=tuple(seen(at_s, ttft=900.0) for at_s in range(0, 100, 5)))
    assert report_of(late)["verdict"] == (
        "nothing could have been lent: the tail of first tokens came too close to its target."
    )


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_cell_is_cut(width):
    out = printed(report_of(), width)
    assert "…" not in out
    assert "200/25" in out
    assert "made [up]: 721 readings in 60.0 min; a KV pool of 40.0 GiB" in out


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.opened, self.loaded, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.opened.append(tag)
        self.loaded += [value for name, value in attributes if name in {"src", "href"}]

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_needs_nothing_else_and_escapes_what_it_shows():
    report = report_of(measured(source="<script>alert(1)</script>"))
    page = Page(render_profile(report))
    assert "script" not in page.opened
    assert page.opened.count("svg") == 3
    assert all(value.startswith("#") for value in page.loaded)
    words = " ".join(" ".join(page.words).split())
    for cell in ("200/25", "500/50", "serving's reserve", "lent at 200/25 ms", "By hand."):
        assert cell in words


def test_the_page_is_the_same_each_time_and_drawn_for_any_length():
    report = report_of()
    assert render_profile(report) == render_profile(report)
    for observations in ((), (seen(0),), tuple(seen(t) for t in range(0, 20_000, 300))):
        render_profile(report_of(measured(observations=observations)))
    unknown = json.loads(json.dumps(report))
    unknown["rows"][0]["compute_share"] = None
    assert "not known" in render_profile(unknown)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidArgument, match=r"cannot write the profile to .*file/out"):
        write_profile(report_of(), tmp_path / "file" / "out")


def test_json_is_written_without_the_packages_of_the_page(tmp_path, monkeypatch):
    real = builtins.__import__

    def absent(name, *rest):
        if name.startswith("matplotlib") or name == "rose.cli.profile_plots":
            raise ImportError(name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(Unavailable, match=re.escape("install rose-rl[demo]")):
        write_profile(report_of(), tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["profile.json"]
    assert json.loads((tmp_path / "profile.json").read_text())["kv_gib"] == 40


def test_a_pool_that_is_all_reserve_is_refused():
    from rose.cli.profile_measured import Pool

    with pytest.raises(InvalidArgument, match=r"leaves nothing of a KV pool of 4\.0 GiB"):
        Pool(4 * GIB, 4 * GIB, 1).device(SLOS[0])
