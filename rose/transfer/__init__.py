"""Fresh weights as deltas: packed, published, staged, committed, and, if need be, undone.

What crosses to other processes is in `rose.transfer.server` and `rose.transfer.remote`; they need
the extra `wire`.
"""

from rose.transfer.application import Application
from rose.transfer.class_rule import class_rule
from rose.transfer.codec import (
    delta_apply,
    delta_check,
    delta_merge,
    delta_pack,
    delta_undo,
    digest,
    topk_pack,
    topk_unpack,
)
from rose.transfer.commit import Commit, CommitState, Outcome, Target
from rose.transfer.contributor import Contributor
from rose.transfer.delta import ClassRule, Delta
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.disk import HostDisk
from rose.transfer.disk_store import DiskStore
from rose.transfer.follower import Follower
from rose.transfer.log import VersionLog
from rose.transfer.manifest import Chunk, Manifest, Signing, StagedVersion, UpdateKey
from rose.transfer.publisher import Publisher
from rose.transfer.quantise import Quantised, dequantise, quantise, quantise_pack
from rose.transfer.receiver import Receiver
from rose.transfer.receiver_state import ReceiverState
from rose.transfer.relay import Relay, RelayStatistics
from rose.transfer.relay_set import RelaySet
from rose.transfer.retention import Limits
from rose.transfer.row import Row
from rose.transfer.row_publisher import RowPublisher
from rose.transfer.selection import Drift, Selection
from rose.transfer.source import InProcessSource, Source
from rose.transfer.spans import SpanMaker
from rose.transfer.staging import ReceiverStatistics
from rose.transfer.staleness import Crossing, Lag, Staleness
from rose.transfer.statistics import TransferStatistics, VersionStatistics
from rose.transfer.store import MemoryStore, Store
from rose.transfer.strat import link_pack, strat_pack, strat_unpack
from rose.transfer.subscription import Subscription
from rose.transfer.tied import Distinct, distinct
from rose.transfer.tiles import Tile, Tiles
from rose.transfer.upstream import Upstream
from rose.transfer.version import Version
from rose.transfer.views import ShardViews, TileViews

__all__ = [
    "Application",
    "Chunk",
    "ClassRule",
    "Commit",
    "CommitState",
    "Contributor",
    "Crossing",
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
    "delta_undo",
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
