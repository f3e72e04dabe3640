"""Serving's latency targets, and certificates which show that loans respect the targets."""

from rose.slo.policy import Policy
from rose.slo.targets import SLO

__all__ = ["SLO", "Policy"]
