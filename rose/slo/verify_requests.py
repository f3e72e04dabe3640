"""The state of serving's requests, replayed from the records of a log."""

from typing import Final

NO_SLOT: Final = (1 << 32) - 1
_SLOTS_MAX: Final = 1 << 20
# `_tokens` is cleaned up when it has this many entries more than twice its size after the previous
# cleanup.
_TOKENS_KEPT: Final = 4096


class LiveRequests:
    """The live requests by slot.

    Sets of slots are integers with one bit per slot, so a batch of any size is one operation.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.has_prefilled = False  # whether any request arrived prefilled
        self.longest_prompt = 0  # tokens of the longest prompt so far
        self._live = 0
        self._waiting = 0
        self._slotless = 0  # requests without a slot, which count as waiting until they finish
        self._tokens: list[tuple[int, int]] = []  # (time_ns, slots that got a token), ascending
        self._tokens_max = _TOKENS_KEPT
        self._balance_ms = 0.0
        self._promised_ms = 0.0
        self._began_ms: dict[int, float] = {}  # balance at each running request's first token

    @property
    def is_any_waiting(self) -> bool:
        """True if a request has no token yet, or no slot."""
        return self._waiting != 0 or self._slotless > 0

    def arrived(self, slot: int, *, prefilled: int, time_ns: int) -> list[str]:
        """Add a request. If the record breaks a rule, return the violations and add nothing."""
        if prefilled not in (0, 1):
            return [f"prefilled is {prefilled}, not 0 or 1"]
        self.has_prefilled = self.has_prefilled or prefilled == 1
        if slot == NO_SLOT:
            self._slotless += 1
            self.pending += 1
            return []
        if slot >= _SLOTS_MAX:
            return [f"slot {slot} must be below {_SLOTS_MAX}"]
        bit = 1 << slot
        if self._live & bit:
            return [f"slot {slot} was given to a second request while its first request was live"]
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
            return [f"slot {slot} has no request that could finish"]
        self.pending -= 1
        return []

    def got_tokens(self, first_slot: int, count: int, bitmap: bytes, *, time_ns: int) -> list[str]:
        """Record one token for each slot of a bitmap. A slot without a request is a violation."""
        bits = int.from_bytes(bitmap, "little")
        wrong = []
        if bits.bit_count() != count:
            wrong.append(f"count is {count}, but the bitmap has {bits.bit_count()} slots")
        if bits == 0:
            return wrong
        if first_slot + bits.bit_length() > _SLOTS_MAX:
            return [*wrong, f"slots must be below {_SLOTS_MAX}"]
        slots = bits << first_slot
        strays = slots & ~self._live
        if strays:
            first = (strays & -strays).bit_length() - 1
            wrong.append(
                f"{strays.bit_count()} tokens belong to no request, the first is in slot {first}"
            )
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
        """Add to the balance the delay that a step allows, minus the delay that rollouts caused."""
        self._balance_ms += earned_ms - paid_ms
        self._promised_ms = 0.0

    def promised(self, delay_ms: float) -> None:
        """Count the delay that a quantum in mode slack may cause before the next STEP."""
        self._promised_ms += delay_ms

    def budget_ms(self) -> float:
        """Return the ms by which rollouts may still delay each running request; 0 if none runs."""
        if not self._began_ms:
            return 0.0
        return self._balance_ms - max(self._began_ms.values()) - self._promised_ms

    def oldest_token_ns(self) -> int | None:
        """Compare the last tokens of all running requests; return the time of the oldest.

        Only entries with the last token of some request are kept, so the next call visits at most
        one entry per running request and the entries added since.

        Returns:
            Time in nanoseconds; None if no request runs.
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
