"""What workers say, made fit to be believed: they may be of another make, or broken."""

import math
from dataclasses import replace
from typing import Final

from rose.scheduler.worker import (
    LeaseChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerEvent,
    WorkerLost,
)

# What csrc/scheduler takes for a count; beyond it a number is a mistake or an attack.
COUNT_MAX: Final = 1 << 40
# Logprobs of certain tokens are rounded, and may come out a little above 0.
_LOGPROB_MAX: Final = 1e-6
_TEXT_MAX: Final = 1000


def believable(event: WorkerEvent) -> WorkerEvent | None:
    """Return an event that every other part may take as it is; None for one without a meaning.

    An output that nobody could learn from becomes one that failed: the worker could not run the
    turn, whatever it believes.
    """
    match event:
        case TurnOutput():
            counts = [event.trajectory, event.turn, event.lease_epoch, event.first_token]
        case LeaseChanged():
            counts = [event.lease_epoch, event.kv_tokens]
        case VersionCommitted():
            counts = [event.version]
        case WorkerLost():
            counts = []
    if not all(0 <= count <= COUNT_MAX for count in (event.worker, *counts)):
        return None
    if isinstance(event, WorkerLost):
        return replace(event, reason=_printable(event.reason))
    if not isinstance(event, TurnOutput):
        return event
    if not _has_meaning(event):
        said = "its tokens, logprobs and versions do not fit each other, or are none"
        event = replace(event, tokens=(), logprobs=(), versions=(), end=TurnEnd.FAILED, error=said)
    return event if event.error is None else replace(event, error=_printable(event.error))


def _has_meaning(output: TurnOutput) -> bool:
    """Return whether each token is one, with a logprob and a version."""
    return (
        len(output.tokens) == len(output.logprobs) == len(output.versions)
        and all(0 <= token <= COUNT_MAX for token in output.tokens)
        and all(0 <= version <= COUNT_MAX for version in output.versions)
        and all(logprob <= _LOGPROB_MAX and math.isfinite(logprob) for logprob in output.logprobs)
    )


def _printable(text: str) -> str:
    return text[:_TEXT_MAX].encode(errors="replace").decode()
