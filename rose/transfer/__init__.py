"""Fresh weights as deltas: packed, published, staged, committed, and, if need be, undone.

What every side knows (versions, tiles, digests, manifests) is here; then a room for each side. What
crosses to other processes is in `rose.transfer.wire`, which needs the extra `wire`.
"""

from rose.transfer.codec.class_rule import class_rule
from rose.transfer.codec.delta import ClassRule, Delta
from rose.transfer.codec.operations import (
    delta_apply,
    delta_check,
    delta_merge,
    delta_pack,
    digest,
    topk_pack,
    topk_unpack,
)
from rose.transfer.codec.quantise import Quantised, dequantise, quantise, quantise_pack
from rose.transfer.codec.strat import link_pack, strat_pack, strat_unpack
from rose.transfer.codec.tied import Distinct, distinct
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import Chunk, Manifest, Signing, StagedVersion, UpdateKey
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.disk import HostDisk
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.publishing.retention import Limits
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.publishing.selection import Drift, Selection
from rose.transfer.publishing.spans import SpanMaker
from rose.transfer.publishing.statistics import TransferStatistics, VersionStatistics
from rose.transfer.publishing.store import MemoryStore, Store
from rose.transfer.receiving.commit import Commit, CommitState, Outcome, Target
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.receiving.receiver_state import ReceiverState
from rose.transfer.receiving.source import InProcessSource, Source
from rose.transfer.receiving.staging import ReceiverStatistics
from rose.transfer.receiving.staleness import Lag, Staleness
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.relaying.follower import Follower
from rose.transfer.relaying.relay import Relay, RelayStatistics
from rose.transfer.relaying.relay_set import RelaySet
from rose.transfer.relaying.upstream import Upstream
from rose.transfer.row import Row
from rose.transfer.tiles import Tile, Tiles
from rose.transfer.version import Version
from rose.transfer.views import ShardViews, TileViews

__all__ = [
    "Chunk",
    "ClassRule",
    "Commit",
    "CommitState",
    "Contributor",
    "Delta",
    "Digest",
    "DiskStore",
    "Distinct",
    "Drift",
    "Follower",
    "HostDisk",
    "InProcessSource",
    "Lag",
    "Limits",
    "Manifest",
    "MemoryStore",
    "Outcome",
    "Publisher",
    "Quantised",
    "Receiver",
    "ReceiverState",
    "ReceiverStatistics",
    "Relay",
    "RelaySet",
    "RelayStatistics",
    "Row",
    "RowPublisher",
    "Selection",
    "ShardViews",
    "Signing",
    "Source",
    "SpanMaker",
    "StagedVersion",
    "Staleness",
    "Store",
    "Subscription",
    "Target",
    "Tile",
    "TileDigests",
    "TileViews",
    "Tiles",
    "TransferStatistics",
    "UpdateKey",
    "Upstream",
    "Version",
    "VersionLog",
    "VersionStatistics",
    "class_rule",
    "delta_apply",
    "delta_check",
    "delta_merge",
    "delta_pack",
    "dequantise",
    "digest",
    "distinct",
    "link_pack",
    "quantise",
    "quantise_pack",
    "strat_pack",
    "strat_unpack",
    "topk_pack",
    "topk_unpack",
]
