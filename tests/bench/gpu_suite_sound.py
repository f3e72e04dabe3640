"""A suite for the tests of `make gpu`: two figures and a ratio."""

from bench.gpu.report import Report
from bench.paired import PairedRatio
from bench.rows import Bar, Peer

ROWS = ("length_m", "weight_kg", "length_over_peer")


def measure(report: Report) -> None:
    report.add("length_m", 2.0, "m", bar=Bar(at_most=3))
    report.add("weight_kg", 5.0, "kg", bar=Bar(at_most=3))
    paired = PairedRatio(ratio=0.5, control=1.0, subject=1.0, peer=2.0)
    report.add_ratio("length_over_peer", paired, peer=Peer("a peer", 2.0, "m"))
