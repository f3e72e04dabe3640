"""What serving was promised, and the certificates that show it was kept."""

from rose.slo.policy import Policy
from rose.slo.targets import SLO

__all__ = ["SLO", "Policy"]
