"""Serving's latency targets, and certificates that show they were kept."""

from rose.slo.policy import Policy
from rose.slo.targets import SLO

__all__ = ["SLO", "Policy"]
