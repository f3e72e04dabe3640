"""When growing again is safe: a hold after pressure, which recent revocations make longer."""

import math

from rose.scheduler.broker.settings import BrokerSettings


class Hold:
    """The hold of one device. It starts as after pressure: calm is to be seen first.

    A device that is revoked as soon as it has grown climbs one level each time, so its hold reaches
    the longest. What is forgiven is calm beyond the hold, so a hold that is long does not forgive
    itself.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        """Start closed, with nothing seen."""
        self._settings = settings
        self._level = 0
        self._pressed_ms = -math.inf
        self._calm_ms: float | None = None  # since when every reading was there and calm

    def level_at(self, now_ms: float) -> int:
        """Return the revocations that still count."""
        calm_ms = now_ms - self._pressed_ms - self._settings.hold_ms(self._level)
        if self._level == 0 or calm_ms <= 0:
            return self._level
        return max(0, self._level - int(calm_ms // self._settings.forgive_ms))

    def press(self, now_ms: float, *, is_revocation: bool) -> None:
        """Pressure was seen; `is_revocation` when a loan paid for it."""
        level = self.level_at(now_ms) + is_revocation
        self._level = min(level, self._settings.level_max)
        self._pressed_ms = now_ms
        self._calm_ms = None

    def lose_sight(self) -> None:
        """A reading failed: what was calm may not be so any more."""
        self._calm_ms = None

    def rest(self, now_ms: float) -> None:
        """A calm reading."""
        if self._calm_ms is None:
            self._calm_ms = now_ms

    def wait_ms(self, now_ms: float) -> float:
        """Return how long no loan may begin or grow yet; 0 when one may."""
        settle_ms = self._settings.settle_ms
        calm_ms = now_ms if self._calm_ms is None else self._calm_ms
        wait_ms = calm_ms + settle_ms - now_ms
        if math.isfinite(self._pressed_ms):
            held_ms = self._pressed_ms + self._settings.hold_ms(self._level) - now_ms
            wait_ms = max(wait_ms, held_ms)
        return max(0.0, wait_ms)
