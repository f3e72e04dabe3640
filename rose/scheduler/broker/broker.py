"""The broker: which serving devices to borrow, how much of each, for how long, and when more."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rose.errors import InvalidArgument, check
from rose.scheduler.broker.decision import Decision, Move, move_of
from rose.scheduler.broker.hazard import Hazard
from rose.scheduler.broker.history import DeviceHistory
from rose.scheduler.broker.observation import Reading
from rose.scheduler.broker.owners import MINUTES_PER_DAY, OwnerRules, by_owner
from rose.scheduler.broker.pressure import free_bytes
from rose.scheduler.broker.settings import BrokerSettings
from rose.units import MS_PER_S


class Broker:
    """Decides what to borrow. It has no thread, clock or randomness: equal calls, equal answers.

    It is not on serving's path. The executor on the device takes back what serving needs, at once
    and without asking; the broker reads of it and, where it is more than the ebb and flow of a
    loan, waits longer before it lends there again.

    What always holds:
    1. A loan that begins, grows or stays after a fit reading fits beside what serving's requests
       hold and its reserve.
    2. A reading under pressure makes a loan smaller; nothing begins or grows before its hold ends.
    3. Without a fit reading nothing begins, grows or is renewed.
    4. An owner's cap holds from the decision after it was set; one who is out lends nothing.
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, owners: Iterable[OwnerRules] = ()
    ) -> None:
        """Start without loans.

        Raises:
            InvalidArgument: an owner has two sets of rules.
        """
        self._settings = settings or BrokerSettings()
        self._owners = by_owner(owners)
        self._histories: dict[str, DeviceHistory] = {}
        self._fleet = Hazard(
            weight_s=self._settings.hazard_prior_s, memory_s=self._settings.hazard_window_s
        )
        self._decided_ms = -math.inf

    def set_owners(self, owners: Iterable[OwnerRules]) -> None:
        """Replace what owners allow; the next decisions keep to it.

        Raises:
            InvalidArgument: an owner has two sets of rules.
        """
        self._owners = by_owner(owners)

    @property
    def lent_bytes(self) -> int:
        """What is on loan over all devices."""
        return sum(history.lent_bytes for history in self._histories.values())

    def decide(
        self,
        readings: Sequence[Reading],
        now_ms: float,
        *,
        day_minute: int = 0,
        wanted_bytes: int | None = None,
    ) -> list[Decision]:
        """Say what becomes of each device's loan; their order does not matter.

        Args:
            readings: the newest of each device. One that is left out is neither lent nor renewed.
            now_ms: on a clock that never goes back.
            day_minute: minute of the day, for the caps of owners.
            wanted_bytes: that rollouts can use over all devices; None for all there is.

        Returns:
            One decision for each reading, in the order of the devices' names.

        Raises:
            InvalidArgument: time goes back, or a device has two readings.
        """
        self._check(readings, now_ms, day_minute)
        before = {name: history.lent_bytes for name, history in self._histories.items()}
        self._pass_time(now_ms)
        before = self._take(readings, now_ms, before)
        reasons = {name: self._give_back(self._histories[name], day_minute) for name in before}
        self._give_unwanted(before, reasons, wanted_bytes)
        self._grow(reasons, now_ms, day_minute=day_minute, wanted_bytes=wanted_bytes)
        return [
            self._decision(self._histories[name], before[name], reasons[name] or "", now_ms)
            for name in before
        ]

    def _take(
        self, readings: Sequence[Reading], now_ms: float, lent_bytes: dict[str, int]
    ) -> dict[str, int]:
        """Learn from the readings; return what was on loan on each of their devices."""
        before: dict[str, int] = {}
        for reading in sorted(readings, key=lambda one: one.device.name):
            name = reading.device.name
            history = self._history(reading)
            if history.take(reading, now_ms):
                self._fleet.revoked()
            before[name] = max(lent_bytes.get(name, 0), history.lent_bytes)
        return before

    def _check(self, readings: Sequence[Reading], now_ms: float, day_minute: int) -> None:
        if not (math.isfinite(now_ms) and now_ms >= self._decided_ms):
            raise InvalidArgument(f"now is {now_ms} ms, after a decision at {self._decided_ms} ms")
        if not 0 <= day_minute < MINUTES_PER_DAY:
            raise InvalidArgument(f"{day_minute} is no minute of a day")
        names = [reading.device.name for reading in readings]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument(f"device {twice} has two readings; give the newest")

    def _pass_time(self, now_ms: float) -> None:
        elapsed_s = (now_ms - self._decided_ms) / MS_PER_S
        since_ms, self._decided_ms = self._decided_ms, now_ms
        if not math.isfinite(elapsed_s):
            return
        lent_s = 0.0
        for history in self._histories.values():
            until_ms = min(now_ms, history.ends_ms) if history.lent_bytes else since_ms
            own_s = max(0.0, until_ms - since_ms) / MS_PER_S
            history.hazard.pass_time(elapsed_s, lent_s=own_s)
            history.expire(now_ms)
            lent_s += own_s
        self._fleet.pass_time(elapsed_s, lent_s=lent_s)
        oldest_ms = now_ms - self._settings.hazard_window_s * MS_PER_S
        for name in [name for name, one in self._histories.items() if one.read_ms < oldest_ms]:
            del self._histories[name]

    def _history(self, reading: Reading) -> DeviceHistory:
        name = reading.device.name
        if name not in self._histories:
            self._histories[name] = DeviceHistory(reading.device, self._settings)
        return self._histories[name]

    def _allowed_bytes(self, history: DeviceHistory, day_minute: int) -> int:
        """Return what the owner allows of the device."""
        device = history.device
        rules = self._owners.get(device.owner)
        share = 1.0 if rules is None else rules.share_at(day_minute)
        return device.whole_slabs(share * device.kv_bytes)

    def _give_back(self, history: DeviceHistory, day_minute: int) -> str | None:
        """Make the loan as small as serving and its owner want it; None where it may also grow."""
        history.lent_bytes = history.kept_bytes()
        allowed_bytes = self._allowed_bytes(history, day_minute)
        if history.lent_bytes > allowed_bytes or allowed_bytes == 0:
            history.lent_bytes = self._worth(min(history.lent_bytes, allowed_bytes))
            return f"{history.device.owner} lends no more than that now"
        if history.pressure is not None:
            return history.pressure.why
        return "its executor took a loan back" if history.was_taken else history.blind

    def _give_unwanted(
        self, before: dict[str, int], reasons: dict[str, str | None], wanted_bytes: int | None
    ) -> None:
        """Give back what rollouts have no use for, whole loans of the fullest devices first."""
        if wanted_bytes is None:
            return
        surplus_bytes = self.lent_bytes - wanted_bytes
        fullest = sorted(before, key=lambda name: (-self._histories[name].recent_share, name))
        for name in fullest:
            history = self._histories[name]
            if 0 < history.lent_bytes <= surplus_bytes:
                surplus_bytes -= history.lent_bytes
                history.lent_bytes = 0
                reasons[name] = "rollouts have no use for it"

    def _grow(
        self,
        reasons: dict[str, str | None],
        now_ms: float,
        *,
        day_minute: int,
        wanted_bytes: int | None,
    ) -> None:
        """Let loans begin and grow: the domain that lends least first, then the emptiest device."""
        room_bytes = math.inf if wanted_bytes is None else wanted_bytes - self.lent_bytes
        domains = self._lent_by_domain()
        waiting = []
        for name, reason in reasons.items():
            if reason is None:
                reasons[name] = self._why_not(self._histories[name], now_ms)
                if reasons[name] is None:
                    waiting.append(self._histories[name])
        while waiting:
            history = min(waiting, key=lambda one: _rank(one, domains))
            waiting.remove(history)
            grown_bytes = self._grown(history, room_bytes, day_minute)
            added_bytes = grown_bytes - history.lent_bytes
            if added_bytes <= 0:
                reasons[history.device.name] = "there is no more to lend, or nobody wants it"
                continue
            room_bytes -= added_bytes
            domains[history.device.domain] += added_bytes
            history.lent_bytes, history.grown_ms = grown_bytes, now_ms

    def _why_not(self, history: DeviceHistory, now_ms: float) -> str | None:
        """Return why a calm device's loan does not begin or grow yet, if it does not."""
        settings, seen = self._settings, history.seen
        check(seen is not None, f"{history.device.name} may grow without a reading")
        wait_ms = history.hold.wait_ms(now_ms)
        if wait_ms > 0:
            return f"calm must last {wait_ms / MS_PER_S:.0f} s more"
        if now_ms - history.grown_ms < settings.grow_every_ms:
            return "it has just grown"
        if history.lent_bytes:
            return None
        if self._life_s(history) < settings.life_worth_s:
            return f"it would be taken back within {self._life_s(history):.0f} s"
        if seen is not None and seen.sm_busy is not None and seen.sm_busy > settings.sm_busy_max:
            return f"it computes {seen.sm_busy:.0%} of the time"
        return None

    def _grown(self, history: DeviceHistory, room_bytes: float, day_minute: int) -> int:
        """Return the size of the loan after one growth; what it was where there is no room."""
        settings, device = self._settings, history.device
        most_bytes = min(history.ceiling_bytes(), self._allowed_bytes(history, day_minute))
        step_bytes = max(settings.grow_share * most_bytes, settings.loan_bytes_min)
        step_bytes = max(min(step_bytes, room_bytes), 0)
        wished_bytes = device.whole_slabs(min(most_bytes, history.lent_bytes + step_bytes))
        return max(history.lent_bytes, self._worth(wished_bytes))

    def _worth(self, size_bytes: int) -> int:
        return size_bytes if size_bytes >= self._settings.loan_bytes_min else 0

    def _lent_by_domain(self) -> dict[str, int]:
        domains: dict[str, int] = {}
        for history in self._histories.values():
            domain = history.device.domain
            domains[domain] = domains.get(domain, 0) + history.lent_bytes
        return domains

    def _life_s(self, history: DeviceHistory) -> float:
        """Return how long a loan is expected to last; a new device is taken to be like the rest."""
        fleet_per_s = self._fleet.per_s(prior_per_s=self._settings.hazard_per_s)
        return 1 / history.hazard.per_s(prior_per_s=fleet_per_s)

    def _decision(
        self, history: DeviceHistory, before_bytes: int, why: str, now_ms: float
    ) -> Decision:
        if history.has_lapsed and history.lent_bytes:
            before_bytes = 0  # what begins again is another loan
        move, life_s = move_of(before_bytes, history.lent_bytes), self._life_s(history)
        if history.lent_bytes and history.blind is None:
            history.ends_ms = now_ms + self._settings.ttl_ms(life_s)
        if history.lent_bytes and history.seen is not None:
            check(
                history.lent_bytes <= free_bytes(history.seen),
                f"{history.device.name} would lend what serving has",
            )
        decision = Decision(
            device=history.device.name,
            move=move,
            lend_bytes=history.lent_bytes,
            ttl_ms=max(0.0, history.ends_ms - now_ms) if history.lent_bytes else 0.0,
            expected_life_s=life_s,
            retry_after_ms=history.hold.wait_ms(now_ms),
            why=why or "serving has all it needs",
        )
        if move is Move.KEEP and history.blind is not None:
            return replace(decision, why=f"not renewed: {why}")
        return decision


def _rank(history: DeviceHistory, domains: dict[str, int]) -> tuple[int, float, float, str]:
    """Return what is borrowed first: from whom least is lent, who is emptiest, who has most."""
    return (
        domains[history.device.domain],
        history.recent_share,
        -history.ceiling_bytes(),
        history.device.name,
    )
