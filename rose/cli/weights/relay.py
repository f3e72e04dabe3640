"""`rose relay`: fetches versions into a cluster once, and serves them to its receivers."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import click

from rose.cli.ranges import FiniteRange
from rose.cli.weights.options import (
    PATH,
    Events,
    WeightOptions,
    observed,
    until_signal,
    upstreams_option,
    weight_options,
)
from rose.cli.weights.publish import read_plan
from rose.cli.weights.sources import Addresses, open_addresses
from rose.clock import BootClock
from rose.errors import CorruptData, InvalidArgument, RoseError
from rose.transfer.manifest import Subscription
from rose.transfer.observing.timed import TimedSource
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.planned import Landing
from rose.transfer.publishing.disk import HostDisk
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.shelf import BYTES_MAX, VERSIONS_MAX, Limits
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay import Relay, follow
from rose.transfer.rounds import Rounds
from rose.transfer.wire.messages import (
    REPLY_BYTES_MAX,
    HelloReply,
    KeptHello,
    RelayPlace,
    decode,
    encode,
)
from rose.transfer.wire.peers import Peers
from rose.units import GIB
from rose.whole_file import read_input, write_whole

_POLL_S: Final = 0.5
_ASK_S: Final = 5.0
_HELLO: Final = "hello"
_UPDATES: Final = "updates"


class Introduction:
    """The upstream's description of its weights: passed on to receivers, and stored for outages.

    Only the main thread uses it.

    Args:
        directory: folder that stores the description; None stores nothing.
        landing: tiles that enter the cluster through this relay; () for all.
        address: address of this relay for the cluster's receivers.
        peers: announces the description to receivers.
        events: reports a damaged file.
    """

    def __init__(
        self,
        directory: Path | None,
        landing: Sequence[int],
        address: str,
        peers: Peers,
        events: Events,
    ) -> None:
        self._path = None if directory is None else directory / _HELLO
        self._landing, self._address, self._peers = landing, address, peers
        self._known: HelloReply | None = None
        if (kept := _kept_hello(directory, events)) is not None:
            self._announce(kept)

    @property
    def known(self) -> HelloReply | None:
        """The upstream's last reply."""
        return self._known

    def update(self, there: Addresses) -> None:
        """Request the description again; announce and store it if it has changed."""
        replies = [one for one in there.hellos() if one is not None and one.layout]
        if not replies:
            return
        known = self._known
        reply = replies[0]
        if known is None or (known.layout, known.tensors) != (reply.layout, reply.tensors):
            self._announce(reply)
            if self._path is not None:
                write_hello(self._path, reply)

    def _announce(self, reply: HelloReply) -> None:
        self._known = reply
        here = RelayPlace(self._address, tuple(self._landing))
        self._peers.announce(reply.layout, tensors=reply.tensors, relays=[here])


