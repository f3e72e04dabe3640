"""What the broker remembers of one device."""

from collections import deque

from rose.scheduler.broker.hazard import Hazard
from rose.scheduler.broker.hysteresis import Hold
from rose.scheduler.broker.observation import Observation, Reading, ServingDevice, Unread
from rose.scheduler.broker.pressure import Pressure, Severity, free_bytes, pressure_of
from rose.scheduler.broker.settings import BrokerSettings
from rose.units import MS_PER_S


class DeviceHistory:
    """A loan, what led to it, and how serving was.

    `lent_bytes` is the broker's promise. It counts as lent until its TTL is over, whether or not
    anybody uses it.
    """

    def __init__(self, device: ServingDevice, settings: BrokerSettings) -> None:
        """Start without a loan."""
        self.device = device
        self.lent_bytes = 0
        self.ends_ms = 0.0
        self.has_lapsed = False  # at the decision that is being made
        self.grown_ms = float("-inf")
        self.hold = Hold(settings)
        self.hazard = Hazard(weight_s=settings.hazard_prior_s, memory_s=settings.hazard_window_s)
        self.seen: Observation | None = None  # the last one, if it is fit to decide on
        self.pressure: Pressure | None = None
        self.blind: str | None = None  # why the last reading says nothing
        self.was_taken = False  # by the executor, since the reading before
        self.read_ms = float("-inf")
        self._settings = settings
        self._peaks: deque[tuple[float, int]] = deque()  # (time, used): descending
        self._revocations: int | None = None

    @property
    def recent_share(self) -> float:
        """The highest share of the pool that serving held lately."""
        return self._peaks[0][1] / self.device.kv_bytes if self._peaks else 1.0

    def expire(self, now_ms: float) -> None:
        """End a loan that nobody renewed in time."""
        self.has_lapsed = self.lent_bytes > 0 and now_ms >= self.ends_ms
        if self.has_lapsed:
            self.lent_bytes = 0

    def take(self, reading: Reading, now_ms: float) -> bool:
        """Learn from a reading, and say whether a loan was revoked since the one before."""
        self.device, self.read_ms, self.was_taken = reading.device, now_ms, False
        self.blind = self._blindness(reading, now_ms)
        if self.blind is not None or isinstance(reading, Unread):
            self.seen, self.pressure = None, None
            self.hold.lose_sight()
            return False
        if self._revocations is None and reading.lent_bytes:
            # The broker starts anew, and takes over the loan that it finds.
            self.lent_bytes = self.device.whole_slabs(reading.lent_bytes)
            self.ends_ms = now_ms + self._settings.ttl_min_ms
        self.was_taken = self._taken_back(reading)
        return self._look(reading, now_ms)

    def ceiling_bytes(self) -> int:
        """Return what can be lent with room for serving to grow until the next reading."""
        seen = self.seen
        if seen is None:
            return 0
        left_bytes = (1 - self.recent_share) * self.device.kv_bytes - self.device.reserve_bytes
        return min(
            self.device.whole_slabs(self._settings.lend_share * left_bytes), free_bytes(seen)
        )

    def kept_bytes(self) -> int:
        """Return what pressure leaves of the loan: less than there was."""
        pressure, seen = self.pressure, self.seen
        if pressure is None or seen is None:
            return self.lent_bytes
        match pressure.severity:
            case Severity.LATE:
                return 0
            case Severity.NEAR:
                kept = self._settings.keep_share * self.lent_bytes
            case Severity.MEMORY:
                kept = float(self.lent_bytes)
        kept_bytes = self.device.whole_slabs(min(kept, self.ceiling_bytes()))
        return kept_bytes if kept_bytes >= self._settings.loan_bytes_min else 0

    def _blindness(self, reading: Reading, now_ms: float) -> str | None:
        if isinstance(reading, Unread):
            return reading.why
        age_ms = now_ms - reading.at_ms
        if age_ms > self._settings.stale_after_ms:
            return f"its last reading is {age_ms / MS_PER_S:.0f} s old"
        return None

    def _taken_back(self, seen: Observation) -> bool:
        """Whether the executor took a loan back by itself, and not as much as comes and goes.

        A lower count than before is a new executor's.
        """
        before, self._revocations = self._revocations, seen.revocations
        if before is None or seen.revocations <= before:
            return False
        if seen.revoked_share is not None and seen.revoked_share <= self._settings.ebb_share:
            return False  # Ebb and flow: serving has what it needs, and the loan is what it was.
        if seen.lent_bytes is not None:
            left_bytes = self.device.whole_slabs(seen.lent_bytes)
            self.lent_bytes = min(self.lent_bytes, left_bytes)
        return True

    def _look(self, seen: Observation, now_ms: float) -> bool:
        was_pressed = self.pressure is not None
        self.seen = seen
        self._remember_peak(now_ms, seen.used_bytes)
        self.pressure = pressure_of(seen, self.lent_bytes, self._settings)
        if self.pressure is None and not self.was_taken:
            self.hold.rest(now_ms)
            return False
        # A second reading under the same pressure is the same revocation.
        costs_loan = self.was_taken or (self.lent_bytes > 0 and not was_pressed)
        self.hold.press(now_ms, is_revocation=costs_loan)
        if costs_loan:
            self.hazard.revoked()
        return costs_loan

    def _remember_peak(self, now_ms: float, used_bytes: int) -> None:
        while self._peaks and self._peaks[-1][1] <= used_bytes:
            self._peaks.pop()
        self._peaks.append((now_ms, used_bytes))
        while self._peaks[0][0] < now_ms - self._settings.peak_window_ms:
            self._peaks.popleft()
