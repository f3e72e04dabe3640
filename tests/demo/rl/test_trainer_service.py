"""Calls to the trainer end in time, need its token, and count each trajectory once."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import grpc
import msgspec
import pytest

from rose.demo.rl import service
from rose.demo.rl.intake import Intake
from rose.demo.rl.messages import (
    MESSAGE_BYTES_MAX,
    SERVICE,
    SUBMIT,
    SUBMIT_MAX,
    SUBMIT_TOKENS_MAX,
    TOKEN_KEY,
    AskStatus,
    Submit,
    Submitted,
    TrainerStatus,
)
from rose.demo.rl.service import TrainerClient, TrainerServer
from rose.demo.rl.trajectory import TRAJECTORY_TOKENS_MAX
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from tests.demo.rl.micro import trajectory

STATUS_NOW = TrainerStatus(
    incarnation=2,
    version=9,
    steps=4,
    reward_mean=None,
    loss=0.25,
    staleness={0: 3, 2: 1},
    dropped_stale=1,
    passed_over=3,
    consumed=12,
    waiting=4,
    durable=8,
    versions=3,
    bytes_sent=10,
    dense_bytes=100,
)


class Ear:
    """A trainer that only listens; `may_answer` holds it up."""

    def __init__(self) -> None:
        self.intake = Intake(group_size=2, vocabulary=128, waiting_max=100)
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.sizes: list[int] = []

    def submit(self, trajectories) -> Submitted:
        self.sizes.append(len(trajectories))
        return self.intake.submit(trajectories, newest=9)

    def status(self) -> TrainerStatus:
        assert self.may_answer.wait(60)
        return STATUS_NOW


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def server(ear: Ear) -> Iterator[TrainerServer]:
    with TrainerServer(ear, token="the token") as server:
        yield server
        ear.may_answer.set()


@pytest.fixture
def client(server: TrainerServer) -> Iterator[TrainerClient]:
    with TrainerClient(server.address, "the token") as client:
        yield client


def test_trajectories_arrive_as_they_were_and_count_once(ear: Ear, client: TrainerClient) -> None:
    sent = [trajectory(n, [70 + n, 1], reward=n / 3, group=n // 2) for n in range(4)]
    assert client.submit(sent[:3]) == Submitted(accepted=(0, 1, 2))
    assert client.submit(sent) == Submitted(accepted=(3,), known=(0, 1, 2))
    assert ear.intake.take(4, timeout_s=0.0) == sent
    assert client.submit([]) == Submitted()


def test_many_trajectories_go_in_several_messages_and_may_come_later(
    ear: Ear, client: TrainerClient
) -> None:
    sent = [trajectory(n, [70, 1], reward=0.0, group=n // 2) for n in range(120)]
    answer = client.submit(sent)
    assert (answer.accepted, answer.later) == (tuple(range(100)), tuple(range(100, 120)))
    assert ear.sizes == [SUBMIT_MAX, 120 - SUBMIT_MAX]


def test_the_status_arrives_as_it_is(client: TrainerClient) -> None:
    assert client.status() == STATUS_NOW


def test_what_the_trainer_refuses_is_refused_to_the_caller(client: TrainerClient) -> None:
    answer = client.submit([trajectory(3, [200], reward=0.0), trajectory(4, [70], reward=0.0)])
    assert answer.accepted == (4,)
    assert "trajectory 3 has token 200" in answer.refused[3]


def test_long_trajectories_are_cut_into_messages_that_pass(client, ear, monkeypatch) -> None:
    monkeypatch.setattr(service, "SUBMIT_TOKENS_MAX", 20)
    lengths = [2, 30, 2, 8, 8, 1]
    sent = [trajectory(place, [70] * count, reward=0.0) for place, count in enumerate(lengths)]
    answer = client.submit(sent)
    assert answer.accepted == tuple(range(6))
    assert [len(one.tokens) for one in sent] == [6, 34, 6, 12, 12, 5]
    assert ear.sizes == [1, 1, 2, 2]


def test_the_longest_message_fits() -> None:
    token_bytes = len(msgspec.msgpack.encode([2**63 - 1, True, -0.5, 2**63 - 1])) - 1
    longest = (SUBMIT_TOKENS_MAX + TRAJECTORY_TOKENS_MAX) * token_bytes
    assert longest + SUBMIT_MAX * 1024 < MESSAGE_BYTES_MAX


def test_who_does_not_show_the_token_learns_nothing(ear: Ear, server: TrainerServer) -> None:
    for token in ("", "another", "the toke"):
        with TrainerClient(server.address, token) as stranger:
            with pytest.raises(InvalidArgument, match="token"):
                stranger.status()
            with pytest.raises(InvalidArgument, match="token"):
                stranger.submit([trajectory(1, [70], reward=0.0)])
    assert ear.sizes == []


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"garbage" * 100,
        msgspec.msgpack.encode(AskStatus(format=2)),
        msgspec.msgpack.encode(Submit((), format=2)),
        msgspec.msgpack.encode(
            {"trajectories": [{**msgspec.to_builtins(trajectory(1, [70], reward=0.0)), "turns": 0}]}
        ),
    ],
)
def test_what_is_malformed_is_refused_and_the_server_goes_on(
    server: TrainerServer, client: TrainerClient, message: bytes
) -> None:
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary(f"/{SERVICE}/{SUBMIT}")(
                message, timeout=30, metadata=((TOKEN_KEY, "the token"),)
            )
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert client.status() == STATUS_NOW


def test_a_trainer_that_does_not_answer_is_given_up_in_time(
    ear: Ear, server: TrainerServer
) -> None:
    ear.may_answer.clear()
    with (
        TrainerClient(server.address, "the token", deadline_s=0.2) as client,
        pytest.raises(DeadlineExceeded, match="trainer"),
    ):
        client.status()


def test_a_trainer_that_is_gone_is_unavailable_and_what_was_sent_can_be_sent_again() -> None:
    sent = [trajectory(n, [70, 1], reward=0.0) for n in range(2)]
    ear = Ear()
    server = TrainerServer(ear, token="the token")
    with TrainerClient(server.address, "the token") as client:
        assert client.submit(sent).accepted == (0, 1)
        server.close()
        with pytest.raises(Unavailable, match="trainer"):
            client.submit(sent)
        with pytest.raises(Unavailable, match="trainer"):
            client.status()
        again = TrainerServer(ear, token="the token", address=server.address)
        with TrainerClient(again.address, "the token") as other:
            assert other.submit(sent).known == (0, 1)
        again.close()


def test_a_port_that_is_taken_is_said_so(server: TrainerServer, ear: Ear) -> None:
    with pytest.raises(Unavailable, match="cannot listen"):
        TrainerServer(ear, token="t", address=server.address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "example.org:80", "10.0.0.1:1", "", "127.0.0.1"])
def test_nothing_listens_or_asks_outside_this_machine(ear: Ear, address: str) -> None:
    with pytest.raises(InvalidArgument, match="loopback"):
        TrainerServer(ear, token="t", address=address)
    with pytest.raises(InvalidArgument, match="loopback"):
        TrainerClient(address, "t")


def test_an_answer_that_cannot_be_read_is_corrupt(
    ear: Ear, server: TrainerServer, client: TrainerClient, monkeypatch
) -> None:
    monkeypatch.setattr(ear, "status", lambda: replace(STATUS_NOW, format=2))
    with pytest.raises(CorruptData, match="format 2, not 1"):
        client.status()
    monkeypatch.setattr(client, "_status", lambda *args, **kwargs: b"garbage")
    with pytest.raises(CorruptData, match="cannot be read"):
        client.status()
    with pytest.raises(InvalidArgument, match="deadline_s"):
        TrainerClient(server.address, "t", deadline_s=0.0)
