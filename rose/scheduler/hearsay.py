"""What workers say, made fit to be believed: they may be of another make, or broken."""

import math
from typing import Final

from rose.errors import InvalidArgument
from rose.scheduler.coerce import COUNT_MAX, count, one_of, real, reals, wholes
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
_TEXT_MAX: Final = 1000
# Whoever invents numbers of workers must not fill our memory.
_WORKERS_MAX: Final = 4096


def believable(event: WorkerEvent) -> WorkerEvent | None:
    """Return an event that every other part may take as it is; None for one without a meaning.

    Its numbers are those of Python, whatever the worker counts with. An output that nobody could
    learn from becomes one that failed: the worker could not run the turn, whatever it believes.
    """
    try:
        return _believed(event)
    except InvalidArgument:
        return None


def _believed(event: object) -> WorkerEvent | None:
    match event:
        case TurnOutput():
            return _output(event)
        case LeaseChanged(worker, lease_epoch, kv_tokens, ttl_ms):
            return LeaseChanged(
                count("worker", worker),
                count("lease_epoch", lease_epoch),
                count("kv_tokens", kv_tokens),
                real("ttl_ms", ttl_ms),
            )
        case VersionCommitted(worker, version, is_match, pause_ms):
            return VersionCommitted(
                count("worker", worker),
                count("version", version),
                real("is_match", is_match) != 0,
                real("pause_ms", pause_ms),
            )
        case WorkerLost(worker, reason):
            return WorkerLost(count("worker", worker), _printable(reason))
    return None


def _output(event: TurnOutput) -> TurnOutput:
    first_token = count("first_token", event.first_token)
    end = None if event.end is None else one_of("end", event.end, TurnEnd)
    error = None if event.error is None else _printable(event.error)
    try:
        tokens = wholes("tokens", event.tokens)
        logprobs = reals("logprobs", event.logprobs)
        versions = wholes("versions", event.versions)
        has_meaning = _has_meaning(tokens, logprobs, versions)
    except InvalidArgument:
        has_meaning = False
    if has_meaning and end is TurnEnd.FINISHED and first_token + len(tokens) == 0:
        end, error = TurnEnd.FAILED, "it has ended a turn without a token"
    if not has_meaning:
        tokens, logprobs, versions, end = (), (), (), TurnEnd.FAILED
        error = "its tokens, logprobs and versions do not fit each other, or are none"
    return TurnOutput(
        worker=count("worker", event.worker),
        trajectory=count("trajectory", event.trajectory),
        turn=count("turn", event.turn),
        lease_epoch=count("lease_epoch", event.lease_epoch),
        first_token=first_token,
        tokens=tokens,
        logprobs=logprobs,
        versions=versions,
        end=end,
        error=error,
    )


def _has_meaning(
    tokens: tuple[int, ...], logprobs: tuple[float, ...], versions: tuple[int, ...]
) -> bool:
    """Return whether each token is one, with a logprob and a version."""
    return (
        len(tokens) == len(logprobs) == len(versions)
        and all(0 <= token <= COUNT_MAX for token in tokens)
        and all(0 <= version <= COUNT_MAX for version in versions)
        and all(logprob <= _LOGPROB_MAX and math.isfinite(logprob) for logprob in logprobs)
    )


def _printable(text: object) -> str:
    """Return what was said, fit for a journal and a page."""
    said = text if isinstance(text, str) else f"a {type(text).__name__} that is no text"
    return said[:_TEXT_MAX].encode(errors="replace").decode()


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
            if not (isinstance(event, LeaseChanged) and _is_stale(event, before)):
                kept[type(event)] = event
        return True

    def take(self, worker: int) -> list[WorkerEvent]:
        """Return what was kept of a worker, and keep it no longer."""
        return list(self._kept.pop(worker, {}).values())


def _is_stale(lease: LeaseChanged, before: WorkerEvent | None) -> bool:
    return isinstance(before, LeaseChanged) and lease.lease_epoch < before.lease_epoch
