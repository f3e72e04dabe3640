"""The broker of a serving device: decides how much to borrow, and for how long."""

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument, check
from rose.units import GIB, MS_PER_S
from rose_lab.broker.observation import (
    Observation,
    Pressure,
    Reading,
    ServingDevice,
    Severity,
    Unread,
    free_bytes,
    pressure_of,
)

# Older readings are ignored. With a reading every 5 s, three in a row may be lost.
STALE_AFTER_MS: Final = 15_000.0
# Serving is assumed to need its highest KV use of this period. A minute covers the second-scale
# bursts of chat traffic.
PEAK_WINDOW_MS: Final = 60_000.0
# Lendable share of the memory that peak and reserve leave. The rest absorbs growth between two
# readings without a revocation.
LEND_SHARE: Final = 0.8
# Share of the lendable memory that one decision adds, so that a wrong guess costs a quarter.
_GROW_SHARE: Final = 0.25
# Shortest time between two growths of a device, however often readings come.
GROW_EVERY_MS: Final = 5_000.0
# Share of a loan that is kept when serving is under pressure but not late. Repeated halving ends a
# loan within a few readings, and a false alarm costs only half of it.
_KEEP_SHARE: Final = 0.5
# Up to this share of a loan may return to serving between two readings as normal fluctuation. One
# growth adds as much. A larger share counts as a revocation, which shrinks the loan and lengthens
# the holds.
_EBB_SHARE: Final = 0.25
# Time without pressure before the first loan and after failed readings: two readings.
SETTLE_MS: Final = 10_000.0
# After pressure no loan grows for this long; two readings show whether it was a single burst. Each
# recent revocation doubles the hold, up to ten minutes, which is a small part of an idle night.
HOLD_MIN_MS: Final = 10_000.0
HOLD_MAX_MS: Final = 600_000.0
_LEVEL_MAX: Final = math.ceil(math.log2(HOLD_MAX_MS / HOLD_MIN_MS))
# This much calm after a hold cancels one revocation.
FORGIVE_MS: Final = 300_000.0
# Shortest life of a loan, in readings: two, and one retry. A shorter loan could expire unrenewed.
_READINGS_OF_TTL: Final = 3
_READING_MS_MIN: Final = 5_000.0
# Life of a loan that is not renewed, for example because the broker died. Each recent revocation
# halves it, down to the shortest life.
TTL_MAX_MS: Final = 60_000.0


class LoanChange(Enum):
    """Change of a device's loan."""

    LEND = "a loan begins"
    GROW = "the loan gets larger"
    KEEP = "the loan stays as it is"
    SHRINK = "serving gets a part back"
    END = "serving gets all back"
    REFUSE = "there is no loan, and none begins"


@dataclass(frozen=True, slots=True)
class Decision:
    """Loan of one device, from now on.

    Args:
        device: name of the device.
        move: kind of change.
        lend_bytes: KV on loan, in whole slabs; 0 ends the loan.
        ttl_ms: time from the decision to the end of the loan, unless a later decision renews it; 0
            without a loan.
        retry_after_ms: time until a loan can begin or grow.
        why: reason, one sentence.
    """

    device: str
    move: LoanChange
    lend_bytes: int
    ttl_ms: float
    retry_after_ms: float
    why: str


