"""The processes of the run: `train`, `part`, `relay` and `rank`, each told what by arguments.

Each prints one line when it is up, and ends when its standard input does. A trainer publishes a
version for each line on its standard input, and says its number and digest, or that it could not.
A part is another rank of the trainer. A rank says, whenever asked, what it is in use at, and the
digest of its weights as they are in memory.
"""

import secrets
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from rose.errors import Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Signing
from rose.transfer.plan import Plan
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.disk import HostDisk
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.part_owner import PartOwner
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.receiving.reader_source import ReaderSource
from rose.transfer.relaying.follower import Follower
from rose.transfer.relaying.relay import Relay
from rose.transfer.replicas.host import ReplicaHost
from rose.transfer.replicas.link import ReplicaLink, ReplicaServer
from rose.transfer.replicas.messages import RankPhase
from rose.transfer.version import Version
from rose.transfer.views import ShardViews, TileViews
from rose.transfer.wire.part_server import PartServer
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.remote_part import RemotePart, WeightsElsewhere
from rose.transfer.wire.server import serve
from tests.transfer.rank_rig import RankRig
from tests.transfer.shards import model, places, plan, shard, source_places

KEY = b"a key that the relay does not have"
TOKEN = "42" * 32


def say(*words: object) -> None:
    print(*words, flush=True)


class Steps:
    """The weights of one rank of a trainer, by the number of the step."""

    def __init__(self, cut: Plan, rank: int) -> None:
        self._plan, self._rank = cut, rank

    def shadow(self, label: str) -> ShardViews:
        return self.fresh(label)

    def fresh(self, label: str) -> ShardViews:
        """Return weights in memory of their own: nobody keeps those of a step."""
        memory = shard(model(int(label)), self._rank, self._plan_ranks)
        return ShardViews(source_places(self._plan, memory, self._rank))

    @property
    def _plan_ranks(self) -> int:
        return len(self._plan.sources.shards.ranks)


class Trainer:
    """Rank 0 of a trainer, with the log, and with one more rank where there is an address of it."""

    def __init__(self, incarnation: int, n: int, part: str | None) -> None:
        self._plan = plan(1 if part is None else 2)
        self._mine = Steps(self._plan, 0)
        self._address = part
        self._part: RemotePart | None = None
        self.log = VersionLog()
        self.incarnation, self.n = incarnation - 1, n
        self._begin()

    def step(self) -> tuple[int, Digest] | None:
        """Publish the next step; a rank that was started again is where the next one begins."""
        self.n += 1
        try:
            if not self._publisher.is_sound:
                return self._begin()
            new: list[TileViews] = [self._mine.fresh(str(self.n))]
            new += [WeightsElsewhere(str(self.n))] * (len(self._owners) - 1)
            return self.n, self._publisher.publish(*new).digest
        except Unavailable:
            return None

    def _begin(self) -> tuple[int, Digest]:
        self.incarnation += 1
        label, cut = str(self.n), self._plan.cut
        owned = self._plan.contributes(0)
        self._owners: list[PartOwner] = [Contributor(self._mine.shadow(label), cut, owned)]
        if self._part is not None:
            self._part.open(label)
        elif self._address is not None:
            self._part = RemotePart(self._address, TOKEN, cut, label, timeout_s=20.0)
        self._owners += [] if self._part is None else [self._part]
        opening = Version("run", self.incarnation, self.n)
        signing = Signing(KEY)
        self._publisher = Publisher(self._owners, cut, opening, self.log, signing=signing)
        return self.n, self.log.manifests_after(self.n - 1)[0].digest


def train(address: str, incarnation: str, first: str, part: str | None = None) -> None:
    """Go on from the weights of version `first` as a new incarnation."""
    trainer = Trainer(int(incarnation), int(first), part)
    with serve(trainer.log, address, token=TOKEN):
        say("up")
        for _ in sys.stdin:
            made = trainer.step()
            say(*("-",) if made is None else (made[0], *made[1]))


def part(address: str) -> None:
    """Be the second of a trainer's two ranks."""
    whole = plan(2)
    with PartServer(whole.contributes(1), whole.cut, Steps(whole, 1), address, token=TOKEN):
        say("up")
        for _ in sys.stdin:
            pass


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
    upstream: str, replica: str, number: str, ranks: str, start: str, link: str, trainers: str = "1"
) -> None:
    """Run a rank from the weights of version `start`; rank 0 coordinates at `link`."""
    whole = plan(int(trainers))
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
    {"train": train, "part": part, "relay": relay, "rank": rank}[sys.argv[1]](*sys.argv[2:])
