"""Checks the numbers of a report against required limits (bars), and writes the verdict."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rose_lab.demo.schemes import ALONE, UNRULED
from rose_lab.demo.targets import Feasibility
from rose_lab.numbers import fixed, percent, ratio

AA_MIN: Final = 0.9
AA_MAX: Final = 1.1
ROSE_P50_MAX: Final = 1.10
SLO_BELOW_ALONE_MAX: Final = 0.02
LATE_TOKENS_MAX: Final = 0.01
"""Largest excess of an arm's share of late tokens over that of `alone`.

It equals the default `Policy.epsilon` of certificates.
"""
BLOCKED_SEGMENTS_MAX: Final = 1.1
SHARE_ALL_TPOT_MIN: Final = 1.5
HARVEST_MIN: Final = 0.6
COMMITS_MIN: Final = 2
REQUESTS_MIN: Final = 300
SENT_SHARE_MAX: Final = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """One number of a report, and the bar that it must meet.

    Args:
        name: compared quantity.
        value: measured value; None if the run did not measure it.
        bar: required value, in words.
        ok: whether the value meets the bar; None without a value, or if the bar does not apply.
    """

    name: str
    value: float | None
    bar: str
    ok: bool | None


def judge(report: Mapping[str, Any], outlook: Feasibility | None) -> dict[str, Any]:
    """Return `{"void", "sentence", "next_command", "checks"}` for a report.

    The run is void if the A/A control leaves its range: then equal arms differ by more than the
    effect under test. It is also void if the step times of serving alone rule out any certified
    quantum: then nothing could be harvested.

    Args:
        report: content of `report.json` without the verdict.
        outlook: whether quanta could be certified; None if serving alone was not measured.
    """
    controls = _controls(report["ratios"]["aa"])
    checks = controls + _serving_checks(report) + _lending_checks(report)
    if report["settings"].get("quick"):
        # Two rounds are too few for ratios of times: equal arms differ by more than a bar allows.
        controls, checks = [], [_unless_quick(report, check) for check in checks]
    if report["weights"] is not None:
        checks += _rl_loop_checks(report)
    is_blind = any(one.value is None for one in controls)
    sentence, next_command = _noise(report, controls, "rose demo", is_blind=is_blind)
    if not sentence and outlook is not None and outlook.why is not None:
        next_command = f"rose demo {outlook.options}".rstrip()
        sentence = f"Void: nothing could be certified, because {outlook.why}. Try: {next_command}"
    if not sentence and report["settings"].get("quick"):
        sentence = f"This quick run is too short to judge latency and harvest. {_sentence(checks)}"
    learnt = ", and every published version arrived unchanged" if report["weights"] else ""
    kept = f": serving kept its latency while rollouts ran{learnt}"
    sentence = sentence or _sentence(checks, kept)
    return _verdict(report, sentence, next_command, checks)


def judge_loads(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict of a comparison at its highest load, in the form of `judge`.

    Every scheme of rose is checked against the bars, except schemes with ablated mechanisms.
    """
    if not report["loads"]:
        return _verdict(report, "Nothing was measured.", None, [])
    at = report["loads"][-1]
    controls = _controls(at["ratios"]["aa"]) if "aa" in at["ratios"] else []
    ours = {
        name: scheme["slowdown"]
        for name, scheme in report["schemes"].items()
        if scheme["slowdown"] is not None and not scheme["without"]
    }
    checks = [*controls]
    for name, slowdown in ours.items():
        checks += _latency_checks(at, name, slowdown)
        late = _late_beyond_alone(at, name)
        checks.append(_at_most(f"{name} late tokens above those of alone", late, LATE_TOKENS_MAX))
        checks.append(_certificates_check(at["certificates"][name], f"{name} "))
    is_blind = not at["arms"][ALONE]["requests"] or any(one.value is None for one in controls)
    sentence, next_command = _noise(report, controls, "rose compare", is_blind=is_blind)
    if not sentence:
        others = [
            name
            for name, scheme in report["schemes"].items()
            if scheme["slowdown"] is None and name not in UNRULED
        ]
        gains = [
            _gain(at, list(ours), "rose's schemes"),
            _gain(at, others, "the other schemes"),
        ]
        named = "; ".join(one for one in gains if one) or "no scheme ran rollouts"
        sentence = f"At load {at['load']:g}: {named}. {_sentence(checks)}"
    return _verdict(report, sentence, next_command, checks)