class Broker:
    """Decides how much to borrow from one serving device.

    It has no thread, clock or randomness: equal calls give equal answers. It is not on serving's
    path. The executor on the device takes back what serving needs, at once and without asking. The
    broker learns of that from readings. After more than normal fluctuation, it waits longer before
    it lends from the device again.

    Invariants:
    1. A loan that begins, grows or stays after a usable reading fits beside serving's KV and
    reserve.
    2. A reading under pressure shrinks a loan; no loan begins or grows until the next hold is over.
    3. Without a usable reading no loan begins, grows or is renewed.

    `lent_bytes` is a promise: it counts as lent until its TTL ends, used or not.

    Args:
        device: serving device.
        loan_bytes_min: smallest loan that is worth the borrower's start.
        reading_ms: time between two readings; the shortest loan lasts for three.
    """

    def __init__(
        self,
        device: ServingDevice,
        *,
        loan_bytes_min: int = GIB,
        reading_ms: float = _READING_MS_MIN,
    ) -> None:
        self.lent_bytes = 0
        self._device = device
        self._loan_bytes_min = loan_bytes_min
        self._ttl_min_ms = _READINGS_OF_TTL * max(reading_ms, _READING_MS_MIN)
        self._decided_ms = -math.inf
        self._ends_ms = 0.0
        self._grown_ms = -math.inf
        self._seen: Observation | None = None  # the last reading, if usable
        self._pressure: Pressure | None = None
        self._blind: str | None = None  # why the last reading is unusable
        self._was_taken = False  # whether the executor revoked a loan since the previous reading
        self._executor_revocations: int | None = None
        self._peaks: deque[tuple[float, int]] = deque()  # (time, used bytes), bytes descending
        self._hold = _Hold()

    def decide(self, reading: Reading, now_ms: float) -> Decision:
        """Decide on the loan after a reading.

        Args:
            reading: newest reading.
            now_ms: time on a monotonic clock.

        Raises:
            InvalidArgument: `now_ms` is before that of the last decision.
        """
        if not (math.isfinite(now_ms) and now_ms >= self._decided_ms):
            raise InvalidArgument(
                f"now_ms must be at least {self._decided_ms}, the time of the last decision, "
                f"got {now_ms}"
            )
        before_bytes = self.lent_bytes
        self._decided_ms = now_ms
        has_lapsed = self.lent_bytes > 0 and now_ms >= self._ends_ms  # It was not renewed in time.
        if has_lapsed:
            self.lent_bytes = 0
        self._take(reading, now_ms)
        before_bytes = max(before_bytes, self.lent_bytes)
        self.lent_bytes = self._kept_bytes()
        why = self._why_shrunk() or self._why_not(now_ms)
        if why is None:
            grown_bytes = self._grown_bytes()
            if grown_bytes > self.lent_bytes:
                self.lent_bytes, self._grown_ms = grown_bytes, now_ms
            else:
                why = "there is no more to lend"
        if has_lapsed and self.lent_bytes:
            before_bytes = 0  # A loan that begins again is another loan.
        return self._decision(before_bytes, why or "serving has all it needs", now_ms)

    # ---- learning -------------------------------------------------------------------------------

    def _take(self, reading: Reading, now_ms: float) -> None:
        self._device, self._was_taken = reading.device, False
        self._blind = _blindness(reading, now_ms)
        if self._blind is not None or isinstance(reading, Unread):
            self._seen, self._pressure = None, None
            self._hold.lose_sight()
            return
        if self._executor_revocations is None and reading.lent_bytes:
            # A new broker takes over the loan that it finds.
            self.lent_bytes = self._device.whole_slabs(reading.lent_bytes)
            self._ends_ms = now_ms + self._ttl_min_ms
        self._was_taken = self._taken_back(reading)
        self._look(reading, now_ms)

    def _taken_back(self, seen: Observation) -> bool:
        """Return whether the executor revoked more of a loan than normal fluctuation explains.

        A revocation count that is lower than before means that the executor was restarted.
        """
        before, self._executor_revocations = self._executor_revocations, seen.revocations
        if before is None or seen.revocations <= before:
            return False
        if seen.revoked_share is not None and seen.revoked_share <= _EBB_SHARE:
            return False  # Fluctuation: serving has what it needs, and the loan is unchanged.
        if seen.lent_bytes is not None:
            left_bytes = self._device.whole_slabs(seen.lent_bytes)
            self.lent_bytes = min(self.lent_bytes, left_bytes)
        return True

    def _look(self, seen: Observation, now_ms: float) -> None:
        was_pressed = self._pressure is not None
        self._seen = seen
        self._remember_peak(now_ms, seen.used_bytes)
        self._pressure = pressure_of(seen, self.lent_bytes)
        if self._pressure is None and not self._was_taken:
            self._hold.rest(now_ms)
            return
        # A second reading under the same pressure belongs to the same revocation.
        costs_loan = self._was_taken or (self.lent_bytes > 0 and not was_pressed)
        self._hold.press(now_ms, is_revocation=costs_loan)

    def _remember_peak(self, now_ms: float, used_bytes: int) -> None:
        while self._peaks and self._peaks[-1][1] <= used_bytes:
            self._peaks.pop()
        self._peaks.append((now_ms, used_bytes))
        while self._peaks[0][0] < now_ms - PEAK_WINDOW_MS:
            self._peaks.popleft()

    # ---- deciding -------------------------------------------------------------------------------

    def _ceiling_bytes(self) -> int:
        """Return the lendable bytes, with room for serving to grow until the next reading."""
        if self._seen is None:
            return 0
        peak_bytes = self._peaks[0][1]
        left_bytes = self._device.kv_bytes - peak_bytes - self._device.reserve_bytes
        return min(self._device.whole_slabs(LEND_SHARE * left_bytes), free_bytes(self._seen))

    def _kept_bytes(self) -> int:
        """Return the bytes of the loan that remain, given the present pressure."""
        if self._pressure is None:
            return self.lent_bytes
        if self._pressure.severity is Severity.LATE:
            return 0
        share = _KEEP_SHARE if self._pressure.severity is Severity.NEAR else 1.0
        kept_bytes = min(share * self.lent_bytes, self._ceiling_bytes())
        return self._worth(self._device.whole_slabs(kept_bytes))

    def _why_shrunk(self) -> str | None:
        if self._pressure is not None:
            return self._pressure.why
        return "the device's executor revoked a loan" if self._was_taken else self._blind

    def _why_not(self, now_ms: float) -> str | None:
        """Return why the loan of a calm device may not begin or grow yet; None if it may."""
        check(self._seen is not None, f"{self._device.name} may grow without a reading")
        wait_ms = self._hold.wait_ms(now_ms)
        if wait_ms > 0:
            return f"calm must last {wait_ms / MS_PER_S:.0f} s more"
        if now_ms - self._grown_ms < GROW_EVERY_MS:
            return "the loan has just grown"
        return None

    def _grown_bytes(self) -> int:
        """Return the size of the loan after one growth; without room, the size now."""
        most_bytes = self._ceiling_bytes()
        step_bytes = max(_GROW_SHARE * most_bytes, self._loan_bytes_min)
        target_bytes = min(most_bytes, self.lent_bytes + step_bytes)
        return max(self.lent_bytes, self._worth(self._device.whole_slabs(target_bytes)))

    def _worth(self, size_bytes: int) -> int:
        return size_bytes if size_bytes >= self._loan_bytes_min else 0

    def _decision(self, before_bytes: int, why: str, now_ms: float) -> Decision:
        lend_bytes = self.lent_bytes
        move = _move_of(before_bytes, lend_bytes)
        is_kept_blindly = move is LoanChange.KEEP and self._blind is not None
        if lend_bytes and self._blind is None:
            self._ends_ms = now_ms + max(self._ttl_min_ms, self._hold.ttl_ms(now_ms))
        if lend_bytes and self._seen is not None:
            check(
                lend_bytes <= free_bytes(self._seen),
                f"{self._device.name} would lend memory that serving holds",
            )
        return Decision(
            device=self._device.name,
            move=move,
            lend_bytes=lend_bytes,
            ttl_ms=max(0.0, self._ends_ms - now_ms) if lend_bytes else 0.0,
            retry_after_ms=self._hold.wait_ms(now_ms),
            why=f"not renewed: {why}" if is_kept_blindly else why,
        )


