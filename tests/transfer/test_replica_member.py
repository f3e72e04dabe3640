"""Two ranks with receivers, engines and a connection: what the machine says, done to weights."""

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.clock import BootClock
from rose.errors import CorruptData, InvalidArgument, RoseError
from rose.transfer import Delta
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import StagedVersion
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.receiving.commit import Commit, CommitState, Outcome
from rose.transfer.receiving.source import InProcessSource
from rose.transfer.replicas.host import ReplicaHost
from rose.transfer.replicas.link import (
    FRAME_BYTES_MAX,
    ReplicaLink,
    ReplicaServer,
    _Connection,
    decode,
    encode,
)
from rose.transfer.replicas.member import ReplicaMember, ReplicaPause
from rose.transfer.replicas.messages import Order, OrderKind, RankPhase, Word
from rose.transfer.replicas.rank import ReplicaRank
from rose.transfer.replicas.replica import ReplicaState
from rose.transfer.version import Version
from rose.transfer.views import ShardViews
from tests.transfer.rank_rig import RankRig
from tests.transfer.shards import PAIR, model, places, plan, shard, source_places

PLAN = plan()
TOKEN = bytes(range(32))
LONG_S = 200.0


class Failing(ShardViews):
    """Views that fail to apply while they are told to."""

    def __init__(self, inner: ShardViews) -> None:
        super().__init__(inner._places)
        self.is_failing = False

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        if self.is_failing and not undo:
            raise CorruptData("planted")
        super().apply(tile, delta, undo=undo)


class Trainer:
    """A publisher of the small model in this process."""

    def __init__(self) -> None:
        self.n = 0
        self.log = VersionLog()
        shadow = ShardViews(source_places(PLAN, model(0)))
        self.publisher = Publisher(
            [Contributor(shadow, PLAN.cut)], PLAN.cut, Version("run", 1, 0), self.log
        )

    def publish(self) -> Version:
        self.n += 1
        fresh = ShardViews(source_places(PLAN, model(self.n)))
        return self.publisher.publish(fresh).version

    @property
    def version(self) -> Version:
        return Version("run", 1, self.n)


class Pair:
    """Both ranks and their coordinator, over a connection on loopback."""

    def __init__(self, stack: ExitStack, *, starts: tuple[int, int] = (0, 0)) -> None:
        self.stack = stack
        self.trainer = Trainer()
        self.memory = [shard(model(starts[rank]), rank, 2) for rank in range(2)]
        self.steps: list[set[Version]] = [set(), set()]
        self.start_host(1)
        self.ranks = [self.start_rank(rank, incarnation=rank + 1) for rank in range(2)]

    def start_host(self, number: int) -> None:
        self.host = self.stack.enter_context(ReplicaHost(2, number, apply_s=5.0))
        self.server = self.stack.enter_context(ReplicaServer(self.host, "127.0.0.1:0", TOKEN))

    def start_rank(self, rank: int, *, incarnation: int):
        rig = self.stack.enter_context(
            RankRig(
                InProcessSource(self.trainer.log),
                PLAN.cut,
                places(PLAN, PAIR, rank, self.memory[rank]),
                rank=rank,
                incarnation=incarnation,
                wrap=Failing,
                on_step=self.steps[rank].add,
            )
        )
        rig.link = self.stack.enter_context(
            ReplicaLink(
                rig.member, lambda: self.server.address, TOKEN, rank=rank, incarnation=incarnation
            )
        )
        return rig

    def wait(self, condition) -> None:
        self.ranks[0].wait(condition)

    def wait_in_use(self, version: Version) -> None:
        self.wait(lambda: self.host.version == version)
        self.wait(lambda: all(rig.member.phase is RankPhase.IN_USE for rig in self.ranks))

    def is_at(self, n: int) -> bool:
        return all(
            np.array_equal(bits, self.memory[rank][name])
            for rank in range(2)
            for name, bits in shard(model(n), rank, 2).items()
        )


@contextmanager
def pair_of(**knobs: object) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, **knobs)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with pair_of() as made:
        yield made


def test_both_ranks_follow_the_trainer(pair: Pair) -> None:
    pair.wait_in_use(pair.trainer.version)
    for _ in range(6):
        pair.wait_in_use(pair.trainer.publish())
        assert pair.is_at(pair.trainer.n)
    assert pair.steps[0] | pair.steps[1] <= {Version("run", 1, n) for n in range(7)}
    for rig in pair.ranks:
        parts = rig.member.parts
        assert parts is not None
        assert min(parts.apply_ms, parts.verdict_ms, parts.resume_ms) > 0
        assert parts.pause_ms == pytest.approx(
            parts.begin_ms + parts.apply_ms + parts.verdict_ms + parts.resume_ms
        )
        assert rig.states[-1] is CommitState.COMMITTED


