"""Validation of worker events: workers may be foreign or broken."""

import math
from dataclasses import replace
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.scheduler.coerce import checked, counts, reals
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


def validated(event: object) -> WorkerEvent | None:
    """Return an event with checked fields; None if it is invalid.

    Numbers are converted to types of Python. An output with invalid tokens becomes a failed output,
    whatever end the worker reports.
    """
    try:
        if isinstance(event, TurnOutput):
            return _output(event)
        return checked(event) if isinstance(event, WorkerEvent) else None
    except InvalidArgument:
        return None


def _output(event: TurnOutput) -> TurnOutput:
    row = _row(event)
    if row is None:
        why = "its tokens, logprobs or versions are invalid, or differ in number"
        row = {"tokens": (), "logprobs": (), "versions": (), "end": TurnEnd.FAILED, "error": why}
    valid = checked(replace(event, **row))
    if valid.end is TurnEnd.FINISHED and valid.first_token + len(valid.tokens) == 0:
        return replace(valid, end=TurnEnd.FAILED, error="it has ended a turn without a token")
    return valid


def _row(event: TurnOutput) -> dict[str, Any] | None:
    """Return tokens, logprobs and versions; None if they are invalid or differ in number."""
    try:
        tokens, versions = counts("tokens", event.tokens), counts("versions", event.versions)
        logprobs = reals("logprobs", event.logprobs)
    except InvalidArgument:
        return None
    if not len(tokens) == len(logprobs) == len(versions):
        return None
    if not all(logprob <= _LOGPROB_MAX and math.isfinite(logprob) for logprob in logprobs):
        return None
    return {"tokens": tokens, "logprobs": logprobs, "versions": versions}


class PreRegistrationBuffer:
    """Pre-registration buffer: a worker's event stream may start before its registration.

    Keeps, for each worker, the newest capacity grant and the last version event. The newest grant
    has the highest epoch; of several grants with this epoch, it is the last.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[type, WorkerEvent]] = {}

    def keep(self, event: WorkerEvent) -> bool:
        """Keep an event of an unregistered worker; return False if the event cannot wait."""
        if isinstance(event, WorkerLost):
            self._kept.pop(event.worker, None)
            return False
        if not isinstance(event, GrantChanged | VersionCommitted):
            return False
        if event.worker in self._kept or len(self._kept) < _WORKERS_MAX:
            kept = self._kept.setdefault(event.worker, {})
            before = kept.get(type(event))
            # A broken stream may repeat an old grant after the new one.
            if not (
                isinstance(event, GrantChanged)
                and isinstance(before, GrantChanged)
                and event.grant_epoch < before.grant_epoch
            ):
                kept[type(event)] = event
        return True

    def take(self, worker: int) -> list[WorkerEvent]:
        """Remove and return the kept events of a worker."""
        return list(self._kept.pop(worker, {}).values())
