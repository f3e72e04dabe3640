"""The choice of a receiver's next version: a pure function of its weights and the offers.

A *chain* is the versions of one incarnation, in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from rose.transfer.digests import Digest
from rose.transfer.manifest import Manifest, Subscription, Version


@dataclass(frozen=True, slots=True)
class Held:
    """A receiver's weights.

    Args:
        version: version of the weights; before the first commit, a name that was not published.
        digest: digest of the weights.
    """

    version: Version
    digest: Digest


class Choice(Enum):
    """The next action when no version can be staged."""

    WAIT = "nothing is newer"
    SNAPSHOT = "deltas reach none of the offered versions"


NextVersion: TypeAlias = Manifest | Choice


def next_version(
    held: Held, offered: Sequence[Manifest], subscription: Subscription
) -> NextVersion:
    """Choose the version to stage next.

    In the chain of its own incarnation, a receiver takes the longest update that starts at its
    version. A receiver enters another chain where the digest matches: at a version that has its
    bits, or by an update whose base has its bits.

    Args:
        held: current version and digest of the receiver.
        offered: manifests in any order; they may be repeated, of dead incarnations, or of other
            weights.
        subscription: tiles of the receiver.

    Returns:
        The manifest to stage; or, if there is none, what to do instead.
    """
    known = fitting(held, offered, subscription)
    if not known:
        return Choice.WAIT
    newest = known[-1].version
    if is_same_chain(held.version, newest):
        return _next_update(held, known, subscription)
    return _entrance(held, known, subscription)


def fitting(held: Held, offered: Sequence[Manifest], subscription: Subscription) -> list[Manifest]:
    """Return the offers that have the receiver's layout and the latest incarnation.

    The result is ascending and without repeats. Earlier incarnations of the receiver's own run are
    dead and ignored. Offers of another run are treated as offers of another incarnation.
    """
    alive = [
        one
        for one in offered
        if one.layout == subscription.tiles.layout
        and not (
            one.version.run == held.version.run
            and one.version.incarnation < held.version.incarnation
        )
    ]
    if not alive:
        return []
    latest = max(one.version.incarnation for one in alive)
    known = {one.key: one for one in alive if one.version.incarnation == latest}
    return [known[key] for key in sorted(known)]


def is_same_chain(one: Version, other: Version) -> bool:
    """Return True if two versions are of one run and one incarnation."""
    return (one.run, one.incarnation) == (other.run, other.incarnation)


def _next_update(held: Held, known: Sequence[Manifest], subscription: Subscription) -> NextVersion:
    newer = [one for one in known if one.version.n > held.version.n]
    if not newer:
        return Choice.WAIT
    for one in reversed(newer):
        is_here = subscription.base_digest_of(one) in (None, held.digest)
        if one.base == held.version and is_here:
            return one
    return Choice.SNAPSHOT


def _entrance(held: Held, known: Sequence[Manifest], subscription: Subscription) -> NextVersion:
    for one in reversed(known):
        if subscription.digest_of(one) == held.digest:
            return as_held(one, held)
        if not one.is_snapshot and subscription.base_digest_of(one) == held.digest:
            return one
    return Choice.SNAPSHOT


def as_held(manifest: Manifest, held: Held) -> Manifest:
    """Return a manifest without chunks, for a receiver that already has the version's bits.

    Committing that manifest only gives the weights the version's name.
    """
    return replace(
        manifest,
        base=held.version,
        digest=held.digest,
        base_digest=held.digest,
        chunks=(),
        tile_digests=(),
    )
