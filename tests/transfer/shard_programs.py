"""The processes of the run: `trainer`, `relay` and `rank`, each told what it is by arguments.

Each prints one line when it is up, and ends when its standard input does. A trainer publishes a
version for each line on its standard input, and says its number and digest. A rank says, whenever
asked, what it is in use at, and the digest of its weights as they are in memory.
"""

import secrets
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from rose.transfer.manifest import Signing
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.disk import HostDisk
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.receiving.reader_source import ReaderSource
from rose.transfer.relaying.follower import Follower
from rose.transfer.relaying.relay import Relay
from rose.transfer.replicas.host import ReplicaHost
from rose.transfer.replicas.link import ReplicaLink, ReplicaServer
from rose.transfer.replicas.messages import RankPhase
from rose.transfer.version import Version
from rose.transfer.views import ShardViews
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve
from tests.transfer.rank_rig import RankRig
from tests.transfer.shards import model, places, plan, shard, source_places

KEY = b"a key that the relay does not have"
TOKEN = "42" * 32


def say(*words: object) -> None:
    print(*words, flush=True)


def train(address: str, incarnation: str, first: str) -> None:
    """Go on from the weights of version `first` as a new incarnation."""
    cut = plan().cut
    log = VersionLog()
    n = int(first)
    shadow = ShardViews(source_places(plan(), model(n)))
    opening = Version("run", int(incarnation), n)
    publisher = Publisher([Contributor(shadow, cut)], cut, opening, log, signing=Signing(KEY))
    with serve(log, address, token=TOKEN):
        say("up")
        for _ in sys.stdin:
            n += 1
            manifest = publisher.publish(ShardViews(source_places(plan(), model(n))))
            say(n, *manifest.digest)


def relay(address: str, upstream: str, folder: str) -> None:
    with ExitStack() as stack:
        source = RemoteSource(upstream, TOKEN)
        reader = RemoteSource(upstream, TOKEN)
        store = DiskStore(HostDisk(Path(folder)), bytes_max=1 << 26)
        made = Relay(source, store=store, reader=ReaderSource(reader))
        stack.enter_context(serve(made, address, token=TOKEN))
        stack.enter_context(Follower(made, backoff_max_s=0.2, wait_s=0.1))
        stack.callback(source.close)
        stack.callback(reader.close)
        say("up")
        for _ in sys.stdin:
            pass


def rank(  # noqa: PLR0917
    upstream: str, replica: str, number: str, ranks: str, start: str, link: str
) -> None:
    """Run a rank from the weights of version `start`; rank 0 coordinates at `link`."""
    whole = plan()
    memory = shard(model(int(start)), int(number), int(ranks))
    incarnation = secrets.randbits(62)
    with ExitStack() as stack:
        if number == "0":
            host = stack.enter_context(ReplicaHost(int(ranks), secrets.randbits(62), apply_s=4.0))
            stack.enter_context(ReplicaServer(host, link, bytes.fromhex(TOKEN)))
        source = RemoteSource(upstream, TOKEN, timeout_s=2.0)
        rig = stack.enter_context(
            RankRig(
                source,
                whole.cut,
                places(whole, replica, int(number), memory),
                rank=int(number),
                incarnation=incarnation,
                signing=Signing(KEY),
            )
        )
        stack.callback(source.close)
        stack.enter_context(
            ReplicaLink(
                rig.member,
                lambda: link,
                bytes.fromhex(TOKEN),
                rank=int(number),
                incarnation=incarnation,
            )
        )
        say("up")
        for _ in sys.stdin:
            is_used = rig.member.phase is RankPhase.IN_USE and not rig.pauses
            held = rig.member.held if is_used else None
            # All of what is said of it is read from memory, and is of the version only if nothing
            # moved meanwhile.
            tiles = [(tile, *rig.views.digest(tile)) for tile in rig.views.tiles]
            is_same = held is not None and held == rig.member.held
            say("-" if not is_same or held is None else held.n, *sum(tiles, ()))


if __name__ == "__main__":
    threading.current_thread().name = sys.argv[1]
    {"train": train, "relay": relay, "rank": rank}[sys.argv[1]](*sys.argv[2:])
