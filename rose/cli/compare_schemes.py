"""The schemes `rose compare` puts side by side: how each is called, and the rule it follows."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument


class Kind(Enum):
    """What a scheme is there for."""

    BOUND = "bound"
    PUBLISHED = "published"
    ROSE = "rose"
    ABLATION = "ablation"


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to share the device.

    Args:
        name: in options and in `compare.json`.
        label: in tables and figures.
        kind: what it is there for.
        rule: when rollouts run, in one sentence.
        ablates: names of the mechanisms that are switched off.
    """

    name: str
    label: str
    kind: Kind
    rule: str
    ablates: frozenset[str] = frozenset()


ALONE: Final = "alone"
CONTROL: Final = "alone_again"
CLAIRVOYANT: Final = "clairvoyant"
ABLATED: Final = "rose_slack"
"""What `--without` takes a mechanism out of."""

_ALL: Final = (
    Scheme(ALONE, "alone", Kind.BOUND, "Serving has the device to itself."),
    Scheme(
        CONTROL,
        "alone again",
        Kind.BOUND,
        "The same once more: how far it is from alone is the noise of the machine.",
    ),
    Scheme(
        "share_all",
        "share all",
        Kind.PUBLISHED,
        "Both engines run at any time, with nothing between them.",
    ),
    Scheme(
        "priority",
        "priority",
        Kind.PUBLISHED,
        "Rollouts run whenever serving has nothing ready; what runs is not pre-empted.",
    ),
    Scheme(
        "host_window",
        "host window",
        Kind.PUBLISHED,
        "The host stops launching at an arrival; two whole steps are in flight by then "
        "(XSched, level 1, a graph as one command).",
    ),
    Scheme(
        "rose_paper",
        "ROSE (paper)",
        Kind.PUBLISHED,
        "A whole rollout step runs when first-token and next-token slack of all live requests "
        "are positive (arXiv 2605.06534).",
    ),
    Scheme(
        "valve",
        "Valve",
        Kind.PUBLISHED,
        "Rollouts run in idle time only, after a cool-down of twice the longest decode gap "
        "(arXiv 2604.07874).",
    ),
    Scheme(
        "static_split",
        "static split",
        Kind.PUBLISHED,
        "Each engine has a fixed share of the device for itself.",
    ),
    Scheme("rose_idle", "rose idle", Kind.ROSE, "Certified quanta while no request is live."),
    Scheme(
        "rose_slack",
        "rose slack",
        Kind.ROSE,
        "Certified quanta also between two steps, as far as every running request can wait.",
    ),
    Scheme(
        "rose_spatial",
        "rose spatial",
        Kind.ROSE,
        "Certified quanta beside serving's steps, on a part of the device.",
    ),
    Scheme(
        CLAIRVOYANT,
        "clairvoyant",
        Kind.BOUND,
        "Knows all arrivals and step times in advance, and takes all there is to take.",
    ),
)
SCHEMES: Final = {scheme.name: scheme for scheme in _ALL}
"""In the order of the report."""

MECHANISMS: Final = {
    "gate": "a rollout step has no gates inside it",
    "credit": "an open gate lets any number of segments through",
    "early_close": "the gate closes at serving's next step, not at the arrival",
    "hypothetical": "certificates ignore the request that may come next",
    "confinement": "rollouts beside a step may use the whole device",
    "margin": "certificates take predictions for upper bounds",
}


def ablation(mechanism: str) -> Scheme:
    """Return rose's slack mode with one mechanism switched off.

    Raises:
        InvalidArgument: rose has no such mechanism.
    """
    if mechanism not in MECHANISMS:
        raise InvalidArgument(
            f"--without {mechanism} is not a mechanism of rose: use {', '.join(MECHANISMS)}"
        )
    return Scheme(
        name=f"{ABLATED}-{mechanism}",
        label=f"slack, no {mechanism.replace('_', ' ')}",
        kind=Kind.ABLATION,
        rule=f"As {SCHEMES[ABLATED].label}, but {MECHANISMS[mechanism]}.",
        ablates=frozenset({mechanism}),
    )


def chosen(
    names: str | None, without: tuple[str, ...], *, possible: frozenset[str]
) -> list[Scheme]:
    """Return the schemes to run, in the order of the report; `alone` is always among them.

    Args:
        names: separated by commas; None for all that are possible.
        without: mechanisms, each of which is taken out once.
        possible: what this way of running can show.

    Raises:
        InvalidArgument: a name is not known or not possible here.
    """
    wanted = possible if names is None else frozenset(one.strip() for one in names.split(","))
    for name in sorted(wanted - possible):
        if name in SCHEMES:
            raise InvalidArgument(f"--schemes {name} needs another kind of run: see the help")
        raise InvalidArgument(
            f"--schemes {name} is not known: use {', '.join(n for n in SCHEMES if n in possible)}"
        )
    schemes = []
    for one in _ALL:
        if one.name in wanted | {ALONE}:
            schemes.append(one)
        if one.name == ABLATED:
            schemes += [ablation(name) for name in dict.fromkeys(without)]
    return schemes
