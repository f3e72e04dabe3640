"""Who serves says so, and hears who receives what; over the wire as well."""

from collections.abc import Iterator

import pytest

from rose.errors import InvalidArgument
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire.messages import RelayPlace, TensorEntry
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


def test_of_too_many_subscribers_those_heard_of_longest_ago_are_dropped(
    server: WeightServer, source: RemoteSource
) -> None:
    for at in range(SUBSCRIBERS_MAX):
        server.peers.subscribe(str(at))
        assert server.peers.subscriber_count == at + 1
    source.subscribe("0")  # who is known is heard of again
    source.subscribe("one more")
    known = server.peers._subscribers
    assert len(known) == server.peers.subscriber_count == SUBSCRIBERS_MAX
    assert {"0", "one more"} <= known.keys()
    assert "1" not in known
