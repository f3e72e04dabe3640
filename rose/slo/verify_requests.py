"""Serving's requests by the records of a log: waiting, running, and the next deadline."""

from typing import Final

NO_SLOT: Final = (1 << 32) - 1
_SLOTS_MAX: Final = 1 << 20
# Entries of `_tokens` allowed beyond twice the number needed at the last cleanup.
_TOKENS_KEPT: Final = 4096


class LiveRequests:
    """The live requests by slot.

    Sets of slots are integers with one bit per slot, so a batch of any size is one operation.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.has_prefilled = False  # whether any request arrived prefilled
        self._live = 0
        self._waiting = 0
        self._slotless = 0  # all of them wait until they finish
        self._tokens: list[tuple[int, int]] = []  # (time_ns, slots), in the order of time
        self._tokens_max = _TOKENS_KEPT
        self._balance_ms = 0.0
        self._promised_ms = 0.0
        self._began_ms: dict[int, float] = {}  # balance at each running request's first token

    @property
    def is_any_waiting(self) -> bool:
        """Whether a request has no token yet, or no slot."""
        return self._waiting != 0 or self._slotless > 0

    def arrived(self, slot: int, *, prefilled: int, time_ns: int) -> list[str]:
        """Add a request; return violations, with which it is not added."""
        if prefilled not in (0, 1):
            return [f"prefilled is {prefilled}, not 0 or 1"]
        self.has_prefilled = self.has_prefilled or prefilled == 1
        if slot == NO_SLOT:
            self._slotless += 1
            self.pending += 1
            return []
        if slot >= _SLOTS_MAX:
            return [f"slot {slot} is beyond the {_SLOTS_MAX} there can be"]
        bit = 1 << slot
        if self._live & bit:
            return [f"slot {slot} was given to a second request"]
        self.pending += 1
        self._live |= bit
        if prefilled:
            self._tokens.append((time_ns, bit))
            self._began_ms[slot] = self._balance_ms
        else:
            self._waiting |= bit
        return []

    def finished(self, slot: int) -> list[str]:
        """Remove a request; its slot is free again."""
        if slot == NO_SLOT and self._slotless > 0:
            self._slotless -= 1
        elif slot < _SLOTS_MAX and self._live >> slot & 1:
            self._live &= ~(1 << slot)
            self._waiting &= ~(1 << slot)
            self._began_ms.pop(slot, None)
        else:
            return [f"a request finished that had not arrived, in slot {slot}"]
        self.pending -= 1
        return []

    def got_tokens(self, first_slot: int, count: int, bitmap: bytes, *, time_ns: int) -> list[str]:
        """Record one token for each request of a bitmap; tokens of no request are violations."""
        bits = int.from_bytes(bitmap, "little")
        wrong = []
        if bits.bit_count() != count:
            wrong.append(f"count is {count}, the bitmap has {bits.bit_count()}")
        if bits == 0:
            return wrong
        if first_slot + bits.bit_length() > _SLOTS_MAX:
            return [*wrong, f"names slots beyond the {_SLOTS_MAX} there can be"]
        slots = bits << first_slot
        strays = slots & ~self._live
        if strays:
            first = (strays & -strays).bit_length() - 1
            wrong.append(f"{strays.bit_count()} tokens of no request, the first in slot {first}")
            slots &= self._live
        firsts = self._waiting & slots
        while firsts:
            self._began_ms[(firsts & -firsts).bit_length() - 1] = self._balance_ms
            firsts &= firsts - 1
        self._waiting &= ~slots
        self._tokens.append((time_ns, slots))
        if len(self._tokens) > self._tokens_max:
            self.oldest_token_ns()
            self._tokens_max = _TOKENS_KEPT + 2 * len(self._tokens)
        return wrong

    def stepped(self, *, earned_ms: float, paid_ms: float) -> None:
        """Count what a step earned for rollouts, and what rollouts cost it."""
        self._balance_ms += earned_ms - paid_ms
        self._promised_ms = 0.0

    def promised(self, delay_ms: float) -> None:
        """Count the possible cost of a quantum in mode slack to the next step."""
        self._promised_ms += delay_ms

    def budget_ms(self) -> float:
        """Return the delay that rollouts may still cause each running request; 0 without any."""
        if not self._began_ms:
            return 0.0
        return self._balance_ms - max(self._began_ms.values()) - self._promised_ms

    def oldest_token_ns(self) -> int | None:
        """Return the time of the last token of the running request that waits longest for one.

        Only entries that hold some request's last token are kept, so the next call visits at most
        the running requests and the tokens since.
        """
        missing = self._live & ~self._waiting
        kept = []
        while missing and self._tokens:
            time_ns, slots = self._tokens.pop()
            last = slots & missing
            if last:
                kept.append((time_ns, last))
                missing &= ~last
        self._tokens = kept[::-1]
        return kept[-1][0] if kept else None