def _gain(at: Mapping[str, Any], names: list[str], kind: str) -> str:
    """Name the scheme with the highest harvest among those that keep serving's targets."""
    harvests = {
        name: at["arms"][name]["harvested_tokens_share"] or 0.0
        for name in names
        if at["arms"][name]["requests"]
    }
    if not harvests:
        return ""
    kept = {one: got for one, got in harvests.items() if _is_kept(at, one)}
    if not kept:
        return f"none of {kind} keeps serving's targets"
    best = max(kept, key=kept.__getitem__)
    price = ", ".join(
        f"{metric} x {fixed(at['ratios'][best][key])}"
        for metric, key in (("TTFT", "ttft_p50"), ("TPOT", "tpot_p50"))
    )
    return (
        f"of {kind} that keep serving's targets, {best} gives rollouts the highest rate: "
        f"{percent(kept[best])} of their rate alone, at {price}"
    )


def _is_kept(at: Mapping[str, Any], name: str) -> bool:
    below, late = _below_alone(at, name), _late_beyond_alone(at, name)
    return (
        below is not None
        and late is not None
        and below <= SLO_BELOW_ALONE_MAX
        and late <= LATE_TOKENS_MAX
    )


def _late_beyond_alone(at: Mapping[str, Any], name: str) -> float | None:
    late, of_alone = (at["late_token_share"][one] for one in (name, ALONE))
    return None if late is None or of_alone is None else max(0.0, late - of_alone)


def _controls(ratios: Mapping[str, float | None]) -> list[Check]:
    return [
        _check(
            f"A/A {metric} P50",
            ratios[key],
            f"{AA_MIN} to {AA_MAX}",
            lambda v: AA_MIN <= v <= AA_MAX,
        )
        for metric, key in (("TTFT", "ttft_p50"), ("TPOT", "tpot_p50"))
    ]


def _noise(
    report: Mapping[str, Any], controls: list[Check], command: str, *, is_blind: bool
) -> tuple[str, str | None]:
    """Return why the A/A control voids the run, and a command to try; else "" and None."""
    void = report["slices"]["void"]
    off = ", ".join(f"{c.name} is {c.value:.3g}" for c in controls if c.ok is False)
    if report["complete"] and is_blind:
        return (
            f"Void: no round has a usable slice of both alone and alone_again: "
            f"{void} slices had foreign CPU time on the device. Stop other programs "
            f"on this machine, and run again: {command}"
        ), command
    if off:
        command = f"{command} --load 0.1"
        return (
            f"Void: the A/A control left the range {AA_MIN} to {AA_MAX} ({off}; "
            f"{void} slices had foreign CPU time), so the machine was too "
            f"noisy to judge. Run again on a quieter machine, or try: {command}"
        ), command
    return "", None


def _verdict(
    report: Mapping[str, Any], sentence: str, next_command: str | None, checks: list[Check]
) -> dict[str, Any]:
    lead = "" if report["complete"] else "The run was stopped early. "
    return {
        "void": next_command is not None,
        "sentence": lead + sentence,
        "next_command": next_command,
        "checks": [asdict(check) for check in checks],
    }


