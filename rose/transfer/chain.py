"""Which version a receiver takes next: a pure choice from what it holds and what there is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from rose.transfer.digests import Digest
from rose.transfer.manifest import Manifest
from rose.transfer.tiles import Tiles
from rose.transfer.version import Version


@dataclass(frozen=True, slots=True)
class Held:
    """What a receiver's weights are.

    Args:
        version: their name; one that no publisher gave until the first commit.
        digest: of their bits.
    """

    version: Version
    digest: Digest


class Choice(Enum):
    """What to do when there is no version to take."""

    WAIT = "nothing is newer"
    SEED = "what there is cannot be reached by deltas"


NextVersion: TypeAlias = Manifest | Choice


def next_version(held: Held, offered: Sequence[Manifest], tiles: Tiles) -> NextVersion:
    """Choose what to stage next.

    In the chain of its own incarnation a receiver goes from link to link. It enters the chain of
    another one by its digest: it may hold the bits of a version already, or of the base of one.

    Args:
        held: what the receiver has.
        offered: versions in any order, some perhaps twice, of dead incarnations, or of other rows.
        tiles: of the receiver.
    """
    known = fitting(held, offered, tiles)
    if not known:
        return Choice.WAIT
    newest = known[-1].version
    if _is_same_chain(held.version, newest):
        return _next_link(held, known)
    return _entrance(held, known)


def next_seed(
    held: Held, offered: Sequence[Manifest], tiles: Tiles, *, at_least_n: int
) -> NextVersion:
    """Choose the newest seed of what is offered; bits that are there already are not fetched."""
    known = fitting(held, offered, tiles)
    seeds = [one for one in known if one.is_seed and one.version.n >= at_least_n]
    if not seeds:
        return Choice.WAIT
    return as_held(seeds[-1], held) if seeds[-1].digest == held.digest else seeds[-1]


def fitting(held: Held, offered: Sequence[Manifest], tiles: Tiles) -> list[Manifest]:
    """Return the versions for these tiles of the latest incarnation, ascending, each once.

    A run that is not the receiver's is another chain like another incarnation; but within the run,
    an incarnation before the one that is held is dead and says nothing.
    """
    alive = [
        one
        for one in offered
        if one.tiles == tiles
        and not (
            one.version.run == held.version.run
            and one.version.incarnation < held.version.incarnation
        )
    ]
    if not alive:
        return []
    latest = max(one.version.incarnation for one in alive)
    known = {
        (one.version.n, not one.is_seed): one for one in alive if one.version.incarnation == latest
    }
    return [known[key] for key in sorted(known)]


def _is_same_chain(one: Version, other: Version) -> bool:
    return (one.run, one.incarnation) == (other.run, other.incarnation)


def _next_link(held: Held, known: Sequence[Manifest]) -> NextVersion:
    newer = [one for one in known if one.version.n > held.version.n]
    if not newer:
        return Choice.WAIT
    for one in newer:
        if one.base == held.version and one.base_digest == held.digest:
            return one
    return Choice.SEED


def _entrance(held: Held, known: Sequence[Manifest]) -> NextVersion:
    for one in reversed(known):
        if one.digest == held.digest:
            return as_held(one, held)
        if not one.is_seed and one.base_digest == held.digest:
            return one
    return Choice.SEED


def as_held(manifest: Manifest, held: Held) -> Manifest:
    """Return a version whose bits are there already as one that changes nothing but the name."""
    return replace(manifest, base=held.version, base_digest=held.digest, chunks=())