def test_ranks_that_start_at_different_versions_are_brought_to_one_before_they_are_used() -> None:
    with pair_of(starts=(3, 1)) as pair:
        for _ in range(4):
            pair.trainer.publish()
        pair.wait_in_use(pair.trainer.version)
        assert pair.is_at(4)
        # Neither ran a step on what it started with.
        assert pair.steps[0] | pair.steps[1] <= {Version("run", 1, n) for n in range(5)}


def test_version_that_one_rank_cannot_commit_is_used_by_neither(pair: Pair) -> None:
    pair.wait_in_use(pair.trainer.version)
    pair.ranks[1].views.is_failing = True
    bad = pair.trainer.publish()
    pair.wait(lambda: pair.ranks[1].receiver.stats.rolled_back > 0)
    pair.wait(lambda: pair.host.state is ReplicaState.IN_USE)
    pair.ranks[1].views.is_failing = False
    newest = pair.trainer.publish()
    pair.wait_in_use(newest)
    assert pair.is_at(2)
    assert CommitState.ROLLED_BACK in pair.ranks[0].states
    assert bad not in pair.steps[0] & pair.steps[1] or pair.host.version == newest


def test_rank_that_dies_takes_the_other_out_of_use_until_it_is_back(pair: Pair) -> None:
    pair.wait_in_use(pair.trainer.publish())
    gone = pair.ranks[1]
    gone.link.close()
    gone.close()
    pair.wait(lambda: pair.ranks[0].member.phase is RankPhase.STOPPED)
    pair.trainer.publish()
    pair.memory[1] = shard(model(0), 1, 2)
    pair.ranks[1] = pair.start_rank(1, incarnation=9)
    pair.wait_in_use(pair.trainer.version)
    assert pair.is_at(2)


def test_new_coordinator_finds_the_ranks_as_they_are(pair: Pair) -> None:
    pair.wait_in_use(pair.trainer.publish())
    pair.server.close()
    pair.host.close()
    pair.trainer.publish()
    pair.start_host(2)
    pair.wait_in_use(pair.trainer.version)
    assert pair.is_at(2)


def test_weights_that_drifted_are_repaired_while_no_rank_is_in_use(pair: Pair) -> None:
    pair.wait_in_use(pair.trainer.publish())
    rig = pair.ranks[1]
    pauses = len(pair.ranks[0].states)
    pair.memory[1]["up"][3, 3] ^= 1
    rig.digests.update({tile: rig.views.digest(tile) for tile in rig.views.tiles})
    rig.receiver.drifted(rig.digests)
    pair.wait(lambda: rig.receiver.stats.repaired > 0)
    pair.wait(lambda: pair.is_at(1))
    pair.wait_in_use(pair.trainer.version)
    pair.wait(lambda: len(pair.ranks[0].states) > pauses)
    assert rig.receiver.stats.repaired == 1


def test_engine_that_stops_while_it_holds_goes_back() -> None:
    with pair_of() as pair:
        pair.wait_in_use(pair.trainer.version)
        pair.server.close()  # Nobody says KEEP or anything else.
        pair.host.close()
        rig = pair.ranks[0]
        rig.member.met(77, lambda _word: None)
        version = pair.trainer.publish()
        rig.wait(lambda: rig.receiver.staged_version == version)
        rig.member.hear(Order(77, 1, OrderKind.STOP, None))
        rig.member.hear(Order(77, 2, OrderKind.BEGIN, version))
        rig.wait(lambda: rig.member.phase in {RankPhase.MATCHED, RankPhase.STOPPED})
        rig.close()
        assert np.array_equal(pair.memory[0]["up"], shard(model(0), 0, 2)["up"])


