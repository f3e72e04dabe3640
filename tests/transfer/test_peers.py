"""Who serves says so, and hears who receives what; over the wire as well."""

import tracemalloc
from collections.abc import Iterator

import pytest

from rose.errors import InvalidArgument
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire.messages import RelayPlace, SubscribeRequest, TensorEntry
from rose.transfer.wire.peers import SUBSCRIBERS_MAX, Peers
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import WeightServer, serve

LAYOUT = "ab" * 32


class SetClock:
    def __init__(self) -> None:
        self.at_ns = 5

    def now_ns(self) -> int:
        return self.at_ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps")


@pytest.fixture
def server() -> Iterator[WeightServer]:
    tensors = [TensorEntry("w", "BF16", (3, 5)), TensorEntry("scalar", "F32", ())]
    with serve(VersionLog(), peers=Peers("trainer", layout=LAYOUT, tensors=tensors)) as one:
        yield one


@pytest.fixture
def source(server: WeightServer) -> Iterator[RemoteSource]:
    one = RemoteSource(server.address, server.token)
    yield one
    one.close()


def test_server_says_who_it_is(server: WeightServer, source: RemoteSource) -> None:
    said = source.hello()
    assert (said.name, said.role, said.layout) == ("trainer", "publisher", LAYOUT)
    assert said.tensors == (TensorEntry("w", "BF16", (3, 5)), TensorEntry("scalar", "F32", ()))
    assert said.chunk_port == server._chunks.port
    relays = [RelayPlace("10.0.0.1:5", (0, 2))]
    server.peers.announce("cd" * 32, relays=relays)
    said = source.hello()
    assert (said.layout, said.relays, said.tensors) == ("cd" * 32, tuple(relays), ())


def test_server_says_since_when_it_serves() -> None:
    clock = SetClock()
    peers = Peers("relay", "relay", clock=clock)
    assert peers.hello(1).up_ms == 0
    clock.at_ns += 1_234_000_000
    assert (peers.hello(1).up_ms, peers.hello(1).role) == (1234, "relay")
    with pytest.raises(InvalidArgument, match="role"):
        Peers("x", "stranger")


def test_subscriptions_are_known_by_name(server: WeightServer, source: RemoteSource) -> None:
    source.subscribe("a", replica="engine", rank=3, tiles=(1, 5))
    source.subscribe("b")
    source.subscribe("a", replica="engine", rank=3, tiles=(7,))
    assert server.peers.subscribers == {
        "a": SubscribeRequest("a", "engine", 3, (7,)),
        "b": SubscribeRequest("b", "", 0, None),
    }
    with pytest.raises(InvalidArgument):
        source.subscribe("c", rank=-1)


def test_of_too_many_subscribers_those_heard_of_longest_ago_are_dropped(
    server: WeightServer, source: RemoteSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(SUBSCRIBERS_MAX):
        server.peers.subscribe(SubscribeRequest(str(at), "", 0, None))
    source.subscribe("0", tiles=())  # who is known may change its mind
    source.subscribe("one more")
    known = server.peers.subscribers
    assert len(known) == server.peers.subscriber_count == SUBSCRIBERS_MAX
    assert known["0"].tiles == ()
    assert "one more" in known
    assert "1" not in known
    monkeypatch.setattr("rose.transfer.wire.peers.TILES_MAX", 10)
    for name, tiles in [("a", 6), ("b", 4), ("a", 4), ("c", 3)]:
        source.subscribe(name, tiles=range(tiles))
    assert [*server.peers.subscribers] == ["a", "c"]
    source.subscribe("d", tiles=range(11))  # one has its tiles, however many
    assert [*server.peers.subscribers] == ["d"]


def test_tiles_of_subscribers_are_kept_packed() -> None:
    peers = Peers()
    tiles = range(1 << 20, (1 << 20) + 100_000)
    tracemalloc.start()
    try:
        for at in range(4):
            peers.subscribe(SubscribeRequest(str(at), "", 0, tuple(tiles)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 * 100_000 * 8  # a tuple of numbers has 36 bytes for each
    assert peers.subscribers["3"].tiles == tuple(tiles)
