"""The rows of a suite, and the document that every suite writes.

A document is `{"machine", "commit", "suite", "rows"}`. A document that is also written when some
rows could not be measured has `"unmeasured"` too, a list of `{"name", "reason"}`, and may have no
rows. A row has exactly these keys. A computed row also has `terms`, and a row of paired rounds may
have an `interval`:

    name    what was measured; the statistic and the unit are its last words
    value   a finite number
    unit    of the value; "ratio" is the subject's figure over the peer's
    peer    {"name", "value", "unit"}: the peer's own figure in the same run; null without one
    bar     {"at_most": x}, {"at_least": x}, or both; null without one
    ok      whether the value meets the bar; null without a bar, and null for a void row
    terms   what the value was computed from, in order: {"name", "value", "unit"} each
    interval  [low, high]: the value lies between them with 95 %

A ratio `name` comes with its A/A control `aa_name`, the subject over itself. When the control is
out of its bar, the machine was not quiet enough and the ratio is void. A null `ok` beside a bar
always means a void row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

CONTROL: Final = "aa_"
_DOCUMENT_KEYS: Final = {"machine", "commit", "suite", "rows"}
_UNMEASURED: Final = "unmeasured"
_UNMEASURED_KEYS: Final = {"name", "reason"}
_ROW_KEYS: Final = {"name", "value", "unit", "peer", "bar", "ok"}
_PEER_KEYS: Final = {"name", "value", "unit"}
_TERMS: Final = "terms"  # each has the keys of a peer
_INTERVAL: Final = "interval"
_DIRECTIONS: Final = ("at_least", "at_most")


@dataclass(frozen=True, slots=True)
class Bar:
    """The limits of a value."""

    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        low = -math.inf if self.at_least is None else self.at_least
        return low <= value <= (math.inf if self.at_most is None else self.at_most)

    def as_json(self) -> dict[str, float]:
        sides = {name: getattr(self, name) for name in _DIRECTIONS}
        return {name: float(side) for name, side in sides.items() if side is not None}


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side of a comparison, and its own figure."""

    name: str
    value: float
    unit: str

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "value": rounded(self.value), "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a computed figure."""

    name: str
    value: float
    unit: str

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "value": rounded(self.value), "unit": self.unit}


# Limits of an A/A control; outside them the ratio is void.
CONTROL_BAR: Final = Bar(at_least=0.9, at_most=1.1)


def rounded(value: float) -> float:
    """Round to six digits: more would be noise."""
    return float(f"{value:.6g}")


def row(
    name: str,
    value: float,
    unit: str,
    *,
    peer: Peer | None = None,
    bar: Bar | None = None,
    is_void: bool = False,
    terms: Sequence[Term] = (),
    interval: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return a row in JSON's types."""
    computed: dict[str, Any] = {_TERMS: [term.as_json() for term in terms]} if terms else {}
    if interval is not None:
        computed[_INTERVAL] = [rounded(end) for end in interval]
    return {
        "name": name,
        "value": rounded(value),
        "unit": unit,
        "peer": None if peer is None else peer.as_json(),
        "bar": None if bar is None else bar.as_json(),
        # The written value is the judged one.
        "ok": None if bar is None or is_void else bar.is_met(rounded(value)),
        **computed,
    }


def bar_of(one: Mapping[str, Any]) -> str:
    """Return a row's bar in words; empty without one."""
    bar = one["bar"] or {}
    return ", ".join(f"{side.replace('_', ' ')} {value:.4g}" for side, value in bar.items())


def figure_of(one: Mapping[str, Any]) -> str:
    """Return a row's figure, with its unit and its interval."""
    spread = "" if _INTERVAL not in one else " [{:.4g}, {:.4g}]".format(*one[_INTERVAL])
    return f"{one['value']:.4g}{spread} {one['unit']}"


def said_of(one: Mapping[str, Any]) -> str:
    """Return a row as one line."""
    verdict = {True: "holds", False: "does not hold", None: "void"}[one["ok"]]
    judged = f"; {bar_of(one)}: {verdict}" if one["bar"] else ""
    return f"{one['name']}: {figure_of(one)}{judged}"


def void_reason(one: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the reason why a row is void, or None."""
    for control in rows:
        if control["name"] == CONTROL + one["name"] and control["ok"] is False:
            return f"void: {control['name']} is {control['value']:.3g}"
    return None


def faults(document: Mapping[str, Any]) -> list[str]:
    """Return the faults of a document, one sentence each; empty for a valid one."""
    if set(document) - {_UNMEASURED} != _DOCUMENT_KEYS:
        return [f"the document has the keys {sorted(document)}, not {sorted(_DOCUMENT_KEYS)}"]
    if not (document["machine"] and isinstance(document["machine"], dict)):
        return ["there is no machine card"]
    rows = document["rows"]
    names = [one.get("name") for one in rows]
    unmeasured = document.get(_UNMEASURED, [])
    wrong = [] if rows or unmeasured else ["there are no rows"]
    wrong += [f"two rows are called {name}" for name in set(names) if names.count(name) > 1]
    for one in unmeasured:
        wrong += _unmeasured_faults(one, names)
    for one in rows:
        wrong += _row_faults(one)
    return wrong


def _unmeasured_faults(one: Any, names: Sequence[Any]) -> list[str]:
    if not (isinstance(one, dict) and set(one) == _UNMEASURED_KEYS and all(one.values())):
        return [f"{one} must name an unmeasured row and the reason"]
    return [f"{one['name']} is measured and unmeasured"] * (one["name"] in names)


def _row_faults(one: Mapping[str, Any]) -> list[str]:
    if set(one) - {_TERMS, _INTERVAL} != _ROW_KEYS:
        return [f"row {one.get('name')} has the keys {sorted(one)}, not {sorted(_ROW_KEYS)}"]
    name, bar, peer = one["name"], one["bar"], one["peer"]
    if not _is_number(one["value"]):
        return [f"{name}: {one['value']} is not a finite number"]
    wrong = [f"{name}: {term} is no term" for term in one.get(_TERMS, []) if not _is_figure(term)]
    if _INTERVAL in one and not _is_interval(one[_INTERVAL]):
        wrong.append(f"{name}: {one[_INTERVAL]} is no interval")
    if not one["unit"]:
        wrong.append(f"{name} has no unit")
    if peer is not None and not _is_figure(peer):
        wrong.append(f"{name}: {peer} is not a peer")
    if bar is None:
        return wrong + [f"{name} is judged without a bar"] * (one["ok"] is not None)
    if not (
        isinstance(bar, dict)
        and bar
        and set(bar) <= set(_DIRECTIONS)
        and all(map(_is_number, bar.values()))
    ):
        return [*wrong, f"{name}: {bar} is not a bar"]
    if one["ok"] not in (None, Bar(**bar).is_met(one["value"])):
        wrong.append(f"{name}: ok is {one['ok']}, but the value is {one['value']}")
    return wrong


def _is_figure(one: Any) -> bool:
    return isinstance(one, dict) and set(one) == _PEER_KEYS and _is_number(one["value"])


def _is_interval(ends: Any) -> bool:
    return (
        isinstance(ends, list)
        and len(ends) == 2
        and all(map(_is_number, ends))
        and ends[0] <= ends[1]
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
