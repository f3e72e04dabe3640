"""What the broker of a run decided, in numbers."""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

from rose.demo.numbers import NO_NUMBER, number, percent
from rose.demo.record import BrokerRecord
from rose.units import MIB

BROKER_HEADERS: Final = (
    "broker:\ndecisions",
    "mean cap\nMiB",
    "of the\npool",
    "something\nlent",
    "begun\n/ended",
    "grown\n/shrunk",
)


def summarise_broker(record: BrokerRecord | None) -> dict[str, Any] | None:
    """Return what `report.json` says of the broker; None where there was none.

    Means are over decisions, which come once a second, in every arm: between its windows the device
    of the arm `rose` is idle.
    """
    if record is None:
        return None
    decisions = record.decisions
    moves = Counter(one.move for one in decisions)
    mean_bytes = fmean(one.cap_bytes for one in decisions) if decisions else None
    return {
        "decisions": len(decisions),
        "pool_bytes": record.pool_bytes,
        "mean_cap_bytes": mean_bytes,
        "mean_cap_share": None if mean_bytes is None else mean_bytes / record.pool_bytes,
        "lent_time_share": fmean(one.lent_bytes > 0 for one in decisions) if decisions else None,
        "begun": moves["LEND"],
        "grown": moves["GROW"],
        "shrunk": moves["SHRINK"],
        "ended": moves["END"],
        "last_why": decisions[-1].why if decisions else None,
    }


def broker_row(broker: Mapping[str, Any]) -> list[str]:
    """Return the cells of the one row under `BROKER_HEADERS`."""
    mean_bytes = broker["mean_cap_bytes"]
    return [
        str(broker["decisions"]),
        number(None if mean_bytes is None else mean_bytes / MIB),
        percent(broker["mean_cap_share"]),
        percent(broker["lent_time_share"]),
        f"{broker['begun']}/{broker['ended']}",
        f"{broker['grown']}/{broker['shrunk']}",
    ]


def last_word(broker: Mapping[str, Any]) -> str:
    """Say why the broker decided as it did when it last did."""
    return f"The broker's last reason: {broker['last_why'] or NO_NUMBER}."
