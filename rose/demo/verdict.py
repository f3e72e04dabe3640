"""Hold the numbers of a report against the bars, and say the result in one sentence."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rose.demo.targets import Feasibility

AA_MIN: Final = 0.9
AA_MAX: Final = 1.1
ROSE_P50_MAX: Final = 1.10
SLO_BELOW_ALONE_MAX: Final = 0.02
BLOCKED_SEGMENTS_MAX: Final = 1.1
SHARE_ALL_TPOT_MIN: Final = 1.5
HARVEST_MIN: Final = 0.6
COMMITS_MIN: Final = 2
REQUESTS_MIN: Final = 300
SENT_SHARE_MAX: Final = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """One bar.

    Args:
        name: what is compared.
        value: None when the run did not get that far.
        bar: what the value must be, in words.
        ok: None when there is no value, or the bar does not apply.
    """

    name: str
    value: float | None
    bar: str
    ok: bool | None


def judge(report: Mapping[str, Any], outlook: Feasibility | None) -> dict[str, Any]:
    """Return `{"void", "sentence", "next_command", "checks"}` for a report otherwise whole.

    The run is void when the A/A control left its range: then even equal arms differ by more than
    what is to be shown, whichever way the other checks fall. It is void as well when nothing could
    be certified by what serving alone took: then nothing could be harvested.

    Args:
        report: all else that `report.json` holds.
        outlook: of certificates, in hindsight; None where serving alone was not measured.
    """
    controls = [
        _check(f"A/A {metric} P50", report["ratios"]["aa"][key], f"{AA_MIN} to {AA_MAX}", _is_equal)
        for metric, key in (("TTFT", "ttft_p50"), ("TPOT", "tpot_p50"))
    ]
    checks = controls + _serving_checks(report) + _lending_checks(report)
    if report["weights"] is not None:
        checks += _circle_checks(report)
    off = ", ".join(f"{c.name} is {c.value:.3g}" for c in controls if c.ok is False)
    lead = "" if report["complete"] else "The run was stopped early. "
    next_command = None
    is_blind = report["complete"] and any(c.value is None for c in controls)
    if is_blind:
        next_command = "rose demo"
        sentence = (
            f"Void: no round of serving alone, and alone again, could be judged: "
            f"{report['slices']['void']} slices had foreign CPU time on the device. Stop what else "
            f"runs on this machine, and run again: {next_command}"
        )
    elif off:
        next_command = "rose demo --load 0.1"
        sentence = (
            f"Void: the A/A control left {AA_MIN} to {AA_MAX} ({off}; "
            f"{report['slices']['void']} slices had foreign CPU time), so the machine was too "
            f"noisy to judge. Run again on a quieter one, or try: {next_command}"
        )
    elif outlook is not None and outlook.why is not None:
        next_command = f"rose demo {outlook.options}".rstrip()
        sentence = f"Void: nothing could be certified, because {outlook.why}. Try: {next_command}"
    else:
        sentence = _sentence(checks, has_circle=report["weights"] is not None)
    return {
        "void": next_command is not None,
        "sentence": lead + sentence,
        "next_command": next_command,
        "checks": [asdict(check) for check in checks],
    }


def _serving_checks(report: Mapping[str, Any]) -> list[Check]:
    """Serving is unharmed, and would not have been without rose."""
    ratios = report["ratios"]
    unprotected = ratios["share_all"]["tpot_p50"]
    blocked_segments = _quotient(report["blocked_by_rollout_ms_p99"], report["segment_ms_p99"])
    return [
        *_latency_checks(report),
        _at_most("blocked by rollouts P99 / segment P99", blocked_segments, BLOCKED_SEGMENTS_MAX),
        _at_least("share_all TPOT P50 / alone", unprotected, SHARE_ALL_TPOT_MIN),
    ]


def _latency_checks(report: Mapping[str, Any]) -> list[Check]:
    """In idle mode nothing gets slower; slack mode spends what the targets leave, on purpose."""
    names = {"rose TTFT P50 / alone": "ttft_p50", "rose TPOT P50 / alone": "tpot_p50"}
    values = {name: report["ratios"]["rose"][key] for name, key in names.items()}
    arms = report["arms"]
    met, of_alone = (arms[arm]["slo_attainment"] for arm in ("rose", "alone"))
    below = None if met is None or of_alone is None else max(0.0, of_alone - met)
    attainment = _at_most("rose SLO met, below alone's by", below, SLO_BELOW_ALONE_MAX)
    if report["settings"].get("mode") == "slack":
        judged = [
            Check(one, value, "not judged in slack mode", None) for one, value in values.items()
        ]
    else:
        judged = [_at_most(one, value, ROSE_P50_MAX) for one, value in values.items()]
    return [*judged, attainment]


def _lending_checks(report: Mapping[str, Any]) -> list[Check]:
    """Idle time was used, every loan was justified, and pressure took one back."""
    certificates = report["certificates"]
    granted = certificates["granted"]
    unproven = max(certificates["violations"], granted - certificates["verified"])
    revocations = report["revocations"]["count"] if report["arms"]["rose"]["requests"] else None
    fewest = min(arm["requests"] for arm in report["arms"].values())
    return [
        _at_least(
            "rose harvest / certifiable idle", report["harvest_over_certifiable"], HARVEST_MIN
        ),
        _check("certificates not verified", unproven if granted else None, "0", _is_zero),
        _at_least("revocations", revocations, 1),
        _unless_quick(report, _at_least("requests of an arm", fewest, REQUESTS_MIN)),
    ]


def _unless_quick(report: Mapping[str, Any], check: Check) -> Check:
    if not report["settings"].get("quick"):
        return check
    return Check(check.name, check.value, "not judged when quick", None)


def _circle_checks(report: Mapping[str, Any]) -> list[Check]:
    """What workers generate with is what was published, little was sent, and nothing was lost."""
    weights, trajectories = report["weights"], report["trajectories"]
    compared = weights["digests_compared"]
    differ = compared - weights["digests_matched"] if compared else None
    lost = trajectories["lost"] if trajectories["started"] else None
    resumed = trajectories["resumed"] if trajectories["started"] else None
    commits = report["versions"]["committed_borrowed"]
    return [
        _check("digests that differ", differ, "0", _is_zero),
        _check("trajectories lost", lost, "0", _is_zero),
        _at_most("bytes sent / dense", weights["sent_share"], SENT_SHARE_MAX),
        _unless_quick(report, _at_least("turns resumed elsewhere", resumed, 1)),
        _unless_quick(
            report, _at_least("versions taken by the borrowed worker", commits, COMMITS_MIN)
        ),
    ]


def _sentence(checks: list[Check], *, has_circle: bool) -> str:
    judged = [check for check in checks if check.ok is not None]
    missed = [check for check in judged if not check.ok]
    without = [c for c in checks if c.ok is None and c.value is None]
    rest = f" {len(without)} could not be judged." if without else ""
    if missed:
        return f"{len(missed)} of {len(judged)} bars missed: {_named(missed)}.{rest}"
    if not judged:
        return "Nothing could be judged: no round was measured in every arm."
    if rest:
        return f"All {len(judged)} bars that could be judged are met.{rest}"
    learnt = ", and what was learnt from them came back whole" if has_circle else ""
    kept = "serving kept its latency while rollouts ran"
    return f"All {len(judged)} bars are met: {kept}{learnt}."


def _named(checks: list[Check]) -> str:
    return ", ".join(f"{check.name} is {check.value:.3g}, bar {check.bar}" for check in checks)


def _check(name: str, value: float | None, bar: str, holds: Callable[[float], bool]) -> Check:
    return Check(name, value, bar, None if value is None else holds(value))


def _at_most(name: str, value: float | None, bar: float) -> Check:
    return _check(name, value, f"at most {bar:g}", lambda v: v <= bar)


def _at_least(name: str, value: float | None, bar: float) -> Check:
    return _check(name, value, f"at least {bar:g}", lambda v: v >= bar)


def _is_equal(ratio: float) -> bool:
    return AA_MIN <= ratio <= AA_MAX


def _is_zero(value: float) -> bool:
    return value == 0


def _quotient(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of is not None and of > 0 else None