def _serving_checks(report: Mapping[str, Any]) -> list[Check]:
    """Check that rose protects serving, and that `share_all` does not."""
    ratios = report["ratios"]
    unprotected = ratios["share_all"]["tpot_p50"]
    blocked_segments = ratio(report["blocked_by_rollout_ms_p99"], report["segment_ms_p99"])
    return [
        *_latency_checks(report, "rose", report["settings"]["slowdown"]),
        _at_most("blocked by rollouts P99 / segment P99", blocked_segments, BLOCKED_SEGMENTS_MAX),
        _at_least("share_all TPOT P50 / alone", unprotected, SHARE_ALL_TPOT_MIN),
    ]


def _latency_checks(at: Mapping[str, Any], arm: str, slowdown: float | str) -> list[Check]:
    """Check latencies; an arm with a slowdown above the bar is slower on purpose and not judged."""
    is_judged = not isinstance(slowdown, str) and 1 + slowdown <= ROSE_P50_MAX
    checks = []
    for metric in ("TTFT", "TPOT"):
        name, value = f"{arm} {metric} P50 / alone", at["ratios"][arm][f"{metric.lower()}_p50"]
        if is_judged:
            checks.append(_at_most(name, value, ROSE_P50_MAX))
        else:
            checks.append(Check(name, value, f"not judged at a slowdown of {slowdown}", None))
    below = _at_most(
        f"{arm} SLO shortfall against alone", _below_alone(at, arm), SLO_BELOW_ALONE_MAX
    )
    return [*checks, below]


def _below_alone(at: Mapping[str, Any], arm: str) -> float | None:
    met, of_alone = (at["arms"][one]["slo_attainment"] for one in (arm, ALONE))
    return None if met is None or of_alone is None else max(0.0, of_alone - met)


def _certificates_check(found: Mapping[str, int], arm: str = "") -> Check:
    granted = found["granted"]
    unproven = max(found["violations"], granted - found["verified"]) if granted else None
    return _check(f"{arm}certificates not verified", unproven, "0", _is_zero)


def _lending_checks(report: Mapping[str, Any]) -> list[Check]:
    """Check the harvest, the certificates, the revocations, and the number of requests."""
    revocations = report["revocations"]["count"] if report["arms"]["rose"]["requests"] else None
    fewest = min(arm["requests"] for arm in report["arms"].values())
    return [
        _at_least(
            "rose harvest / certifiable idle", report["harvest_over_certifiable"], HARVEST_MIN
        ),
        _certificates_check(report["certificates"]),
        _at_least("revocations", revocations, 1),
        _at_least("requests of an arm", fewest or None, REQUESTS_MIN),
    ]


def _unless_quick(report: Mapping[str, Any], check: Check) -> Check:
    if not report["settings"].get("quick") or check.bar == "0":
        return check
    return Check(check.name, check.value, "not judged when quick", None)


def _rl_loop_checks(report: Mapping[str, Any]) -> list[Check]:
    """Check that workers use the published weights, few bytes were sent, and nothing was lost."""
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


def _sentence(checks: list[Check], kept: str = "") -> str:
    judged = [check for check in checks if check.ok is not None]
    missed = [check for check in judged if not check.ok]
    without = [c for c in checks if c.ok is None and c.value is None]
    rest = f" {len(without)} could not be judged." if without else ""
    if missed:
        named = ", ".join(f"{one.name} is {one.value:.3g}, bar {one.bar}" for one in missed)
        return f"{len(missed)} of {len(judged)} bars missed: {named}.{rest}"
    if not judged:
        return "Nothing could be judged: no round was measured in every arm."
    if rest:
        return f"All {len(judged)} bars that could be judged are met.{rest}"
    return f"All {len(judged)} bars are met{kept}."


def _check(name: str, value: float | None, bar: str, holds: Callable[[float], bool]) -> Check:
    return Check(name, value, bar, None if value is None else holds(value))


def _at_most(name: str, value: float | None, bar: float) -> Check:
    return _check(name, value, f"at most {bar:g}", lambda v: v <= bar)


def _at_least(name: str, value: float | None, bar: float) -> Check:
    return _check(name, value, f"at least {bar:g}", lambda v: v >= bar)


def _is_zero(value: float) -> bool:
    return value == 0
