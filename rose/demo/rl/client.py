"""How trajectories reach the trainer, and how its parent learns where it is."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import grpc
import msgspec

from rose.addresses import loopback
from rose.closing import Closing
from rose.demo.rl.messages import (
    FORMAT,
    MESSAGE_BYTES_MAX,
    SERVICE,
    STATUS,
    SUBMIT,
    SUBMIT_MAX,
    SUBMIT_TOKENS_MAX,
    TOKEN_KEY,
    AskStatus,
    Submit,
    Submitted,
    TrainerStatus,
)
from rose.demo.rl.trajectory import Trajectory
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, RoseError, Unavailable

# A step of training on a shared core can keep the trainer's other threads waiting for seconds.
DEADLINE_S: Final = 30.0
_RECONNECT_MS: Final = 1000

_ERRORS: Final[dict[grpc.StatusCode, type[RoseError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.UNAUTHENTICATED: InvalidArgument,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}

Answer = TypeVar("Answer", Submitted, TrainerStatus)


class TrainerClient(Closing):
    """Talks to one incarnation of a trainer; any thread.

    Every call ends within the deadline. After `Unavailable` or `DeadlineExceeded` the caller does
    not know whether a submission arrived: it keeps the trajectories and sends them again, to this
    trainer or to the next incarnation, which knows by number what it has.

    Args:
        address: as the trainer printed it.
        token: as the trainer printed it.
        deadline_s: of each call, > 0.
    """

    def __init__(self, address: str, token: str, *, deadline_s: float = DEADLINE_S) -> None:
        loopback(address)
        if deadline_s <= 0:
            raise InvalidArgument(f"deadline_s is {deadline_s}, give a number above 0")
        self._deadline_s = deadline_s
        self._metadata = ((TOKEN_KEY, token),)
        self._channel = grpc.insecure_channel(
            address,
            options=[
                # Connections are not shared: a client made for a trainer that has just come back
                # must not sit out what another one waits for since it lost the one before.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                # A proxy of the environment has no business within one machine.
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._submit = self._channel.unary_unary(f"/{SERVICE}/{SUBMIT}")
        self._status = self._channel.unary_unary(f"/{SERVICE}/{STATUS}")

    def submit(self, trajectories: Sequence[Trajectory]) -> Submitted:
        """Send trajectories; one that was sent before counts once.

        Raises:
            InvalidArgument: the token is wrong.
            Unavailable: the trainer is gone.
            DeadlineExceeded: it did not answer in time.
        """
        accepted: list[int] = []
        known: list[int] = []
        later: list[int] = []
        refused: dict[int, str] = {}
        for part in _messages(trajectories):
            answer = self._call(self._submit, part, Submitted)
            accepted += answer.accepted
            known += answer.known
            later += answer.later
            refused |= answer.refused
        return Submitted(tuple(accepted), tuple(known), tuple(later), refused)

    def status(self) -> TrainerStatus:
        """Ask where the trainer is.

        Raises:
            InvalidArgument: the token is wrong.
            Unavailable: the trainer is gone.
            DeadlineExceeded: it did not answer in time.
        """
        return self._call(self._status, AskStatus(), TrainerStatus)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _call(
        self,
        call: grpc.UnaryUnaryMultiCallable,
        message: Submit | AskStatus,
        kind: type[Answer],
    ) -> Answer:
        try:
            packed = call(
                msgspec.msgpack.encode(message), timeout=self._deadline_s, metadata=self._metadata
            )
            answer = msgspec.msgpack.decode(packed, type=kind)
        except grpc.RpcError as error:
            failure = _ERRORS.get(error.code(), Unavailable)
            raise failure(f"the trainer: {error.details()}") from error
        except msgspec.DecodeError as error:
            raise CorruptData(f"the trainer's answer cannot be read: {error}") from error
        if answer.format != FORMAT:
            raise CorruptData(f"the trainer answers in format {answer.format}, not {FORMAT}")
        return answer


def _messages(trajectories: Sequence[Trajectory]) -> Iterator[Submit]:
    """Cut what is to be sent into messages that each have room for their part."""
    part: list[Trajectory] = []
    tokens = 0
    for one in trajectories:
        tokens += len(one.tokens)
        if part and (len(part) == SUBMIT_MAX or tokens > SUBMIT_TOKENS_MAX):
            yield Submit(tuple(part))
            part, tokens = [], len(one.tokens)
        part.append(one)
    if part:
        yield Submit(tuple(part))
