"""Who serves says so, over the wire as well."""

from collections.abc import Iterator

import pytest

from rose.errors import InvalidArgument
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire.messages import RelayPlace, TensorEntry
from rose.transfer.wire.peers import Peers
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import WeightServer, serve

LAYOUT = "ab" * 32


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


def test_a_role_is_one_of_two() -> None:
    assert Peers("relay", "relay").hello(1).role == "relay"
    with pytest.raises(InvalidArgument, match="role"):
        Peers("x", "stranger")
