"""What workers say, made fit to be believed: they may be of another make, or broken."""

import math
from dataclasses import replace
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.scheduler.coerce import checked, counts, reals
from rose.scheduler.worker import (
    LeaseChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerEvent,
    WorkerLost,
)

# Logprobs of certain tokens are rounded, and may come out a little above 0.
_LOGPROB_MAX: Final = 1e-6
# Whoever invents numbers of workers must not fill our memory.
_WORKERS_MAX: Final = 4096


def believable(event: object) -> WorkerEvent | None:
    """Return an event that every other part may take as it is; None for one without a meaning.

    Its numbers are those of Python, whatever the worker counts with. An output that nobody could
    learn from becomes one that failed: the worker could not run the turn, whatever it believes.
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
        why = "its tokens, logprobs and versions do not fit each other, or are none"
        row = {"tokens": (), "logprobs": (), "versions": (), "end": TurnEnd.FAILED, "error": why}
    said = checked(replace(event, **row))
    if said.end is TurnEnd.FINISHED and said.first_token + len(said.tokens) == 0:
        return replace(said, end=TurnEnd.FAILED, error="it has ended a turn without a token")
    return said


def _row(event: TurnOutput) -> dict[str, Any] | None:
    """Return the tokens, each with a logprob and a version; None if they are none."""
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


class EarlyNews:
    """What workers say before they are registered: a stream may speak before its owner can.

    Keeps of each its newest lease and what it said last of its version.

    The lease with the highest epoch is the newest, and of those of one epoch the last.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[type, WorkerEvent]] = {}

    def keep(self, event: WorkerEvent) -> bool:
        """Keep an event of a worker that is not registered; False for one that cannot wait."""
        if isinstance(event, WorkerLost):
            self._kept.pop(event.worker, None)
            return False
        if not isinstance(event, LeaseChanged | VersionCommitted):
            return False
        if event.worker in self._kept or len(self._kept) < _WORKERS_MAX:
            kept = self._kept.setdefault(event.worker, {})
            before = kept.get(type(event))
            # A stream that breaks may say an old lease again, behind the new one.
            if not (
                isinstance(event, LeaseChanged)
                and isinstance(before, LeaseChanged)
                and event.lease_epoch < before.lease_epoch
            ):
                kept[type(event)] = event
        return True

    def take(self, worker: int) -> list[WorkerEvent]:
        """Return what was kept of a worker, and keep it no longer."""
        return list(self._kept.pop(worker, {}).values())
