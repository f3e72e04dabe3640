"""Fresh weights as deltas: packed, published, staged, committed, and, if need be, undone.

Versions, tiles, digests and manifests live here. Publishers, relays and receivers share them, and
have one subpackage each. `rose.transfer.wire` talks to other processes and needs the extra `wire`.
"""

from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_apply, delta_pack
from rose.transfer.manifest import Subscription, Version
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.signing import Signing
from rose.transfer.tiles import ShardViews, Tiles

__all__ = [
    "Commit",
    "Contributor",
    "Delta",
    "Publisher",
    "Receiver",
    "ShardViews",
    "Signing",
    "Subscription",
    "Tiles",
    "Version",
    "VersionLog",
    "delta_apply",
    "delta_pack",
]
