"""What a loader did to the parameters, in order, and which of it can be done in place later."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rose.engines.shards.look import Look


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a loader into a parameter.

    Args:
        parameter: the name of its storage.
        held: where.
        names: of the tensors whose elements, or what was made of them, were written; none for
            a constant.
        operation: that wrote.
        seen: which elements of the one tensor, if they were copied as they are; None otherwise.
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
        computed: tensors that were not only copied, with the reason.
    """

    computed: dict[str, str] = field(default_factory=dict)
    _of: dict[str, list[Write]] = field(default_factory=dict)

    def add(self, write: Write) -> None:
        """Take the next write."""
        self._of.setdefault(write.parameter, []).append(write)

    def compute(self, names: Iterable[str], reason: str) -> None:
        """Say why some tensors are not only copied; the first reason stays."""
        for name in names:
            self.computed.setdefault(name, reason)

    def names_in(self, parameter: str, held: Look) -> frozenset[str]:
        """Return whose elements may be in a part of a parameter."""
        row = self._of.get(parameter, ())
        return frozenset().union(*(one.names for one in row if one.held.may_meet(held)))

    def all(self) -> Iterator[Write]:
        """Return every write, parameter by parameter, in order."""
        for row in self._of.values():
            yield from row

    def settle(self) -> None:
        """Find tensors that were copied and that something else was done to in the same place.

        A copy is no longer what is there if it was changed later; and a computed tensor that is
        loaded again would overwrite the copies that came after it. Each one found may spoil others.
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
                    why = f"{other.operation} changes {write.parameter} where it was copied to"
                    yield from ((name, why) for name in write.names)

    def _is_copy(self, write: Write) -> bool:
        """Whether it is a copy of a tensor that is only copied."""
        return write.seen is not None and write.names.isdisjoint(self.computed)
