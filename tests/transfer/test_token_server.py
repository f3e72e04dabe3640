"""The gRPC server that a log and a part of a rank share."""

import secrets
import threading
from collections.abc import Iterator

import grpc
import pytest

from rose.errors import Unavailable
from rose.transfer.wire.messages import TOKEN_KEY
from rose.transfer.wire.security import Security
from rose.transfer.wire.token_server import TokenServer
from tests.transfer.worker import LONG_S, eventually

SERVICE = "rose.test"
METHOD = f"/{SERVICE}/Echo"
CALLS_MAX = 3
PLACES = 4 * CALLS_MAX
BYTES_MAX = 1000
SECURITY = Security(secrets.token_bytes(32))
METADATA = ((TOKEN_KEY, SECURITY.token.hex()),)


class Echo:
    """A method that answers once it is let to."""

    def __init__(self) -> None:
        self.lets_go = threading.Event()
        self.lets_go.set()
        self.begun = threading.Semaphore(0)

    def server(self, port: int = 0) -> TokenServer:
        return TokenServer(
            "rose-test",
            "127.0.0.1",
            port,
            SECURITY,
            SERVICE,
            methods={"Echo": grpc.unary_unary_rpc_method_handler(self._answer)},
            calls_max=CALLS_MAX,
            request_bytes_max=BYTES_MAX,
            reply_bytes_max=BYTES_MAX + 1,
        )

    def _answer(self, content: bytes, _context: object) -> bytes:
        self.begun.release()
        assert self.lets_go.wait(LONG_S)
        return 2 * content


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def served(echo: Echo) -> Iterator[grpc.Channel]:
    with echo.server() as server:
        server.start()
        with grpc.insecure_channel(server.address) as channel:
            yield channel


def code_of(call: grpc.Future) -> grpc.StatusCode:
    """Wait for the end of a call."""
    error = call.exception(LONG_S)
    assert isinstance(error, grpc.RpcError)
    return error.code()


def ask(channel: grpc.Channel, content: bytes, *, is_stranger: bool = False) -> grpc.Future:
    metadata = () if is_stranger else METADATA
    return channel.unary_unary(METHOD).future(content, timeout=LONG_S, metadata=metadata)


def test_only_clients_with_the_token_are_answered(served: grpc.Channel) -> None:
    assert ask(served, b"x").result() == b"xx"
    assert code_of(ask(served, b"x", is_stranger=True)) is grpc.StatusCode.UNAUTHENTICATED


def test_messages_are_bounded_both_ways(served: grpc.Channel) -> None:
    for nbytes in (BYTES_MAX + 1, BYTES_MAX):
        code = code_of(ask(served, bytes(nbytes)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ask(served, bytes(BYTES_MAX // 2)).result() == bytes(BYTES_MAX)


def test_calls_that_wait_for_a_thread_are_bounded(echo: Echo, served: grpc.Channel) -> None:
    echo.lets_go.clear()
    calls = [ask(served, b"x") for _ in range(PLACES + 1)]
    eventually(lambda: any(call.done() for call in calls))
    (refused,) = [call for call in calls if call.done()]
    assert code_of(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED
    echo.lets_go.set()
    calls.remove(refused)
    assert [call.result(LONG_S) for call in calls] == [b"xx"] * PLACES


def test_clients_without_a_token_block_nobody(echo: Echo, served: grpc.Channel) -> None:
    """All threads are busy, and strangers take every place that they can have."""
    echo.lets_go.clear()
    calls = [ask(served, b"x") for _ in range(CALLS_MAX)]
    for _ in calls:
        assert echo.begun.acquire(timeout=LONG_S)
    strangers = [ask(served, b"x", is_stranger=True) for _ in range(20 * CALLS_MAX)]
    eventually(lambda: sum(call.done() for call in strangers) == 19 * CALLS_MAX)
    calls += [ask(served, b"x") for _ in range(CALLS_MAX)]
    echo.lets_go.set()
    assert [call.result(LONG_S) for call in calls] == [b"xx"] * 2 * CALLS_MAX
    # Those who had a place heard what is wrong.
    codes = {code_of(call) for call in strangers}
    assert codes == {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED}


def test_port_in_use_is_an_error_and_leaves_no_thread(echo: Echo) -> None:
    with echo.server() as server:
        before = threading.active_count()
        for _ in range(3):
            with pytest.raises(Unavailable, match="cannot listen on"):
                echo.server(int(server.address.rpartition(":")[2]))
        assert threading.active_count() == before