class _Hold:
    """Decides when growth is safe again: a hold after pressure, longer after revocations.

    Before the first loan, too, there must be calm. Each revocation raises a level, and each level
    doubles the hold. The level falls by one for each `FORGIVE_MS` of calm after the hold. The hold
    itself does not count as calm, because otherwise a long hold would lower its own level.
    """

    def __init__(self) -> None:
        self._level = 0
        self._pressed_ms = -math.inf
        self._calm_ms: float | None = None  # start of the latest calm, without failed readings

    def press(self, now_ms: float, *, is_revocation: bool) -> None:
        """Record pressure; `is_revocation` if a loan shrank."""
        self._level = min(self._level_at(now_ms) + is_revocation, _LEVEL_MAX)
        self._pressed_ms = now_ms
        self._calm_ms = None

    def lose_sight(self) -> None:
        """Record a failed reading, which ends the calm."""
        self._calm_ms = None

    def rest(self, now_ms: float) -> None:
        """Record a calm reading."""
        if self._calm_ms is None:
            self._calm_ms = now_ms

    def wait_ms(self, now_ms: float) -> float:
        """Return the time until a loan may begin or grow; 0 if it may."""
        calm_ms = now_ms if self._calm_ms is None else self._calm_ms
        until_ms = max(calm_ms + SETTLE_MS, self._pressed_ms + self._hold_ms())
        return max(0.0, until_ms - now_ms)

    def ttl_ms(self, now_ms: float) -> float:
        """Return the life of a loan: shorter after more revocations."""
        return TTL_MAX_MS * 0.5 ** self._level_at(now_ms)

    def _level_at(self, now_ms: float) -> int:
        """Return the number of recent revocations that are not forgiven."""
        calm_ms = now_ms - self._pressed_ms - self._hold_ms()
        forgiven = int(calm_ms // FORGIVE_MS) if self._level and calm_ms > 0 else 0
        return max(0, self._level - forgiven)

    def _hold_ms(self) -> float:
        return min(HOLD_MAX_MS, HOLD_MIN_MS * 2.0**self._level)


def _blindness(reading: Reading, now_ms: float) -> str | None:
    if isinstance(reading, Unread):
        return reading.why
    age_ms = now_ms - reading.at_ms
    return f"the last reading is {age_ms / MS_PER_S:.0f} s old" if age_ms > STALE_AFTER_MS else None


def _move_of(before_bytes: int, after_bytes: int) -> LoanChange:
    """Return the kind of change between two sizes of a loan."""
    if after_bytes == before_bytes:
        return LoanChange.KEEP if after_bytes else LoanChange.REFUSE
    if after_bytes > before_bytes:
        return LoanChange.GROW if before_bytes else LoanChange.LEND
    return LoanChange.SHRINK if after_bytes else LoanChange.END
