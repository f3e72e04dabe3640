"""Events of workers on arrival: workers may be foreign or broken, or report too early."""

from typing import Final

from msgspec.structs import replace

from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.checks import can_be_stored, checked, is_finite, printable
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerEvent,
    WorkerLost,
)

# Logprobs of near-certain tokens are rounded, and may be slightly above 0.
_LOGPROB_MAX: Final = 1e-6
# Limits the memory that invented worker numbers can take.
_WORKERS_MAX: Final = 4096
_INVALID: Final = "its tokens, logprobs or versions are invalid, or differ in number"


def validated(event: object) -> WorkerEvent | None:
    """Return an event with checked fields; None if it is invalid.

    Numbers are converted to types of Python. An output with invalid tokens becomes a failed output,
    whatever end the worker reports.
    """
    try:
        if isinstance(event, TurnOutput):
            return _output(event)
        if isinstance(event, WorkerLost):
            return checked(replace(event, reason=printable(event.reason)))
        return checked(event) if isinstance(event, GrantChanged | VersionCommitted) else None
    except InvalidArgument:
        return None


def _output(event: TurnOutput) -> TurnOutput:
    if event.error is not None:
        event = replace(event, error=printable(event.error))
    try:
        found = checked(event)
    except InvalidArgument:
        if event.end is not None and not isinstance(event.end, TurnEnd):
            raise
        return checked(_failed(event, _INVALID))  # Its place may be valid.
    if not _is_sound(found):
        return _failed(found, _INVALID)
    if found.end is TurnEnd.FINISHED and found.first_token + len(found.tokens) == 0:
        return _failed(found, "it has ended a turn without a token")
    return found


def _is_sound(output: TurnOutput) -> bool:
    count, logprobs = len(output.tokens), output.logprobs
    return (
        len(logprobs) == count == len(output.versions)
        and len(output.top_logprobs) in (0, count)
        and (not count or (is_finite(logprobs) and max(logprobs) <= _LOGPROB_MAX))
        and (not output.extras or can_be_stored(output.extras))
        and (not isinstance(output.stop_reason, str) or can_be_stored(output.stop_reason))
    )


def _failed(output: TurnOutput, why: str) -> TurnOutput:
    where = output.worker, output.trajectory, output.turn, output.grant_epoch, output.first_token
    return TurnOutput(*where, (), (), (), TurnEnd.FAILED, why)


class PreRegistrationBuffer:
    """Pre-registration buffer: a worker's event stream may start before its registration.

    Keeps, for each worker, the newest capacity grant, the last version event, and its loss. The
    newest grant has the highest epoch; of several grants with this epoch, it is the last. A
    repeated loss of a worker that was registered says nothing about the next one with its number.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[type, WorkerEvent]] = {}
        self._gone: set[int] = set()  # numbers of workers that were registered, and lost since

    def keep(self, event: WorkerEvent) -> bool:
        """Keep an event of an unregistered worker; return False if the event cannot wait."""
        number = event.worker
        if isinstance(event, TurnOutput):
            return False
        if isinstance(event, WorkerLost) and number in self._gone and number not in self._kept:
            return False
        if number not in self._kept and len(self._kept) >= _WORKERS_MAX:
            return True
        kept = self._kept.setdefault(number, {})
        if isinstance(event, WorkerLost) or WorkerLost in kept:
            kept.clear()  # A stream ends with a loss; another one may follow.
        before = kept.get(type(event))
        # A broken stream may repeat an old grant after the new one.
        if not (
            isinstance(event, GrantChanged)
            and isinstance(before, GrantChanged)
            and event.grant_epoch < before.grant_epoch
        ):
            kept[type(event)] = event
        return True

    def lose(self, worker: int) -> None:
        """Record the loss of a registered worker."""
        self._gone.add(worker)

    def take(self, worker: int) -> list[WorkerEvent]:
        """Remove and return the kept events of a worker that is about to be registered.

        Raises:
            Unavailable: the worker is lost already. A later registration may succeed.
        """
        kept = self._kept.pop(worker, {})
        lost = kept.get(WorkerLost)
        if isinstance(lost, WorkerLost):
            raise Unavailable(f"worker {worker} was lost before its registration: {lost.reason}")
        self._gone.discard(worker)
        return list(kept.values())
