"""The bits of every version that existed, kept apart from the tested programs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rose.transfer import Delta, Version, delta_apply
from rose.transfer.codec.strat import strat_unpack
from rose.transfer.manifest import StagedVersion
from tests.transfer.faults.shards import Bits


class Wrong(AssertionError):
    """Something that must always be true is not."""


def demand(condition: object, sentence: str) -> None:
    if not condition:
        raise Wrong(sentence)


class History:
    """The bits of all versions by name."""

    def __init__(self) -> None:
        self._bits: dict[Version, Bits] = {}
        self._numbers: set[int] = set()

    def add(self, version: Version, bits: Bits) -> None:
        demand(version.n not in self._numbers, f"{version}: its number was used before")
        self._numbers.add(version.n)
        self._bits[version] = {tile: array.copy() for tile, array in bits.items()}

    def __getitem__(self, version: Version) -> Bits:
        demand(version in self._bits, f"{version} was never published")
        return self._bits[version]

    def check_bits(self, who: str, version: Version, bits: Bits) -> None:
        """See that what is called a version is that, in every bit."""
        truth = self[version]
        wrong = [tile for tile in bits if not np.array_equal(bits[tile], truth[tile])]
        demand(not wrong, f"{who} is called {version}, and its tiles {wrong} are not")

    def check_staged(self, who: str, staged: StagedVersion, tiles: Sequence[int]) -> None:
        """See that deltas lead where they say, from where they say, and that none is missing."""
        manifest = staged.manifest
        after = self[manifest.version]
        if (
            manifest.base is not None
            and not staged.deltas
            and manifest.digest == (manifest.base_digest)
        ):
            return  # nothing but a name; what has it is compared once it is committed
        before = after if manifest.base is None else self[manifest.base]
        deltas = dict(staged.deltas)
        for tile in tiles:
            if tile in deltas:
                bits = _applied(before[tile], deltas[tile])
            elif tile in staged.whole:
                bits = staged.whole[tile]
            elif manifest.base is None:
                continue  # it has those already, or so it was told
            else:
                bits = before[tile]
            demand(
                np.array_equal(bits, after[tile]),
                f"{who} staged {manifest.version}, and tile {tile} is not what was published",
            )


def _applied(base: Any, delta: Delta) -> Any:
    bits = base.copy()
    delta_apply(bits, delta if delta.rule is None else strat_unpack(delta, base))
    return bits
