"""What a comparison shows, in one sentence."""

from collections.abc import Mapping
from typing import Any, Final

from rose.cli.compare_schemes import Kind
from rose.demo.numbers import percent
from rose.demo.verdict import AA_MAX, AA_MIN

EXCESS_SHARE_MAX: Final = 0.01
"""A scheme keeps serving's targets when it makes at most this share of requests late, and of
tokens: that is the epsilon that certificates promise."""


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
    ours, theirs = _best(report, at, Kind.ROSE), _best(report, at, Kind.PUBLISHED)
    said = [
        *(f"{_label(report, one)} gives rollouts {_gain(at, one)}" for one in ours[:1]),
        *(
            f"of the other schemes that keep serving's targets, {_label(report, one)} gives most, "
            f"{_gain(at, one)}"
            for one in theirs[:1]
        ),
        *_none_kept(report, at, Kind.ROSE, "no scheme of rose", ours),
        *_none_kept(report, at, Kind.PUBLISHED, "no other scheme", theirs),
    ]
    sentence = "; ".join(said) if said else "no scheme with rollouts was measured"
    return {"void": False, "sentence": f"{lead}At load {at['load']:g}: {sentence}."}


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


def _lending(report: Mapping[str, Any], at: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    return {
        name: row
        for name, row in at["schemes"].items()
        if report["schemes"][name]["kind"] == kind.value
        and row["harvest"] is not None
        and row["excess_miss_share"] is not None
        and row["excess_late_token_share"] is not None
    }


def _best(report: Mapping[str, Any], at: Mapping[str, Any], kind: Kind) -> list[str]:
    """Return the schemes that keep serving's targets, those that give rollouts most first."""
    rows = _lending(report, at, kind)
    kept = [
        name
        for name, row in rows.items()
        if max(row["excess_miss_share"], row["excess_late_token_share"]) <= EXCESS_SHARE_MAX
    ]
    return sorted(kept, key=lambda name: (-rows[name]["harvest"], name))


def _none_kept(
    report: Mapping[str, Any], at: Mapping[str, Any], kind: Kind, who: str, best: list[str]
) -> list[str]:
    if best or not _lending(report, at, kind):
        return []
    return [f"{who} keeps serving's targets"]


def _label(report: Mapping[str, Any], name: str) -> str:
    return str(report["schemes"][name]["label"])


def _gain(at: Mapping[str, Any], name: str) -> str:
    row = at["schemes"][name]
    return (
        f"{percent(row['harvest'])} of the device and makes {row['excess_misses']} of "
        f"{row['requests']} requests and {percent(row['excess_late_token_share'])} of tokens late"
    )
