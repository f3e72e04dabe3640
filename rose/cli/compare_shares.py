"""How each scheme shares the device when real engines run it, and what serving felt of it."""

from dataclasses import dataclass
from typing import Protocol

from rose.cli.compare_felt import FeltWindow
from rose.cli.compare_lane import GovernedLane
from rose.demo.replay import Arm
from rose.executor import CoServing, ServingLane
from rose.sim.governor import Governor


class Share(Protocol):
    """One scheme, ready to serve windows."""

    @property
    def arm(self) -> Arm:
        """What serves."""
        ...

    def begin(self) -> None:
        """Prepare for a window; nothing of serving or of this scheme's rollouts runs."""
        ...

    def felt(self) -> FeltWindow:
        """Say what was felt since `begin`."""
        ...


@dataclass(frozen=True, slots=True)
class StockShare:
    """Engines that nothing of ours stands between."""

    arm: Arm

    def begin(self) -> None:
        """Nothing to prepare."""

    def felt(self) -> FeltWindow:
        """Nobody counts: waiting for the core looks like working on it."""
        return FeltWindow()


@dataclass(frozen=True, slots=True)
class GovernedShare:
    """Somebody else's rule, over a lane that several rules use in turn."""

    arm: Arm
    lane: GovernedLane
    governor: Governor

    def begin(self) -> None:
        """Let the lane follow this rule; what the rule has learnt, it keeps."""
        self.lane.govern(self.governor)

    def felt(self) -> FeltWindow:
        """Say what the lane counted."""
        return self.lane.drain()


class RoseShare:
    """A device under rose."""

    def __init__(self, arm: Arm, device: CoServing, lane: ServingLane) -> None:
        """Bind to a device whose engines `arm` names."""
        self._arm = arm
        self._device = device
        self._lane = lane
        self._pauses = 0

    @property
    def arm(self) -> Arm:
        """What serves."""
        return self._arm

    def begin(self) -> None:
        """Forget what other windows left behind."""
        self._device.gate.drain_segments_ms()
        self._lane.blocked_ms.clear()
        self._pauses = self._device.gate.stats().pauses

    def felt(self) -> FeltWindow:
        """Say what gate and lane counted."""
        return FeltWindow(
            blocked_ms=tuple(self._lane.blocked_ms),
            pauses=self._device.gate.stats().pauses - self._pauses,
            segments=len(self._device.gate.drain_segments_ms()),
        )
