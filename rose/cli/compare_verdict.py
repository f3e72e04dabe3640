"""What a comparison shows, in one sentence."""

from collections.abc import Mapping
from typing import Any, Final

from rose.cli.compare_schemes import Kind
from rose.cli.report_numbers import percent
from rose.cli.report_verdict import AA_MAX, AA_MIN

EXCESS_SHARE_MAX: Final = 0.01
"""A scheme keeps serving's targets when it costs at most this share of the requests theirs."""


def judge_comparison(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"void", "sentence"}`, about the highest load.

    Real engines are compared only where the A/A control says that the machine was quiet.
    """
    lead = "" if report["complete"] else "The run was stopped early. "
    if not report["loads"]:
        return {"void": False, "sentence": f"{lead}Nothing was measured."}
    at = report["loads"][-1]
    off = _off(at["control"])
    if off:
        return {
            "void": True,
            "sentence": (
                f"{lead}Void: serving alone, run twice, differs from itself ({off}, to be "
                f"{AA_MIN} to {AA_MAX}), so the machine was too noisy; run again on a quieter one, "
                f"or for longer."
            ),
        }
    parts = [
        part
        for part in (
            _best(report, at, Kind.ROSE, "of rose"),
            _best(report, at, Kind.PUBLISHED, "of the others"),
        )
        if part
    ]
    said = "; ".join(parts) if parts else "no scheme with rollouts was measured"
    return {"void": False, "sentence": f"{lead}At load {at['load']:g}: {said}."}


def _off(control: Mapping[str, float | None] | None) -> str:
    """Name the medians of the control that left the range."""
    if control is None:
        return ""
    medians = {"TTFT P50": control["ttft_p50"], "TPOT P50": control["tpot_p50"]}
    return ", ".join(
        f"{name} x {value:.3g}"
        for name, value in medians.items()
        if value is not None and not AA_MIN <= value <= AA_MAX
    )


def _best(report: Mapping[str, Any], at: Mapping[str, Any], kind: Kind, whose: str) -> str:
    """Say which scheme of a kind gives rollouts most, among those that keep serving's targets."""
    rows = {
        name: row
        for name, row in at["schemes"].items()
        if report["schemes"][name]["kind"] == kind.value and row["harvest"] is not None
    }
    kept = {
        name: row
        for name, row in rows.items()
        if row["excess_miss_share"] is not None and row["excess_miss_share"] <= EXCESS_SHARE_MAX
    }
    if not rows:
        return ""
    if not kept:
        return f"no scheme {whose} keeps serving's targets"
    name = max(kept, key=lambda one: (kept[one]["harvest"], one))
    row = kept[name]
    return (
        f"{report['schemes'][name]['label']} gives rollouts most {whose}, "
        f"{percent(row['harvest'])} of the device, with {row['excess_misses']} of "
        f"{row['requests']} requests late because of it"
    )
