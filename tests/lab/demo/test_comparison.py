"""The numbers of a comparison at several loads, its verdict and its table."""

import dataclasses
import io
import json
import re

import pytest
from rich.console import Console

from rose.errors import InvalidArgument
from rose_lab.demo.frontier_plot import draw_frontier
from rose_lab.demo.record import Audit
from rose_lab.demo.report import print_loads, write_json
from rose_lab.demo.schemes import SCHEMES, ablation
from rose_lab.demo.summary import summarise, summarise_loads
from tests.lab.demo.records import solo, tiny_record

NAMES = ("alone", "alone_again", "share_all", "rose_idle", "rose_slack")
AUDITS = (Audit("rose_idle", 7, 7, 0), Audit("rose_slack", 9, 8, 1))


def comparison(*, slack_arm="rose", control_factor=1.0, late_gaps=0, **changes):
    """The tiny record's slices at two loads: rose idle as `rose`, and rose slack as `slack_arm`."""
    slices = []
    for one in tiny_record().slices:
        names = {"rose": ["rose_idle"]}.get(one.arm, [one.arm])
        names += ["rose_slack"] * (one.arm == slack_arm)
        factor = control_factor if one.arm == "alone_again" else 1.0
        late = late_gaps if one.arm == "rose" else 0
        requests = tuple(
            dataclasses.replace(r, ttft_ms=r.ttft_ms * factor, late_gaps=late) for r in one.requests
        )
        slices += [
            dataclasses.replace(one, arm=name, load=load, requests=requests)
            for name in names
            for load in (0.3, 0.9)
        ]
    values = {
        "schemes": (*(SCHEMES[name] for name in NAMES), ablation("margin")),
        "loads": (0.3, 0.9),
        "slices": tuple(slices),
        "solo": (solo("share_all", 2.0, 120),),
        "audits": AUDITS,
    }
    return tiny_record(**(values | changes))


def printed(report, width=100):
    out = io.StringIO()
    print_loads(report, Console(file=out, width=width))
    return out.getvalue()


def test_each_load_has_slices_and_certificates_of_its_own():
    audits = (Audit("rose_idle", 3, 3, 0, 0.3), Audit("rose_idle", 4, 4, 0, 0.9))
    few = tuple(one for one in comparison().slices if one.load > 0.5 or one.round == 0)
    first, second = summarise_loads(comparison(slices=few, audits=audits))["loads"]
    assert (first["arms"]["alone"]["requests"], second["arms"]["alone"]["requests"]) == (3, 6)
    assert first["certificates"]["rose_idle"]["granted"] == 3
    assert second["certificates"]["rose_idle"]["granted"] == 4


def test_the_verdict_names_the_best_that_keep_the_targets_and_their_price():
    report = summarise_loads(comparison())
    assert set(report["verdict"]) == set(summarise(tiny_record())["verdict"])
    assert report["verdict"]["sentence"] == (
        "At load 0.9: of rose's schemes that keep serving's targets, rose_idle gives rollouts "
        "the highest rate: 50 % of their rate alone, at TTFT x 1.02, TPOT x 1.10; none of the "
        "other schemes keeps serving's targets. 1 of 10 bars missed: rose_slack certificates not "
        "verified is 1, bar 0."
    )
    by_name = {one["name"]: one for one in report["verdict"]["checks"]}
    assert by_name["rose_idle TTFT P50 / alone"]["ok"] is True
    assert by_name["rose_slack TTFT P50 / alone"]["ok"] is None  # It may spend the targets.
    assert not any("margin" in name for name in by_name)
    late = summarise_loads(comparison(slack_arm="share_all"))["verdict"]
    assert "rose_slack SLO shortfall against alone is 0.667, bar at most 0.02" in late["sentence"]


def test_late_tokens_break_the_targets_that_mean_times_keep():
    report = summarise_loads(comparison(late_gaps=1))
    # Of 22 tokens a first one is late alone; here one more of each of the six requests.
    shares = report["loads"][1]["late_token_share"]
    assert shares["alone"] == pytest.approx(1 / 22)
    assert shares["rose_idle"] == pytest.approx(7 / 22)
    sentence = report["verdict"]["sentence"]
    assert "none of rose's schemes keeps serving's targets" in sentence
    assert "rose_idle late tokens above those of alone is 0.273, bar at most 0.01" in sentence
    assert "Late tokens: alone 4.5 %, " in printed(report)


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_control_that_left_its_range_voids_the_comparison(factor):
    verdict = summarise_loads(comparison(control_factor=factor))["verdict"]
    assert verdict["void"] is True
    assert "A/A TTFT P50" in verdict["sentence"]
    assert verdict["next_command"] == "rose compare --load 0.1"
    assert summarise_loads(comparison())["verdict"]["void"] is False


def test_a_comparison_of_void_slices_is_void_even_without_a_control():
    void = tuple(dataclasses.replace(one, is_void=True) for one in comparison().slices)
    for schemes in (comparison().plan.schemes, (SCHEMES["alone"], SCHEMES["share_all"])):
        verdict = summarise_loads(comparison(slices=void, schemes=schemes))["verdict"]
        assert verdict["void"] is True
        assert "foreign CPU time" in verdict["sentence"]


def test_an_interrupted_comparison_has_what_there_is():
    report = summarise_loads(comparison(slices=(), complete=False))
    assert report["loads"] == []
    assert report["verdict"]["sentence"] == "The run was stopped early. Nothing was measured."


@pytest.mark.parametrize(("is_virtual", "mode"), [(False, "measured"), (True, "modelled")])
def test_the_table_says_what_the_json_says(is_virtual, mode):
    report = summarise_loads(comparison(is_virtual=is_virtual))
    text = printed(report)
    assert report["mode"] == mode
    for load in ("0.3", "0.9"):
        title = f"Load {load}, {mode}: 6 requests, serving alone is busy 40 % of the time"
        assert title in text
    assert len(re.findall(r"rose slack .* 1\.02/1\.10 .* 83 % +40 % .* 50 %", text)) == 2
    assert "Certificates verified: rose_idle 7/7, rose_slack 8/9" in text
    assert report["verdict"]["sentence"] in " ".join(text.split())


def test_the_file_is_whole_and_strict(tmp_path):
    report = summarise_loads(comparison(machine={"ghz": float("nan")}))
    write_json(report, tmp_path / "out", "compare")
    write_json(report, tmp_path / "out", "compare")
    (file,) = (tmp_path / "out").iterdir()
    assert json.loads(file.read_text()) == json.loads(json.dumps(report, allow_nan=False))
    with pytest.raises(InvalidArgument, match="name a directory"):
        write_json(report, file, "compare")


def test_the_picture_has_a_panel_for_each_load_and_every_arm() -> None:
    report = summarise_loads(comparison())
    svg = draw_frontier(report)
    assert re.findall(r"<text[^>]*>(Load [\d.]+)</text>", svg) == ["Load 0.3", "Load 0.9"]
    for name in ("share all", "rose, slowdown 0", "rose, slowdown unlimited", "rose slack-margin"):
        assert f">{name}</text>" in svg
    assert svg == draw_frontier(report)