class Repairing:
    """A receiver of rank 0 at version 2, where version 3 gives way to a repair of 2.

    Args:
        looks: at `staged_version`, while it is still 3.
    """

    unreachable = None

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.trainer = Trainer()
        self.held = [self.trainer.publish() for _ in range(3)][1]
        self.weights = ShardViews(places(PLAN, PAIR, 0, shard(model(2), 0, 2)))
        self.commits: list[Commit] = []
        self.outcomes: list[Outcome] = []

    @property
    def staged_version(self) -> Version:
        self.looks -= 1
        return self.trainer.version if self.looks >= 0 else self.held

    def aim(self, version: Version | None, *, is_direct: bool = False) -> None:
        pass

    def take_staged(self) -> StagedVersion:
        return StagedVersion(self.trainer.log.manifests_after(1)[0], ())

    def make_commit(self, staged: StagedVersion, *, is_held: bool) -> Commit:
        subscribed = self.weights.tiles
        self.commits.append(
            Commit(staged, self.weights, (0, 0), subscribed=subscribed, is_held=is_held)
        )
        return self.commits[-1]

    def report(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def drifted(self, digests: TileDigests) -> None:
        pass


@pytest.mark.parametrize(("looks", "taken"), [(2, 0), (3, 1)])
def test_repair_that_takes_the_place_of_what_was_to_begin_is_not_held_for_it(
    looks: int, taken: int
) -> None:
    receiver = Repairing(looks)  # It is looked at when it is attached, at BEGIN, in the pause.
    pauses: list[ReplicaPause] = []
    rank = ReplicaRank(0, 1, receiver.held)
    member = ReplicaMember(rank, receiver.make_commit, pauses.append, clock=BootClock())
    rank.met(7)
    member.attach(receiver)
    rank.staged(receiver.trainer.version)
    member.hear(Order(7, 1, OrderKind.BEGIN, receiver.trainer.version))
    assert member.phase is RankPhase.APPLYING
    for _ in range(2 + taken):
        pauses[0].step()
    assert member.phase is RankPhase.BACK
    assert [outcome.is_abandoned for outcome in receiver.outcomes] == [True] * taken
    assert len(receiver.commits) == taken


# ---- the connection -----------------------------------------------------------------------------

ORDER = Order(5, 9, OrderKind.AIM, Version("run", 1, 7))
WORD = Word(1, 2, 3, 4, 5, RankPhase.KEPT, Version("run", 1, 7), None, Version("r", 0, 1), True)


@pytest.mark.parametrize("message", [ORDER, WORD])
def test_messages_are_read_as_they_were_written(message: Order | Word) -> None:
    assert decode(type(message), encode(message)[4:]) == message


@given(content=st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused_as_such(content: bytes) -> None:
    for kind in (Order, Word):
        with pytest.raises(CorruptData):
            decode(kind, content)


@given(at=st.integers(0, 10_000), to=st.integers(0, 255))
def test_damaged_message_is_another_one_or_refused(at: int, to: int) -> None:
    content = bytearray(encode(WORD)[4:])
    content[at % len(content)] = to
    try:
        decode(Word, bytes(content))
    except RoseError as error:
        assert isinstance(error, CorruptData)  # noqa: PT017


def test_name_that_no_frame_holds_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        encode(Order(1, 1, OrderKind.USE, Version("r" * FRAME_BYTES_MAX, 1, 1)))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n" + bytes(100),
        b"ROSERPL1" + bytes(32) + bytes(16),  # another token
        b"ROSERPL1" + TOKEN + (9).to_bytes(8, "little") + bytes(8),  # no such rank
        b"ROSERPL1" + TOKEN + bytes(16) + b"\xff\xff\xff\xff",  # a frame without end
        b"ROSERPL1" + TOKEN + bytes(16) + b"\x02\x00\x00\x00{}",  # no word
        b"ROSERPL1" + TOKEN + bytes(16) + encode(WORD),  # a word of another rank
    ],
)
def test_stranger_is_closed_and_learns_nothing_and_the_replica_goes_on(
    pair: Pair, said: bytes
) -> None:
    host, _, port = pair.server.address.rpartition(":")
    with socket.create_connection((host, int(port)), LONG_S) as stranger:
        stranger.settimeout(LONG_S)
        stranger.sendall(said)
        heard = b""
        with suppress(OSError):  # It closes before it has read all of that.
            stranger.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LONG_S
            while piece := stranger.recv(4096):
                heard += piece
                assert time.monotonic() < until
    assert (heard == b"") == (TOKEN not in said)
    pair.wait_in_use(pair.trainer.version)


class Exhausted:
    """A listener that has no descriptor left, once."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.has_failed = threading.Event()

    def accept(self) -> object:
        if not self.has_failed.is_set():
            self.has_failed.set()
            raise OSError(errno.EMFILE, "planted")
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


def test_ranks_are_let_in_again_when_there_are_descriptors_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Exhausted] = []

    def listen(*args: Any, **knobs: Any) -> Exhausted:
        made.append(Exhausted(create_server(*args, **knobs)))
        return made[0]

    create_server = socket.create_server
    monkeypatch.setattr(socket, "create_server", listen)
    with ReplicaHost(2, 5) as host, ReplicaServer(host, "127.0.0.1:0", TOKEN) as server:
        assert made[0].has_failed.wait(LONG_S)
        name, _, port = server.address.rpartition(":")
        with socket.create_connection((name, int(port)), LONG_S) as rank:
            rank.sendall(b"ROSERPL1" + TOKEN + bytes(16))
            assert rank.recv(8) == b"ROSERPL1"


def test_frame_that_is_larger_than_any_message_is_not_read() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), LONG_S) as sender,
    ):
        accepted, _ = listener.accept()
        connection = _Connection(accepted)
        content = encode(WORD)[4:].ljust(FRAME_BYTES_MAX + 1)  # A word with blanks behind it.
        sender.sendall(len(content).to_bytes(4, "little") + content)
        with pytest.raises(CorruptData, match="at most"):
            connection.read_frame()
        connection.close()
