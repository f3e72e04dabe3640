"""The numbers of a comparison, its table, and its page."""

import builtins
import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from rose.cli.compare_page import write_comparison
from rose.cli.compare_schemes import MECHANISMS, SCHEMES
from rose.cli.compare_summary import summarise_comparison
from rose.cli.compare_table import HEADERS, print_comparison, scheme_rows
from rose.errors import InternalError, InvalidArgument, Unavailable
from rose.slo.policy import MECHANISMS as POLICY_MECHANISMS
from tests.cli.compare_records import REQUESTS, SECONDS, answered, sweep, tiny_comparison


def printed(report, width=100):
    out = io.StringIO()
    print_comparison(report, Console(file=out, width=width))
    return out.getvalue()


def row_of(report, scheme, at=-1):
    return report["loads"][at]["schemes"][scheme]


def test_mechanisms_are_those_of_the_policy():
    assert tuple(MECHANISMS) == POLICY_MECHANISMS


def test_json_has_the_same_structure_whatever_was_measured():
    report = json.loads(json.dumps(summarise_comparison(tiny_comparison()), allow_nan=False))
    assert set(report) == {
        "version", "mode", "command", "complete", "seed", "trace", "slo", "schemes", "left_out",
        "loads", "settings", "machine", "windows", "verdict",
    }  # fmt: skip
    assert set(report["verdict"]) == {"void", "sentence"}
    assert set(report["schemes"]["rose_slack"]) == {"label", "kind", "rule"}
    (at,) = report["loads"]
    assert set(at) == {"load", "busy_share_alone", "requests", "control", "schemes"}
    assert list(at["schemes"]) == list(REQUESTS)
    for row in at["schemes"].values():
        assert set(row) == {
            "requests", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99", "ratios",
            "excess_misses", "excess_miss_share", "excess_misses_by_any_gap",
            "excess_late_token_share", "slo_attainment",
            "busy_share", "harvest", "blocked_ms_p99", "pauses", "pause_ms_p99", "segments",
            "certificates", "harvest_over_clairvoyant",
        }  # fmt: skip
    empty = summarise_comparison(tiny_comparison(windows=(), complete=False))
    assert set(empty) == set(report)
    assert "stopped early" in empty["verdict"]["sentence"]


def test_numbers_follow_from_the_outcomes_alone():
    """Every number of a row, computed once more from the windows that the JSON itself holds."""
    report = summarise_comparison(tiny_comparison())
    for scheme in REQUESTS:
        row = row_of(report, scheme)
        windows = [one for one in report["windows"] if one["arm"] == scheme]
        alone = [one for one in report["windows"] if one["arm"] == "alone"]
        requests = [one for window in windows for one in window["requests"]]
        for name, key in (("ttft", "ttft_ms"), ("tpot", "tpot_ms")):
            values = [one[key] for one in requests if one[key] is not None]
            for rank in (50, 99):
                assert row[f"{name}_ms_p{rank}"] == pytest.approx(np.percentile(values, rank))
                each = []
                for mine, theirs in zip(windows, alone, strict=True):
                    pair = [
                        np.percentile([r[key] for r in w["requests"] if r[key] is not None], rank)
                        for w in (mine, theirs)
                    ]
                    each.append(pair[0] / pair[1])
                assert row["ratios"][f"{name}_p{rank}"] == pytest.approx(np.median(each))
        seconds = sum(one["end_s"] for one in windows)
        assert seconds == sum(SECONDS)
        got_s = sum(one["harvest"] * one["end_s"] for one in windows)
        assert row["harvest"] == pytest.approx(got_s / seconds)
        assert row["busy_share"] == pytest.approx(0.5)
        waits = [wait for one in windows for wait in one["blocked_ms"]]
        if waits:
            assert row["blocked_ms_p99"] == pytest.approx(np.percentile(waits, 99))


def test_a_miss_is_excess_when_alone_met_both_targets():
    report = summarise_comparison(tiny_comparison())
    # Alone, all meet them but the first window's third request, with 300 ms and 20 ms.
    assert row_of(report, "alone")["excess_misses"] == 0
    assert row_of(report, "rose_slack")["excess_misses"] == 0
    assert row_of(report, "rose_slack")["slo_attainment"] == pytest.approx(5 / 6)
    # 30 ms, a TTFT of 400, 40 ms twice; not (80, None).
    assert row_of(report, "share_all")["excess_misses"] == 4
    assert row_of(report, "share_all")["excess_miss_share"] == pytest.approx(4 / 6)


def test_one_late_token_is_no_late_request_but_it_is_counted():
    report = summarise_comparison(tiny_comparison())
    # The gap of 15.1 ms; that of 15 is in time, and that of 40 was there alone.
    assert row_of(report, "rose_slack")["excess_misses_by_any_gap"] == 1
    # The last request of alone has a gap of 16 ms, so it does not count for share_all.
    assert row_of(report, "share_all")["excess_misses_by_any_gap"] == 3
    # Late tokens: alone 300, 40, 16; rose slack 300, 40, 15.1; share all 60, 400, 600, 90, 50, 50.
    assert row_of(report, "rose_slack")["excess_late_token_share"] == 0
    assert row_of(report, "share_all")["excess_late_token_share"] == pytest.approx(3 / 22)


