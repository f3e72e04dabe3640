"""Bytes from a trainer to eight receivers of four layouts, divided by the fewest possible bytes."""

from bench.conftest import Report
from bench.crossing import Crossed, crossing
from bench.rows import Bar, Peer

ROUNDS = 8


def test_crossing(report: Report) -> None:
    """Every update is checked bit for bit at every receiver. Bytes are those of frames."""
    crossed: list[Crossed] = []
    with crossing() as way:
        report.repeat(lambda: crossed.append(way.update(is_new=len(crossed) % 2 == 0)), ROUNDS)
        receivers = len(way.ranks)
    count = len(crossed)
    total = {
        name: sum(getattr(one, name) for one in crossed)
        for name in ("crossing", "bound", "flat", "received")
    }
    unit = "B an update"
    report.add(
        "bytes_crossing_over_bound",
        total["crossing"] / total["bound"],
        "ratio",
        peer=Peer("each changed tile that any receiver has, once", total["bound"] / count, unit),
        bar=Bar(at_most=1.02),
    )
    report.add(
        "bytes_crossing_over_flat_row",
        total["crossing"] / total["flat"],
        "ratio",
        peer=Peer("the same change in one row that nobody cuts", total["flat"] / count, unit),
    )
    report.add(
        "bytes_received_over_crossing",
        total["received"] / total["crossing"],
        "ratio",
        peer=Peer("from the trainer to the relay", total["crossing"] / count, unit),
    )
    report.add("crossing_receivers", receivers, "receivers")
