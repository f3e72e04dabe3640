"""What serving felt of rollouts in one window."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeltWindow:
    """What rollouts did to serving in one window.

    Args:
        blocked_ms: for each step that found a segment running, how long it waited.
        pauses: how often rollouts were stopped.
        pauses_ms: how long each took, where that is noted one by one.
        segments: that rollouts ran.
    """

    blocked_ms: tuple[float, ...] = ()
    pauses: int = 0
    pauses_ms: tuple[float, ...] = ()
    segments: int = 0
