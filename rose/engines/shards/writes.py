"""A loader's writes to parameters, in order, and the tensors that are not only copied."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rose.engines.shards.look import Look


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a loader into a parameter.

    Args:
        parameter: name of the parameter.
        held: view of the parameter's storage to which the loader wrote.
        names: tensors from whose elements the written values come; empty for a constant.
        operation: name of the writing operation.
        seen: if the written values are an unchanged copy, the copied view of the one tensor in
            `names`; None otherwise.
    """

    parameter: str
    held: Look
    names: frozenset[str]
    operation: str
    seen: Look | None = None


@dataclass(slots=True)
class Writes:
    """All writes of a loader so far.

    Args:
        computed: for each tensor that is not only copied, the reason why it counts as computed.
    """

    computed: dict[str, str] = field(default_factory=dict)
    _of: dict[str, list[Write]] = field(default_factory=dict)

    def add(self, write: Write) -> None:
        """Add the next write."""
        self._of.setdefault(write.parameter, []).append(write)

    def compute(self, names: Iterable[str], reason: str) -> None:
        """Mark tensors as computed; the first reason stays."""
        for name in names:
            self.computed.setdefault(name, reason)

    def names_in(self, parameter: str, held: Look) -> frozenset[str]:
        """Return the tensors whose elements may be in a part of a parameter."""
        row = self._of.get(parameter, ())
        return frozenset().union(*(one.names for one in row if one.held.may_meet(held)))

    def all(self) -> Iterator[Write]:
        """Yield every write, parameter by parameter, in order."""
        for row in self._of.values():
            yield from row

    def settle(self) -> None:
        """Mark copied tensors as computed if a write that is no copy also changes their place.

        A copy is lost if such a write comes later. If the write comes earlier, from a computed
        tensor, loading that tensor again would overwrite the copy. An earlier constant does no
        harm. Each newly marked tensor may affect others, so the search repeats.
        """
        while True:
            found = {name: why for row in self._of.values() for name, why in self._spoiled(row)}
            if not found:
                return
            self.computed.update(found)

    def _spoiled(self, row: list[Write]) -> Iterator[tuple[str, str]]:
        others = [(at, one) for at, one in enumerate(row) if not self._is_copy(one)]
        if not others:
            return
        for at, write in enumerate(row):
            if not self._is_copy(write):
                continue
            for when, other in others:
                if (when > at or other.names) and other.held.may_meet(write.held):
                    why = f"{other.operation} changes {write.parameter} where the copy is"
                    yield from ((name, why) for name in write.names)

    def _is_copy(self, write: Write) -> bool:
        """Return True if `write` copies a tensor that does not count as computed."""
        return write.seen is not None and write.names.isdisjoint(self.computed)