def test_only_equal_requests_are_compared():
    record = tiny_comparison()
    first = dataclasses.replace(record.windows[1], requests=record.windows[1].requests[:2])
    windows = (record.windows[0], first, *record.windows[2:])
    with pytest.raises(InternalError, match="other requests"):
        summarise_comparison(dataclasses.replace(record, windows=windows))


def test_certificates_and_pauses_are_those_of_the_scheme():
    report = summarise_comparison(tiny_comparison())
    row = row_of(report, "rose_slack")
    assert row["certificates"] == {"granted": 7, "verified": 6, "violations": 1}
    assert (row["pauses"], row["segments"]) == (4, 80)
    assert row_of(report, "share_all")["certificates"] is None


def test_harvest_over_the_clairvoyant_is_a_share_of_what_there_is():
    window = tiny_comparison().windows[0]
    best = dataclasses.replace(window, arm="clairvoyant", harvest=0.8)
    ours = dataclasses.replace(window, arm="rose_slack", harvest=0.6)
    record = tiny_comparison(
        schemes=(SCHEMES["alone"], SCHEMES["rose_slack"], SCHEMES["clairvoyant"]),
        windows=(window, ours, best),
    )
    report = summarise_comparison(record)
    assert row_of(report, "rose_slack")["harvest_over_clairvoyant"] == pytest.approx(0.75)


def test_the_sentence_names_the_best_that_keep_the_targets():
    kept = tuple(
        dataclasses.replace(one, requests=tuple(answered_alone(one)))
        if one.arm == "rose_slack"
        else one
        for one in tiny_comparison().windows
    )
    sentence = summarise_comparison(tiny_comparison(windows=kept))["verdict"]["sentence"]
    assert sentence == (
        "At load 0.9: rose slack gives rollouts 28 % of the device and makes 0 of 6 requests and "
        "0 % of tokens late; "
        "no other scheme keeps serving's targets."
    )


def answered_alone(window):
    return [answered(*one) for one in REQUESTS["alone"][window.round]]


def test_a_control_that_left_its_range_voids_the_comparison():
    slower = tuple(
        dataclasses.replace(
            one,
            requests=tuple(dataclasses.replace(r, ttft_ms=1.3 * r.ttft_ms) for r in one.requests),
        )
        if one.arm == "alone_again"
        else one
        for one in tiny_comparison().windows
    )
    verdict = summarise_comparison(tiny_comparison(windows=slower))["verdict"]
    assert verdict["void"] is True
    assert "TTFT P50 x 1.3" in verdict["sentence"]
    assert summarise_comparison(tiny_comparison())["verdict"]["void"] is False


def test_the_table_fits_and_says_what_the_json_says():
    report = summarise_comparison(tiny_comparison())
    text = printed(report)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    (slack,) = [line.split() for line in text.splitlines() if "rose slack  " in line]
    # 0.5 x 10 s + 0.2 x 30 s of 40 s.
    assert slack[:7] == ["rose", "slack", "28", "%", "0", "0", "%"]
    assert slack[-1] == "6/7"
    assert report["left_out"][0] in text
    assert report["verdict"]["sentence"] in " ".join(text.split())
    assert "Load 0.9: 6 requests, serving alone is busy 50 % of the time" in text
    rows = scheme_rows(report, report["loads"][0])
    assert {len(row) for row in rows} == {len(HEADERS)}


def test_no_cell_is_cut_where_nobody_sees_the_width():
    report = summarise_comparison(tiny_comparison())
    report["loads"][0]["schemes"]["rose_slack"]["certificates"] |= {"granted": 10**9}
    assert "6/1000000000" in printed(report, width=60)
    assert "…" not in printed(report, width=60)


def test_a_sweep_has_a_row_for_each_scheme_and_a_column_for_each_load():
    text = printed(summarise_comparison(sweep()))
    (header,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["scheme"]][:1]
    assert header == ["scheme", "0.3", "0.9"]
    (share_all,) = [
        line.split() for line in text.splitlines() if line.startswith(" share all") and "(" in line
    ]
    assert share_all == ["share", "all", "90", "%", "(2)", "90", "%", "(2)"]
    # The ablation was not measured: it has a row, but no number.
    assert any("slack, no margin" in line for line in text.splitlines())


def test_no_two_schemes_look_alike():
    from rose.cli.compare_plots import scheme_styles

    record = tiny_comparison(schemes=tuple(SCHEMES.values()))
    styles = scheme_styles(summarise_comparison(record))
    # Points have no dashes, and lines may be too short for markers: either is enough.
    for mark in ("marker", "linestyle"):
        looks = {(one["color"], str(one[mark])) for one in styles.values()}
        assert len(looks) == len(SCHEMES), mark


def test_files_are_whole_and_the_same_each_time(tmp_path):
    report = summarise_comparison(sweep())
    out = tmp_path / "a" / "b"
    write_comparison(report, out)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(first) == {"compare.json", "compare.svg"}
    assert json.loads(first["compare.json"]) == json.loads(json.dumps(report))
    write_comparison(report, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cannot write the comparison"):
        write_comparison(summarise_comparison(sweep()), tmp_path / "file" / "out")


def test_without_matplotlib_there_is_json_and_a_sentence(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "rose.cli.compare_plots":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unavailable, match="needs matplotlib"):
        write_comparison(summarise_comparison(sweep()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["compare.json"]
