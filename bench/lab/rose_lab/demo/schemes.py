"""The arms of an experiment: names, sharing rules, and the arms possible in each kind of run."""

import math
from dataclasses import dataclass
from typing import Any, Final

from rose.errors import InvalidArgument
from rose_lab.sim.simulation import SLOWDOWNS


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to share the device.

    Args:
        name: name in options, records and reports.
        rule: one sentence on when rollouts run.
        slowdown: allowed slowdown of running requests under rose; None for every other scheme.
        without: disabled mechanisms of rose.
    """

    name: str
    rule: str
    slowdown: float | None = None
    without: frozenset[str] = frozenset()

    def described(self) -> dict[str, Any]:
        """Return the scheme's entry in a report."""
        slowdown = "unlimited" if self.slowdown == math.inf else self.slowdown
        return {"rule": self.rule, "slowdown": slowdown, "without": sorted(self.without)}


ALONE: Final = "alone"
CONTROL: Final = "alone_again"
SHARE_ALL: Final = "share_all"
ABLATED: Final = "rose_slack"
"""The scheme that `--without` ablates."""
UNRULED: Final = frozenset({ALONE, CONTROL, "clairvoyant"})
"""Bounds for comparison, not ways to share a device."""


def rose_scheme(name: str, slowdown: float) -> Scheme:
    """Return the scheme of rose that allows `slowdown`, a fraction: 0.05 is 5 %."""
    if slowdown == 0:
        rule = "Certified quanta while no request is live."
    elif slowdown == math.inf:
        rule = "Certified quanta also between two steps, as long as every running request can wait."
    else:
        rule = (
            f"Certified quanta also between two steps, for up to {slowdown:.0%} of the time that "
            f"running requests spend in steps."
        )
    return Scheme(name, rule, slowdown)


_ALL: Final = (
    Scheme(ALONE, "Serving has the device to itself."),
    Scheme(CONTROL, "Serving alone again: the difference from alone is the noise of the machine."),
    Scheme(SHARE_ALL, "Both engines run at any time, without coordination."),
    Scheme("priority", "Rollouts run whenever serving has nothing ready, without pre-emption."),
    Scheme(
        "host_window",
        "The host stops launching rollouts at an arrival; two whole steps are then in flight "
        "(XSched, level 1, a graph as one command).",
    ),
    Scheme(
        "rose_paper",
        "A whole rollout step runs when all live requests have positive slack, for the first and "
        "for the next token (arXiv 2605.06534).",
    ),
    Scheme(
        "valve",
        "Rollouts run in idle time only, after a cool-down of twice the longest decode gap "
        "(arXiv 2604.07874).",
    ),
    Scheme("static_split", "Each engine has a fixed share of the device for itself."),
    *(rose_scheme(name, slowdown) for name, slowdown in SLOWDOWNS.items()),
    Scheme(
        "clairvoyant",
        "Knows all arrivals and step times in advance, and lends as much as the targets allow.",
    ),
)
SCHEMES: Final = {scheme.name: scheme for scheme in _ALL}
"""Schemes in report order."""

ON_ENGINES: Final = frozenset(SCHEMES) - {"static_split", "clairvoyant"}
"""Schemes that run on real engines with one core."""

MECHANISMS: Final = {
    "gate": "a rollout step has no gates inside it",
    "credit": "an open gate lets any number of segments through",
    "early_close": "the gate closes at serving's next step, not at the arrival",
    "hypothetical": "certificates ignore the request that may come next",
    "margin": "certificates use predictions as upper bounds",
}


def demo_schemes(slowdown: float) -> tuple[Scheme, ...]:
    """Return the arms of `rose demo`: serving alone (twice), `share_all`, and rose."""
    return SCHEMES[ALONE], SCHEMES[CONTROL], SCHEMES[SHARE_ALL], rose_scheme("rose", slowdown)


def ablation(mechanism: str) -> Scheme:
    """Return rose with unlimited slowdown and one mechanism disabled.

    Raises:
        InvalidArgument: rose has no such mechanism.
    """
    if mechanism not in MECHANISMS:
        raise InvalidArgument(
            f"--without {mechanism} is not a mechanism of rose: use {', '.join(MECHANISMS)}"
        )
    return Scheme(
        f"{ABLATED}-{mechanism}",
        f"As {ABLATED}, but {MECHANISMS[mechanism]}.",
        SLOWDOWNS[ABLATED],
        frozenset({mechanism}),
    )


def choose_schemes(
    names: str | None, without: tuple[str, ...], *, possible: frozenset[str]
) -> tuple[Scheme, ...]:
    """Return the schemes to run in report order, always including `alone`.

    Args:
        names: comma-separated names; None for all possible schemes.
        without: mechanisms to ablate, one extra scheme each.
        possible: names that this kind of run supports.

    Raises:
        InvalidArgument: a name is unknown or not possible here.
    """
    wanted = possible if names is None else frozenset(one.strip() for one in names.split(","))
    usable = ", ".join(name for name in SCHEMES if name in possible)
    for name in sorted(wanted - possible):
        if name in SCHEMES:
            raise InvalidArgument(
                f"--schemes {name} is not possible in this kind of run: choose from {usable}"
            )
        raise InvalidArgument(f"--schemes {name} is not known: use {usable}")
    schemes = []
    for one in _ALL:
        if one.name in wanted | {ALONE}:
            schemes.append(one)
        if one.name == ABLATED:
            schemes += [ablation(name) for name in dict.fromkeys(without)]
    return tuple(schemes)
