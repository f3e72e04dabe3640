"""Hold the numbers of a report against the bars, and say the result in one sentence."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

AA_MIN: Final = 0.9
AA_MAX: Final = 1.1
ROSE_P50_MAX: Final = 1.10
SLO_MET_OF_ALONE_MIN: Final = 0.99
BLOCKED_SEGMENTS_MAX: Final = 1.1
SHARE_ALL_TPOT_MIN: Final = 1.5
HARVEST_OF_IDLE_MIN: Final = 0.6
REQUESTS_MIN: Final = 300
SENT_SHARE_MAX: Final = 0.05
LEARNING_RATE_MAX: Final = 1e-6
"""Above it more weights change than in RL of a trained model, which the bar is about."""


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


def judge(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"void", "sentence", "checks"}` for a report that is otherwise whole.

    The run is void when the A/A control left its range: then even equal arms differ by more than
    what is to be shown, whichever way the other checks fall.
    """
    controls = [
        _check(f"A/A {metric} P50", report["ratios"]["aa"][key], f"{AA_MIN} to {AA_MAX}", _is_equal)
        for metric, key in (("TTFT", "ttft_p50"), ("TPOT", "tpot_p50"))
    ]
    checks = controls + _serving_checks(report) + _lending_checks(report)
    if report["weights"] is not None:
        checks += _circle_checks(report)
    is_void = any(check.ok is False for check in controls)
    return {
        "void": is_void,
        "sentence": _sentence(
            controls,
            checks,
            is_complete=report["complete"],
            has_circle=report["weights"] is not None,
        ),
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
    if report["settings"].get("mode") != "slack":
        return [_at_most(name, value, ROSE_P50_MAX) for name, value in values.items()]
    arms = report["arms"]
    met = _quotient(arms["rose"]["slo_attainment"], arms["alone"]["slo_attainment"])
    return [
        *(Check(name, value, "not judged in slack mode", None) for name, value in values.items()),
        _at_least("rose SLO met / alone", met, SLO_MET_OF_ALONE_MIN),
    ]


def _lending_checks(report: Mapping[str, Any]) -> list[Check]:
    """Idle time was used, every loan was justified, and pressure took one back."""
    busy_share = report["arms"]["alone"]["busy_share"]
    idle_share = None if busy_share is None else 1.0 - busy_share
    harvest = _quotient(report["arms"]["rose"]["harvested_share"], idle_share)
    certificates = report["certificates"]
    granted = certificates["granted"]
    unproven = max(certificates["violations"], granted - certificates["verified"])
    revocations = report["revocations"]["count"] if report["arms"]["rose"]["requests"] else None
    fewest = min(arm["requests"] for arm in report["arms"].values())
    checks = [
        _at_least("rose harvest / idle share of alone", harvest, HARVEST_OF_IDLE_MIN),
        _check("certificates not verified", unproven if granted else None, "0", _is_zero),
        _at_least("revocations", revocations, 1),
    ]
    if report["settings"].get("quick"):
        return [*checks, Check("requests of an arm", fewest, "not judged when quick", None)]
    return [*checks, _at_least("requests of an arm", fewest, REQUESTS_MIN)]


def _circle_checks(report: Mapping[str, Any]) -> list[Check]:
    """What workers generate with is what was published, little was sent, and nothing was lost."""
    weights, trajectories = report["weights"], report["trajectories"]
    settings = report["settings"]
    compared = weights["digests_compared"]
    differ = compared - weights["digests_matched"] if compared else None
    lost = trajectories["lost"] if trajectories["started"] else None
    resumed = trajectories["resumed"] if trajectories["started"] else None
    return [
        _check("digests that differ", differ, "0", _is_zero),
        _check("trajectories lost", lost, "0", _is_zero),
        _sent_check(weights["sent_share"], settings.get("lr")),
        Check("turns resumed elsewhere", resumed, "not judged when quick", None)
        if settings.get("quick")
        else _at_least("turns resumed elsewhere", resumed, 1),
    ]


def _sent_check(share: float | None, learning_rate: object) -> Check:
    name = "bytes sent / dense"
    if isinstance(learning_rate, int | float) and learning_rate <= LEARNING_RATE_MAX:
        return _at_most(name, share, SENT_SHARE_MAX)
    return Check(name, share, f"not judged unless lr is at most {LEARNING_RATE_MAX:g}", None)


def _sentence(
    controls: list[Check], checks: list[Check], *, is_complete: bool, has_circle: bool
) -> str:
    lead = "" if is_complete else "The run was stopped early. "
    off = ", ".join(f"{c.name} is {c.value:.3g}" for c in controls if c.ok is False)
    if off:
        return (
            f"{lead}Void: the A/A control left {AA_MIN} to {AA_MAX} ({off}), so the "
            f"machine was too noisy to judge; run again on a quieter one, or for longer."
        )
    judged = [check for check in checks if check.ok is not None]
    missed = [check for check in judged if not check.ok]
    without = [c for c in checks if c.ok is None and c.value is None]
    rest = f" {len(without)} could not be judged." if without else ""
    if missed:
        return f"{lead}{len(missed)} of {len(judged)} bars missed: {_named(missed)}.{rest}"
    if not judged:
        return f"{lead}Nothing could be judged: no window was measured in every arm."
    if rest:
        return f"{lead}All {len(judged)} bars that could be judged are met.{rest}"
    learnt = ", and what was learnt from them came back whole" if has_circle else ""
    kept = "serving kept its latency while rollouts ran"
    return f"{lead}All {len(judged)} bars are met: {kept}{learnt}."


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