def read_hello(path: Path) -> HelloReply | None:
    """Read a file written by `write_hello`; return None if it does not exist.

    Raises:
        CorruptData: the file is damaged.
        InvalidArgument: the file cannot be read.
    """
    try:
        content = read_input(path, bytes_max=2 * REPLY_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
    try:
        kept = decode(KeptHello, content)
    except (CorruptData, InvalidArgument) as error:
        raise CorruptData(f"{path} is damaged: {error}") from None
    if hashlib.sha256(kept.hello).digest() != kept.sha256:
        raise CorruptData(f"{path} is damaged: its SHA-256 does not match")
    return decode(HelloReply, kept.hello)


def _kept_hello(directory: Path | None, events: Events) -> HelloReply | None:
    """Return the upstream's reply from an earlier run; report and ignore a damaged file."""
    try:
        return None if directory is None else read_hello(directory / _HELLO)
    except (CorruptData, InvalidArgument) as error:
        events.trouble(f"{error}; it is replaced when the upstream answers", about=_HELLO)
        return None


def write_hello(path: Path, reply: HelloReply) -> None:
    """Write the upstream's reply atomically.

    Raises:
        OSError: the file cannot be written.
    """
    hello = encode(reply)
    write_whole(path, encode(KeptHello(hello, hashlib.sha256(hello).digest())))


def subscription_of(plan: Plan, cluster: str, name: str) -> Subscription:
    """Return the tiles that enter a cluster through a relay.

    Raises:
        InvalidArgument: the plan has no such relay.
    """
    here = Landing(cluster, name)
    if not any(relay.name == name and relay.cluster == cluster for relay in plan.relays):
        raise InvalidArgument(
            f"the plan has no relay {name} in cluster {cluster or '(none given)'}; "
            f"check --name and --cluster"
        )
    landing = tuple(tile.index for tile in plan.tiles if here in tile.landings)
    return Subscription(plan.cut, landing)


@click.command()
@upstreams_option
@click.option("--listen", default="127.0.0.1:0", metavar="ADDRESS")
@click.option(
    "--directory", type=PATH, metavar="DIR", help="Folder that keeps versions across restarts."
)
@click.option(
    "--cluster", default="", show_default=False, help="Cluster in the plan that this relay serves."
)
@click.option("--name", default="relay", help="Name of the relay in the plan.")
@click.option(
    "--plan", "plan_path", type=PATH, metavar="FILE", help="Plan from `rose transfer plan --plan`."
)
@click.option("--keep", type=click.IntRange(min=1), default=VERSIONS_MAX)
@click.option("--keep-gib", type=FiniteRange(min=0.01), default=BYTES_MAX / GIB)
@weight_options
def relay(
    *,
    upstreams: tuple[str, ...],
    listen: str,
    directory: Path | None,
    cluster: str,
    name: str,
    plan_path: Path | None,
    keep: int,
    keep_gib: float,
    options: WeightOptions,
) -> None:
    """Follow upstream, and serve its versions to the receivers of a cluster.

    Tiles that the plan routes through this relay are fetched when they are published, other tiles
    on the first request; each chunk is fetched once. While upstream is unavailable, the relay
    serves the versions that it has. It needs no manifest key.
    """
    options.security.place(listen)
    planned = None if plan_path is None else subscription_of(read_plan(plan_path), cluster, name)
    peers = Peers(f"{cluster}/{name}" if cluster else name, "relay")
    limits = Limits(versions_max=keep, bytes_max=int(keep_gib * GIB))
    open_there = (upstreams, options.security, options.signing, options.events)
    with (
        until_signal(),
        open_addresses(*open_there) as there,
        open_addresses(*open_there) as reading,
        closing(_store(directory, limits.bytes_max)) as store,
    ):
        timeline = Timeline("relay")
        made = Relay(
            TimedSource(there.source(), timeline),
            store=store,
            landing=planned,
            reader=reading.source(),
            limits=limits,
        )
        known_n = made.newest_n
        with options.serve(made, listen, peers) as server, follow(made) as follower:
            options.events.report("serving", address=server.address, n=known_n)
            landing = () if planned is None else planned.wanted
            introduction = Introduction(directory, landing, server.address, peers, options.events)
            with observed(options, "relay", partial(_figures, made), timeline):
                _follow(made, follower, introduction, reading, options, newest_n=known_n)
    options.events.report("ended")


def _figures(made: Relay) -> Mapping[str, float]:
    stats = made.statistics()
    return {
        "sent_bytes": stats.sent_bytes,
        "crossing_bytes": stats.crossing_bytes,
        "received_bytes": stats.crossing_bytes,
        "chunks_retried": stats.rejected,
        "snapshots": stats.snapshots,
        "version": made.newest_n,
        "receivers": stats.receivers,
    }


def _store(directory: Path | None, bytes_max: int) -> MemoryStore:
    if directory is None:
        return MemoryStore()
    return DiskStore(HostDisk(directory / _UPDATES), bytes_max=bytes_max)


def _follow(
    made: Relay,
    follower: Rounds,
    introduction: Introduction,
    there: Addresses,
    options: WeightOptions,
    *,
    newest_n: int,
) -> None:
    """Print traffic and versions newer than `newest_n`; regularly update the introduction."""
    clock, looked, moved = BootClock(), 0.0, (0, 0)
    while True:
        if introduction.known is None or looked >= _ASK_S:
            try:
                introduction.update(there)
            except (OSError, RoseError) as error:
                options.events.trouble(str(error))
            looked = 0.0
        stats = made.statistics()
        if made.newest_n != newest_n:
            newest_n = made.newest_n
            options.events.report("following", n=newest_n)
        if moved != (moved := (stats.landed, stats.sent_bytes)):
            options.events.report(
                "landed",
                updates=stats.landed,
                crossing_bytes=stats.crossing_bytes,
                sent_bytes=stats.sent_bytes,
            )
        trouble = follower.failure or made.failure
        options.events.trouble(trouble, about="following")
        clock.sleep(_POLL_S)
        looked += _POLL_S
